"""Draws the cost of sampling over the number of entries held, from the result of `replay.py`.

python benchmarks/replay_plot.py benchmarks/results/replay.json docs/images/replay-sampling.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 120, 40, 48
COLOURS = {"uniform": "#1f6feb", "prioritized": "#bf5700"}
NAMES = {"uniform": "uniform", "prioritized": "prioritised"}
STYLE = "font-family:sans-serif;font-size:12px;fill:#57606a"


def sampling_cost(rows: Sequence[dict[str, Any]]) -> str:
    """An SVG of nanoseconds per sampled entry; the horizontal axis is logarithmic, the vertical starts at 0."""
    exponents = [math.log10(row["entries"]) for row in rows]
    top = _round_up(max(max(row["ns_per_sample"].values()) for row in rows))

    def x(exponent: float) -> float:
        share = (exponent - exponents[0]) / (exponents[-1] - exponents[0])
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(ns: float) -> float:
        return round(HEIGHT - BOTTOM - ns / top * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        ' aria-label="Nanoseconds per sampled entry by entries held">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" style="{STYLE}">ns per sampled entry, batches of 256, observation size 4</text>',
    ]
    for step in range(5):
        ns = top * step / 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ns)}" y2="{y(ns)}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(ns) + 4}" text-anchor="end" style="{STYLE}">{ns:g}</text>')
    for row, exponent in zip(rows, exponents, strict=True):
        label = f"{row['entries']:,}"
        parts.append(f'<text x="{x(exponent)}" y="{HEIGHT - 24}" text-anchor="middle" style="{STYLE}">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle" style="{STYLE}">entries held</text>')
    for kind, colour in COLOURS.items():
        points = [(x(e), y(row["ns_per_sample"][kind])) for row, e in zip(rows, exponents, strict=True)]
        line = " ".join(f"{px},{py}" for px, py in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px}" cy="{py}" r="3" fill="{colour}"/>' for px, py in points]
        px, py = points[-1]
        parts.append(f'<text x="{px + 8}" y="{py + 4}" style="{STYLE};fill:{colour}">{NAMES[kind]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _round_up(value: float) -> float:
    """The next round number: 1, 2, 4 or 8 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in (1, 2, 4, 8, 10) if step * scale >= value)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(sampling_cost(json.loads(Path(sys.argv[1]).read_text())["data"]["scaling"]))
