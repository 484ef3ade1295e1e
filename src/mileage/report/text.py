"""Charts of characters, for a terminal: sparklines and a bar of phases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mileage.metrics import percent
from mileage.report.bars import ordered_phases

_LEVELS = "▁▂▃▄▅▆▇█"
_FILLS = "█▓▒░▚▞▙▟▜▛▖▘"


def sparkline(values: Sequence[float | None], width: int = 40) -> str:
    """Values as a line of characters, from lowest to highest; a value that is not there is a space."""
    thinned = _thinned(values, width)
    found = [value for value in thinned if value is not None and math.isfinite(value)]
    if not found:
        return ""
    low, high = min(found), max(found)
    top = len(_LEVELS) - 1

    def level(value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return " "
        return _LEVELS[round(top * (value - low) / (high - low)) if high > low else top]

    return "".join(level(value) for value in thinned)


def _thinned(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` of the values at even distances, the last one included."""
    if len(values) <= width:
        return list(values)
    return [values[round((i + 1) * len(values) / width) - 1] for i in range(width)]


def phase_bar(phases: Mapping[str, float], width: int = 60) -> tuple[str, str]:
    """A bar divided in proportion to the phases' seconds, and a line that says which part is which.

    Cells are given by largest remainder, so that the bar is always as long as `width`.
    """
    total = math.fsum(phases.values())
    if total <= 0 or width < 1:
        return "", ""
    order = ordered_phases([phases])
    exact = {name: width * phases[name] / total for name in order}
    cells = {name: math.floor(share) for name, share in exact.items()}
    for name in sorted(order, key=lambda each: cells[each] - exact[each])[: width - sum(cells.values())]:
        cells[name] += 1
    fills = {name: _FILLS[index % len(_FILLS)] for index, name in enumerate(order)}
    said = (f"{fills[name]} {name} {percent(phases[name] / total)}" for name in order if cells[name])
    return "".join(fills[name] * cells[name] for name in order), "  ".join(said)
