"""Which runs are meant: `20260901-1422`, `my-name`, `algorithm=ppo,env_id=CartPole-v1,state=reached`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mileage._errors import UnknownNameError, UsageError

_INTEGERS = ("seed", "batch_size", "step_budget", "instances")
_TEXTS = (
    "name", "algorithm", "env_id", "framework", "panel_id", "target", "host", "instance", "git_revision", "machine_id",
    "launched_by", "parent_run_id", "mileage_version",
)  # fmt: skip
FIELDS = (*_TEXTS, *_INTEGERS, "state")
_LARGEST = 2**63 - 1
_ID_PREFIX = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]*")


@dataclass(frozen=True)
class Selector:
    """A set of runs: all conditions hold."""

    fields: tuple[tuple[str, str | int], ...] = ()
    run_ids: tuple[str, ...] = ()
    """Run ids or the beginnings of run ids; any of them."""
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Read a run id (or the beginning of one), several with commas, or `field=value` with commas."""
        if not text.strip():
            raise UsageError("an empty selection: give a run id, a name or field=value")
        parts = [part.strip() for part in text.split(",")]
        if all(_ID_PREFIX.fullmatch(part) for part in parts):
            return cls(run_ids=tuple(parts))
        if all("=" in part for part in parts):
            return cls(fields=tuple(_field(part) for part in parts))
        return cls(name=text)


def _field(part: str) -> tuple[str, str | int]:
    name, value = (side.strip() for side in part.split("=", 1))
    if name not in FIELDS:
        raise UnknownNameError("field of a run", name, FIELDS)
    if name not in _INTEGERS:
        return name, value
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"{name} is a whole number, so it cannot be {value[:80]!r}") from None
    if not -_LARGEST <= number <= _LARGEST:
        raise UsageError(f"{name} is a whole number that a database can hold, so it cannot be {value[:80]!r}")
    return name, number
