"""The picture of the layers: drawn from the import graph as it is, and nothing overlaps."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise

import build_layers
from build_layers import Graph

SMALL = Graph(
    rows=[["cli"], ["training", "coderl"], ["kernels", "ledger"], ["_errors"]],
    modules={"cli": 2, "training": 3, "coderl": 1, "kernels": 9, "ledger": 4, "_errors": 1},
    lines={"cli": 200, "training": 900, "coderl": 5000, "kernels": 6000, "ledger": 300, "_errors": 60},
    imports={"cli training": 4, "cli kernels": 1, "training kernels": 30, "coderl ledger": 2},
)


def test_the_picture_shows_the_import_graph() -> None:
    picture = build_layers.TARGET.read_text()
    drawn = build_layers.drawn_from(picture)
    assert build_layers.stale(drawn, build_layers.graph()) == []
    assert build_layers.draw(drawn) == picture, "run 'make docs'"


def test_every_import_is_a_line_and_every_package_a_box() -> None:
    picture = build_layers.draw(SMALL)
    assert picture.count('<path class="wire') == len(SMALL.imports)
    assert "<title>training imports kernels: 30</title>" in picture
    assert all(f">{name}</text>" in picture for name in SMALL.lines)
    assert build_layers.drawn_from(picture) == SMALL


def test_boxes_do_not_overlap_and_stay_inside() -> None:
    boxes = build_layers.place(SMALL)
    for row in SMALL.rows:
        there = sorted((boxes[name] for name in row), key=lambda box: box.x)
        assert there[0].x >= 0
        assert there[-1].x + there[-1].width <= build_layers.WIDTH
        assert all(a.x + a.width < b.x for a, b in pairwise(there))


def test_lines_pass_between_boxes() -> None:
    boxes = build_layers.place(SMALL)
    (path,) = (path for a, b, _, path in build_layers.wires(SMALL, boxes) if (a, b) == ("cli", "kernels"))
    (x,) = (float(x) for x in re.findall(r"L([\d.]+)", path))
    assert all(not box.x <= x <= box.x + box.width for box in boxes.values() if box.row == 1)


def test_what_makes_a_picture_stale() -> None:
    def changed(**changes: object) -> list[str]:
        return build_layers.stale(SMALL, dataclasses.replace(SMALL, **changes))  # type: ignore[arg-type]

    assert changed(lines={**SMALL.lines, "kernels": 6500}) == []  # less than a tenth
    assert changed(lines={**SMALL.lines, "kernels": 6700}) == ["lines of kernels: 6000, now 6700"]
    assert changed(imports={**SMALL.imports, "cli ledger": 1}) == ["imports of cli ledger: 0, now 1"]
    assert changed(rows=[["cli"], ["training"], ["coderl"], ["kernels", "ledger"], ["_errors"]])
