"""A training run is in the ledger before the command line has been read: the little that is needed is read here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mileage._errors import MileageError
from mileage.recording import announce

_NOT_HERE = frozenset(("--no-ledger", "--help", "-h", "--resume", "--on", "--emit"))
"""Options of a command that makes no run of its own, or whose run is another's continuation."""


@contextlib.contextmanager
def announced_training(arguments: Sequence[str]) -> Iterator[None]:
    """Announce the run that `mileage train …` is going to make, and say what became of it if it never began."""
    if not _NOT_HERE & {argument.partition("=")[0] for argument in arguments}:
        words = _leading_words(arguments[2:])
        seed = _option(arguments, "--seed") or "0"
        announce.announce(
            arguments,
            db=_option(arguments, "--db"),
            name=_option(arguments, "--name") or "",
            algorithm=words[0] if words else "",
            env_id=words[1] if len(words) > 1 else "",
            seed=int(seed) if seed.isdecimal() else None,
            price=_option(arguments, "--price"),
            instance=_option(arguments, "--instance"),
            spot="--spot" in arguments,
        )
    try:
        yield
    except BaseException as error:
        announce.settle(error.__context__ if isinstance(error.__context__, MileageError) else error)
        raise
    announce.settle(None)


def _leading_words(arguments: Sequence[str]) -> list[str]:
    found = []
    for argument in arguments:
        if argument.startswith("-"):
            break
        found.append(argument)
    return found


def _option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option in either spelling, `--db X` or `--db=X`; the last one counts."""
    found = None
    for argument, following in zip(arguments, [*arguments[1:], None], strict=True):
        if argument == name:
            found = following
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found
