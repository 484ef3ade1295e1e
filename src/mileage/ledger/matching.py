"""What may be compared, field by field, and recorded runs judged by another target.

Two sets of runs may be compared only if every field of the rules agrees over all of them. A mismatch is an error
that shows each field with both values, and of a panel or a machine what is different about it; a field that is
explicitly allowed to differ labels everything that follows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from mileage.errors import UnknownNameError, UnmatchedError, UsageError
from mileage.ledger.panels import Aggregate
from mileage.ledger.rows import Checkpoint, End, EndState, Episode, Run
from mileage.ledger.runs import RecordedRun, evaluation_of, finite
from mileage.ledger.summary import Progress
from mileage.ledger.targets import Target
from mileage.records import ReadRecord

RULES: dict[str, Callable[[Run], object]] = {
    "panel_id": lambda run: run.panel_id,
    "target": lambda run: run.target,
    "success": lambda run: run.success,
    "accounting_window": lambda run: run.accounting_window,
    "step_rule": lambda run: run.step_rule,
    "machine": lambda run: run.machine_id,
}
"""A field of the rules and how to read it from a run. `machine` may differ where every run has an explicit price."""

_PARTS: dict[str, tuple[str, Callable[[Run], str | None]]] = {
    "panel_id": ("panel", lambda run: run.panel),
    "machine": ("machine", lambda run: run.machine),
}
"""Fields that are hashes: what the parts are called, and the JSON they are the hash of."""
_VERSION = "env_version"
_NOT_STATED = "not stated"
_LONGEST = 64
_HASH = 8
"""Digits of a hash that are shown."""


@dataclass(frozen=True)
class Difference:
    """A field of the rules on which the two sets disagree, with all values of each set."""

    field: str
    a: tuple[object, ...]
    b: tuple[object, ...]
    parts: tuple[Difference, ...] = ()
    """Of a field that is a hash: what is different about what was hashed."""


@dataclass(frozen=True)
class Matching:
    """The outcome of the check: empty, or what was explicitly allowed to differ."""

    allowed: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What agrees only as far as it was said."""

    @property
    def label(self) -> str | None:
        """What every output has to carry, or None if the sets match."""
        if not self.allowed:
            return None
        return "UNMATCHED: " + ", ".join(difference.field for difference in self.allowed)


def check_matched(a: Sequence[Run], b: Sequence[Run], allow: Collection[str] = ()) -> Matching:
    """Refuse a comparison of `a` with `b` that the rules do not cover.

    Args:
        a: runs of the first set, not empty.
        b: runs of the second set, not empty.
        allow: fields that may differ; the result then carries a label.
    """
    for name in allow:
        if name not in RULES:
            raise UnknownNameError("field to leave unmatched", name, RULES)
    found = differences(a, b)
    refused = [difference for difference in found if difference.field not in allow]
    if refused:
        fields = ", ".join(difference.field for difference in refused)
        raise UnmatchedError(
            f"these runs may not be compared, because they differ in {fields}:\n{difference_table(refused)}\n"
            f"match them, or say {' '.join(f'--allow-unmatched {each.field}' for each in refused)} and accept the label"
        )
    return Matching(tuple(found), _notes(a, b))


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[Difference]:
    """The fields of the rules on which not all runs agree."""
    found = []
    for name, read in RULES.items():
        if name == "machine" and all(run.price_usd_per_hour > 0 for run in (*a, *b)):
            continue
        values_a, values_b = _values(a, read), _values(b, read)
        if len({*values_a, *values_b}) > 1:
            parts = _part_differences(name, a, b)
            if not _unstated_version(name, parts):
                found.append(Difference(name, values_a, values_b, parts))
    if any(run.panel_id is None for run in (*a, *b)) and not any(d.field == "panel_id" for d in found):
        # Nothing was examined, so nothing is known to be equal.
        found.insert(0, Difference("panel_id", (None,), (None,)))
    return found


def _values(runs: Sequence[Run], read: Callable[[Run], object]) -> tuple[object, ...]:
    return tuple(dict.fromkeys(read(run) for run in runs))


def _part_differences(name: str, a: Sequence[Run], b: Sequence[Run]) -> tuple[Difference, ...]:
    """What is different about panels or machines; nothing where one of them is not on record."""
    if name not in _PARTS:
        return ()
    title, read = _PARTS[name]
    sides = [[_record(read(run)) for run in side] for side in (a, b)]
    if any(record is None for side in sides for record in side):
        return ()
    keys = dict.fromkeys(key for side in sides for record in side for key in record or {})
    found = []
    for key in keys:
        one, other = (tuple(dict.fromkeys(_short(key, (record or {}).get(key)) for record in side)) for side in sides)
        if len({*one, *other}) > 1:
            found.append(Difference(f"{title}.{key}", one, other))
    return tuple(found)


def _record(text: str | None) -> ReadRecord | None:
    try:
        found: Any = json.loads(text) if text else None
    except (json.JSONDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _short(key: str, value: object) -> str:
    """A part as one word or a few: of many seeds, how many and which."""
    if key == "seeds" and isinstance(value, list):
        digest = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]
        return f"{len(value)} seeds from {value[0]} ({digest})" if value else "none"
    if isinstance(value, str):
        return value or _NOT_STATED
    return "none" if value is None else json.dumps(value, sort_keys=True)


def _unstated_version(name: str, parts: Sequence[Difference]) -> bool:
    """Whether panels differ in nothing but that some do not state the version of their environment.

    A loop of one's own does not know the version that `mileage train` writes down. One that states another differs.
    """
    if name != "panel_id" or [part.field for part in parts] != [f"panel.{_VERSION}"]:
        return False
    return len({*parts[0].a, *parts[0].b} - {_NOT_STATED}) <= 1


def _notes(a: Sequence[Run], b: Sequence[Run]) -> tuple[str, ...]:
    parts = _part_differences("panel_id", a, b)
    if not _unstated_version("panel_id", parts):
        return ()
    sides = [name for name, values in (("A", parts[0].a), ("B", parts[0].b)) if _NOT_STATED in values]
    return (f"the panel of {' and '.join(sides)} does not state env_version: that it is the same is taken on trust",)


def difference_table(found: Sequence[Difference]) -> str:
    """The differing fields as an aligned plain-text table: what people can read first, then the hashes of it."""
    flat = [each for difference in found for each in (*difference.parts, difference)]
    lengths = [_HASH if each.field in _PARTS else _LONGEST for each in flat]
    rows = [("field", "A", "B")]
    rows += [(d.field, _spelled(d.a, most), _spelled(d.b, most)) for d, most in zip(flat, lengths, strict=True)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _spelled(values: tuple[object, ...], longest: int = _LONGEST) -> str:
    from mileage.tables import plain

    texts = ["none" if value is None else plain(str(value)) for value in values]
    cut = longest - 1 if longest > _HASH else longest
    shown = [text if len(text) <= longest else text[:cut] + ("…" if longest > _HASH else "") for text in texts[:3]]
    return " | ".join(shown) + (" | …" if len(texts) > 3 else "")


# --- Judging a recorded run by another target than its own, from the episodes that were played ---
_JUDGED = (EndState.REACHED, EndState.NOT_REACHED, EndState.FINISHED, EndState.CLAIMED)


def rejudged(recorded: RecordedRun, target: Target) -> RecordedRun:
    """The run as if `target` had been its own; its checkpoints and episodes must have been read.

    Nothing is written. Without episodes, as in what was imported from another tool, a checkpoint meets no target.
    """
    if target.aggregate is Aggregate.SUCCESS_RATE and recorded.run.success is None:
        raise UsageError(f"target {target} cannot judge run {recorded.run_id}: its panel defines no success")
    played: dict[int, list[Episode]] = {}
    for episode in recorded.episodes:
        played.setdefault(episode.seq, []).append(episode)
    checkpoints = tuple(_judged(row, target, played.get(row.seq, [])) for row in recorded.checkpoints)
    return dataclasses.replace(
        recorded,
        run=recorded.run._replace(target=str(target)),
        checkpoints=checkpoints,
        end=None if recorded.end is None else _end(recorded.end, Progress.of(checkpoints)),
    )


def stopped_short(recorded: RecordedRun, target: Target) -> bool:
    """Whether the run ended because it had met its own target, and had not met `target` by then."""
    if recorded.end is None or recorded.target is None or Target.parse(recorded.target) == target:
        return False
    return recorded.state == EndState.REACHED and not rejudged(recorded, target).reached


def _judged(row: Checkpoint, target: Target, played: list[Episode]) -> Checkpoint:
    if not played:
        return row._replace(target_value=None, target_met=None)
    evaluation = evaluation_of(sorted(played, key=lambda episode: episode.episode))
    return row._replace(target_value=finite(target.value(evaluation)), target_met=target.met(evaluation))


def _end(end: End, progress: Progress) -> End:
    state = end.state
    if state in _JUDGED:
        state = (EndState.REACHED if progress.first_reached else EndState.NOT_REACHED).value
    return end._replace(state=state, **progress.judged())
