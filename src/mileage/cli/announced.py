"""A training run is in the ledger before the command line has been read: the little that is needed is read here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from mileage.cli.birth import Birth, asked_seed, is_recorded, leading_words, option, run_name
from mileage.errors import MileageError
from mileage.ledger import announce


@contextlib.contextmanager
def announced_training(command: Sequence[str], arguments: Sequence[str], begun: Birth | None) -> Iterator[None]:
    """Announce the run that `train` with `arguments` is going to make, and say what became of it if it never began.

    `begun` is its first sign of life, which the announcement takes over.
    """
    if is_recorded(arguments):
        words = leading_words(arguments)
        announce.announce(
            command,
            db=option(arguments, "--db"),
            name=run_name(arguments, words),
            algorithm=words[0] if words else "",
            env_id=words[1] if len(words) > 1 else "",
            seed=asked_seed(arguments),
            price=option(arguments, "--price"),
            instance=option(arguments, "--instance"),
            spot="--spot" in arguments,
            begun=begun,
        )
    try:
        yield
    except BaseException as error:
        announce.settle(error.__context__ if isinstance(error.__context__, MileageError) else error)
        raise
    announce.settle(None)
