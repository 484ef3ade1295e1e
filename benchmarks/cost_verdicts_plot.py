"""Draws the result of `cost_verdicts.py`: a dot per cell of the grid, a line where the promise ends.

python benchmarks/cost_verdicts_plot.py benchmarks/results/cost_verdicts.json docs/images/cost-verdicts.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, ROW, LEFT, GAP, TOP = 900, 14, 150, 60, 56
COLOURS = {"known": "#1f6feb", "unknown": "#bf5700", "different": "#8250df"}
STYLE = "font-family:sans-serif;font-size:11px;fill:#57606a"


def dots(result: dict[str, Any]) -> str:
    """An SVG of two charts: coverage of the expected cost's interval, and false verdicts between equal arms."""
    grid = result["grid"]
    names = list(dict.fromkeys((row["times"], row["n"]) for row in grid))
    height = TOP + ROW * len(names) + 40
    wide = (WIDTH - LEFT - GAP - 20) / 2
    covered = [(row, row["coverage"]) for row in grid if "coverage" in row]
    judged = [(row, row["false_verdicts"]) for row in grid]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' aria-label="Coverage and false verdicts of every cell">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for i, (times, n) in enumerate(names):
        y = TOP + ROW * i + 4
        parts.append(f'<text x="{LEFT - 8}" y="{y}" text-anchor="end" style="{STYLE}">{times}, n = {n}</text>')
    parts += _chart(covered, names, (LEFT, wide), (0.85, 1.0), 0.90, "95 % interval of the expected cost covers")
    parts += _chart(judged, names, (LEFT + wide + GAP, wide), (0.0, 0.10), 0.05, "equal arms called different")
    for i, (name, colour) in enumerate(COLOURS.items()):
        parts.append(f'<circle cx="{LEFT + 170 * i}" cy="{height - 12}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 8 + 170 * i}" y="{height - 8}" style="{STYLE}">budget {name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(
    cells: Sequence[tuple[dict[str, Any], float]],
    names: list[tuple[str, int]],
    place: tuple[float, float],
    span: tuple[float, float],
    limit: float,
    title: str,
) -> list[str]:
    left, wide = place
    low, high = span
    bottom = TOP + ROW * len(names)

    def x(value: float) -> float:
        return round(left + (min(max(value, low), high) - low) / (high - low) * wide, 1)

    parts = [f'<text x="{left}" y="18" style="{STYLE};font-weight:bold">{title}</text>']
    for step in range(6):
        value = low + (high - low) * step / 5
        parts.append(f'<text x="{x(value)}" y="36" text-anchor="middle" style="{STYLE}">{100 * value:.0f} %</text>')
        parts.append(f'<line x1="{x(value)}" x2="{x(value)}" y1="42" y2="{bottom}" stroke="#eaeef2"/>')
    parts.append(f'<line x1="{x(limit)}" x2="{x(limit)}" y1="42" y2="{bottom}" stroke="#cf222e"/>')
    for row, value in cells:
        y = TOP + ROW * names.index((row["times"], row["n"]))
        colour = COLOURS.get(row["budget"], COLOURS["known"])
        parts.append(f'<circle cx="{x(value)}" cy="{y}" r="2.2" fill="{colour}" fill-opacity="0.6"/>')
    return parts


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(dots(json.loads(Path(sys.argv[1]).read_text())))
