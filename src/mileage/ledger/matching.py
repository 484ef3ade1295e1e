"""Which runs may be compared: construct matching with a declared contract.

Two sets of runs may be compared only if every field of the contract agrees over all of them. A mismatch is an error
that shows each field with both values; a field that is explicitly allowed to differ labels everything that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mileage._errors import UnknownNameError, UnmatchedError
from mileage.ledger.rows import Run

CONTRACT: dict[str, Callable[[Run], object]] = {
    "panel_id": lambda run: run.panel_id,
    "target": lambda run: run.target,
    "success": lambda run: run.success,
    "accounting_window": lambda run: run.accounting_window,
    "step_rule": lambda run: run.step_rule,
    "machine": lambda run: run.machine_id,
}
"""Field of the contract and how to read it from a run. `machine` may differ where every run has an explicit price."""


@dataclass(frozen=True)
class Difference:
    """A field of the contract on which the two sets disagree, with all values of each set."""

    field: str
    a: tuple[object, ...]
    b: tuple[object, ...]


@dataclass(frozen=True)
class Matching:
    """The outcome of the check: empty, or what was explicitly allowed to differ."""

    allowed: tuple[Difference, ...] = ()

    @property
    def label(self) -> str | None:
        """What every output has to carry, or None if the sets match."""
        if not self.allowed:
            return None
        return "UNMATCHED: " + ", ".join(difference.field for difference in self.allowed)


def check_matched(a: Sequence[Run], b: Sequence[Run], allow: Collection[str] = ()) -> Matching:
    """Refuse a comparison of `a` with `b` that the contract does not cover.

    Args:
        a: runs of the first set, not empty.
        b: runs of the second set, not empty.
        allow: fields that may differ; the result then carries a label.
    """
    for field in allow:
        if field not in CONTRACT:
            raise UnknownNameError("field to leave unmatched", field, CONTRACT)
    found = differences(a, b)
    refused = [difference for difference in found if difference.field not in allow]
    if refused:
        fields = ", ".join(difference.field for difference in refused)
        raise UnmatchedError(
            f"these runs may not be compared, because they differ in {fields}:\n{difference_table(refused)}\n"
            f"match them, or say --allow-unmatched {refused[0].field} and accept the label"
        )
    return Matching(tuple(found))


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[Difference]:
    """The fields of the contract on which not all runs agree."""
    found = []
    for field, read in CONTRACT.items():
        if field == "machine" and all(run.price_usd_per_hour > 0 for run in (*a, *b)):
            continue
        values_a, values_b = _values(a, read), _values(b, read)
        if len({*values_a, *values_b}) > 1:
            found.append(Difference(field, values_a, values_b))
    if any(run.panel_id is None for run in (*a, *b)) and not any(d.field == "panel_id" for d in found):
        # Nothing was examined, so nothing is known to be equal.
        found.insert(0, Difference("panel_id", (None,), (None,)))
    return found


def _values(runs: Sequence[Run], read: Callable[[Run], object]) -> tuple[object, ...]:
    return tuple(dict.fromkeys(read(run) for run in runs))


def difference_table(found: Sequence[Difference]) -> str:
    """The differing fields as an aligned plain-text table."""
    rows = [("field", "A", "B"), *((d.field, _spelled(d.a), _spelled(d.b)) for d in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


def _spelled(values: tuple[object, ...], longest: int = 40) -> str:
    from mileage.text import plain

    texts = ["none" if value is None else plain(str(value)) for value in values]
    shown = [text if len(text) <= longest else text[: longest - 1] + "…" for text in texts[:3]]
    return " | ".join(shown) + (" | …" if len(texts) > 3 else "")
