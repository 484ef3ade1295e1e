"""Every error mileage raises on purpose.

MileageError                     base; the CLI prints it as one sentence and exits with 2
├── UsageError (ValueError)      an argument, option or hyperparameter that cannot be used
├── UnknownNameError (UsageError) a name that is not registered: env, algorithm, preset, instance
├── MissingExtraError            a feature whose optional dependency is not installed
├── CheckpointError              a checkpoint that cannot be read, written or resumed
├── EnvCompileError              a user's environment function that Numba cannot compile; the CLI exits with 1
├── EnvError (RuntimeError)      a user's environment that failed while it ran; the CLI exits with 1
├── DivergedError                training whose numbers are no longer finite; the CLI exits with 1
├── LedgerError                  the ledger cannot be opened, read or written
│   ├── SchemaError              the database was written by a newer mileage
│   └── LedgerMovedError         the database was removed, replaced or emptied while a run wrote to it
├── UnmatchedError               two sets of runs that may not be compared
├── BuildError                   a project that rl-bench cannot copy, detect or build
│   ├── InfraError               the machine, not the build, failed: launcher, mounts, control groups, disk
│   └── ChangeError              changes that cannot be written into a tree
└── InterruptError               a command that a user ended before its time; the CLI exits with 130
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Found = TypeVar("Found")

_LISTED = 20
"""So many names at most are told to somebody who wrote another."""


class MileageError(Exception):
    """Base of all errors raised on purpose; its text is one sentence that says what to do."""

    exit_code = 2
    """Of a command that ends with it."""


class UsageError(MileageError, ValueError):
    """An argument, option or hyperparameter that cannot be used."""


class UnknownNameError(UsageError):
    """A name that is not registered."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name = kind, name
        names = sorted(known)
        if near := difflib.get_close_matches(name, names, n=1):
            hint = f"did you mean {near[0]!r}?"
        elif len(names) <= _LISTED:
            hint = f"known: {', '.join(names)}."
        else:
            hint = (
                f"the nearest of {len(names)} are {', '.join(difflib.get_close_matches(name, names, n=3, cutoff=0))}."
            )
        super().__init__(f"unknown {kind} {name!r}: {hint}")


def looked_up(kind: str, name: str, known: Mapping[str, Found]) -> Found:
    """What `known` has under `name`; UnknownNameError if nothing."""
    if name not in known:
        raise UnknownNameError(kind, name, known)
    return known[name]


def require(condition: bool, name: str, value: object, need: str) -> None:
    """Raise unless `condition`: "`name` must be `need`, not `value`"."""
    if not condition:
        raise UsageError(f"{name} must be {need}, not {value!r}")


class MissingExtraError(MileageError, ImportError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: {install_command(extra)}")


def install_command(extra: str) -> str:
    """What installs an extra from where mileage itself was installed from, into the environment that is in use."""
    import json
    import os
    import sys
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(metadata.distribution("mileage").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    pip = f"{sys.executable} -m pip install"
    if "vcs_info" in origin:
        return f"{pip} 'mileage[{extra}] @ {origin['vcs_info']['vcs']}+{origin['url']}'"
    source = unquote(urlsplit(origin.get("url", "")).path)
    if "dir_info" in origin and os.path.isdir(source):
        editable = "--editable " if origin["dir_info"].get("editable") else ""
        return f"{pip} {editable}'{source}[{extra}]'"
    return f"pip install 'mileage[{extra}]'"


class CheckpointError(MileageError):
    """A checkpoint that cannot be read, written or resumed."""


class EnvCompileError(MileageError):
    """A user's environment function that Numba cannot compile."""

    exit_code = 1


class EnvError(MileageError, RuntimeError):
    """A user's environment that failed while it ran."""

    exit_code = 1


class DivergedError(MileageError):
    """Training whose numbers are no longer finite."""

    exit_code = 1


class LedgerError(MileageError):
    """The ledger cannot be opened, read or written."""


class SchemaError(LedgerError):
    """The database was written by a newer mileage."""


class LedgerMovedError(LedgerError):
    """The database was removed, replaced or emptied while a run wrote to it."""


class UnmatchedError(MileageError):
    """Two sets of runs that may not be compared."""


class BuildError(MileageError):
    """A project that rl-bench cannot copy, detect or build."""


class InfraError(BuildError):
    """The machine, not the build, failed: launcher, mounts, control groups, disk."""


class ChangeError(BuildError):
    """Changes that cannot be written into a tree."""


class InterruptError(MileageError):
    """A command that a user ended before its time."""

    exit_code = 130
