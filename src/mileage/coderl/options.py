"""The options of a pool, checked: what cannot mean anything is refused by its name, what can be read is normalised."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mileage._errors import UnknownNameError, UsageError, require
from mileage.coderl.corpus import PatchVerdict

Choice = TypeVar("Choice", bound=StrEnum)
SMALLEST_BYTES = 1 << 20


def choice(name: str, value: object, known: type[Choice]) -> Choice:
    """`value` as a member of `known`, given as such or by its name."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    try:
        return known(value)
    except ValueError:
        raise UnknownNameError(name, value, [str(member) for member in known]) from None


def texts(name: str, values: object) -> tuple[str, ...]:
    """`values` as a tuple of texts; one text alone would be taken for its letters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"{name} must be a tuple of texts, such as ({values!r},), not {values!r}")
    found = tuple(values)
    for value in found:
        require(isinstance(value, str | os.PathLike) and str(value) != "", f"each of {name}", value, "a text")
    return tuple(str(value) for value in found)


def flag(name: str, value: object) -> bool:
    """`value`, which must be true or false: "no" would count as true."""
    require(isinstance(value, bool), name, value, "True or False")
    return bool(value)


def patterns(name: str, values: object) -> tuple[str, ...]:
    """Glob patterns of paths in a project, without a leading ./ and a trailing /."""
    found = []
    for value in texts(name, values):
        pure = PurePosixPath(value)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UsageError(f"{name} {value!r} must be a path or pattern inside the project, relative to its root")
        found.append(str(pure))
    return tuple(found)


def absolute_paths(name: str, values: object) -> tuple[str, ...]:
    """Paths of this machine that exist."""
    found = texts(name, values)
    for value in found:
        require(os.path.isabs(value), f"each of {name}", value, "an absolute path")
        require(os.path.lexists(value), f"each of {name}", value, "a path that exists")
    return found


def reward_table(values: object) -> dict[PatchVerdict, float]:
    """The reward of each verdict; an infrastructure failure has none, so it cannot be given one."""
    if not isinstance(values, Mapping):
        raise UsageError(f"rewards must map verdicts to numbers, not {values!r}")
    table: dict[PatchVerdict, float] = {}
    for key, value in values.items():
        verdict = choice("verdict in rewards", key, PatchVerdict)
        if verdict is PatchVerdict.INFRA_ERROR:
            raise UsageError(
                "rewards cannot name 'infra-error': it says nothing about a candidate, so it has no reward"
            )
        table[verdict] = number(f"the reward of {str(verdict)!r}", value, math.isfinite, "a finite number")
    return table


def number(name: str, value: object, fits: Callable[[float], bool], need: str) -> float:
    """`value`, if it is a number that `fits`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_number and fits(float(value)), name, value, need)  # type: ignore[arg-type]
    return value  # type: ignore[return-value]


def at_least(name: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fits, name, value, f"a whole number of at least {least}")


def path(name: str, value: object) -> Path:
    """`value` as a path."""
    require(isinstance(value, str | os.PathLike) and str(value) != "", name, value, "a path")
    return Path(value)  # type: ignore[arg-type]
