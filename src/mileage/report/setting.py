"""What the runs of an arm ran with, for a reader who has to judge whether two arms are alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from mileage._records import ReadRecord
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.rows import Run
from mileage.ledger.runs import RecordedRun
from mileage.metrics import dollars, duration
from mileage.text import plain

NOT_STATED = "not stated"
MOST_DIFFERENCES = 20
"""More settings than this are counted and not listed."""
_LONGEST = 60
_FACTS = ("framework", "algorithm", "training env", "settings on record")


def setting(runs: Sequence[RecordedRun]) -> dict[str, str]:
    """Price, machine, threads, unbilled work and step budget of the runs; all values where they differ."""
    rows = [run.run for run in runs]
    found: dict[str, Callable[[Run], str]] = {
        "price": _price,
        "machine": _machine,
        "threads": lambda run: _spelled(machine_record(run).get("threads")),
        "work before the clock": _before_the_clock,
        "step budget": lambda run: NOT_STATED if run.step_budget is None else f"{run.step_budget:,} {run.step_rule}",
    }
    return {name: _all(read(row) for row in rows) for name, read in found.items()}


def config_differences(a: Sequence[RecordedRun], b: Sequence[RecordedRun]) -> Mapping[str, tuple[str, str]]:
    """Hyperparameters, environment settings and code that are not the same on both sides, with both values."""
    sides = [[_configured(run) for run in side] for side in (a, b)]
    keys = dict.fromkeys(key for side in sides for values in side for key in values)
    if not all(any(run.config for run in side) for side in (a, b)):  # nothing to hold one side's settings against
        keys = dict.fromkeys(_FACTS)
    both = {key: tuple(_all(_spelled(values.get(key)) for values in side) for side in sides) for key in sorted(keys)}
    return {key: (first, second) for key, (first, second) in both.items() if first != second}


def _configured(run: RecordedRun) -> ReadRecord:
    """The config of a run, flat, and what else decides what it learns from."""
    row = run.run
    facts = dict(zip(_FACTS, (row.framework, row.algorithm, row.env_id, len(run.config)), strict=True))
    return {**facts, **dict(_flat("", run.config))}


def _flat(prefix: str, values: ReadRecord) -> Iterable[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _price(run: Run) -> str:
    if run.price_usd_per_hour <= 0:
        return NO_PRICE
    instance = f" ({plain(run.instance, 40)})" if run.instance else ""
    return f"{dollars(run.price_usd_per_hour)}/h × {run.instances}{instance}"


def machine_record(run: Run) -> ReadRecord:
    """What a run knows of its machine."""
    found = json.loads(run.machine)
    return found if isinstance(found, dict) else {}


def _machine(run: Run) -> str:
    record = machine_record(run)
    if not record.get("cpu"):
        return plain(run.machine_id, 40) or NOT_STATED
    gpus = "".join(f" + {name}" for name in record.get("gpus") or ())
    return plain(f"{record.get('cores')} × {record['cpu']}{gpus}", _LONGEST)


def worked_before(run: Run) -> float | None:
    """CPU seconds that a run's process had worked before its clock started, outside other runs; None if unknown."""
    found = machine_record(run).get("cpu_seconds_before_clock")
    return float(found) if isinstance(found, int | float) else None


def _before_the_clock(run: Run) -> str:
    seconds = worked_before(run)
    return NOT_STATED if seconds is None else f"{duration(seconds)} of CPU" if seconds > 0 else "none"


def _spelled(value: object) -> str:
    if value is None or value == "":
        return NOT_STATED
    return plain(value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str), _LONGEST)


def _all(values: Iterable[str]) -> str:
    different = list(dict.fromkeys(values))
    return " | ".join(different[:3]) + (f" | … ({len(different)} values)" if len(different) > 3 else "")
