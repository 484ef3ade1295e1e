"""Draw docs/images/layers.svg from the import graph: a box for each package, a row for each layer, a line for imports.

`make docs` draws it anew; `--check` says whether it is still true. The picture carries the figures that it was drawn
from. It is stale when a package, a layer or an arrow has come or gone, or a number has moved by more than a tenth, so
that not every change of a line asks for a new picture.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from import_graph import layers, read  # noqa: E402

TARGET = ROOT / "docs" / "images" / "layers.svg"

# Which of the four parts a package belongs to; one that is not here belongs to all of them.
PARTS = {
    "engine": ["kernels", "envs", "buffers", "policies", "algorithms", "training"],
    "ledger": ["measure", "ledger", "report"],
    "profiler": ["profiling"],
    "code RL": ["coderl"],
}

WIDTH, MARGIN = 940, 36
BOX_HEIGHT, ROW_GAP, BOX_GAP, LONE_GAP, LANE = 54, 50, 44, 6, 3.4
PIXELS_PER_LINE, MIN_BOX = 0.042, 144
FONT = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #636c76; --edge: #8c959f;
        --engine: #ddf4ff; --engine-line: #0969da; --ledger: #fff8c5; --ledger-line: #9a6700;
        --profiler: #dafbe1; --profiler-line: #1a7f37; --code: #fbefff; --code-line: #8250df;
        --all: #f6f8fa; --all-line: #59636e; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --edge: #6e7681;
          --engine: #0c2d5c; --engine-line: #58a6ff; --ledger: #3b2a06; --ledger-line: #d29922;
          --profiler: #0f3320; --profiler-line: #3fb950; --code: #2f1c52; --code-line: #bc8cff;
          --all: #161b22; --all-line: #9198a1; } }
  .paper { fill: var(--paper); }
  .name { font-weight: 600; font-size: 15px; fill: var(--ink); text-anchor: middle; }
  .small { font-size: 9.5px; }
  .size { font-size: 11px; fill: var(--soft); text-anchor: middle; }
  .note { font-size: 12px; fill: var(--soft); }
  .wire { fill: none; stroke: var(--edge); stroke-linecap: round; opacity: 0.6; }
  .box { stroke-width: 1.2; }
  .engine { fill: var(--engine); stroke: var(--engine-line); }
  .ledger { fill: var(--ledger); stroke: var(--ledger-line); }
  .profiler { fill: var(--profiler); stroke: var(--profiler-line); }
  .code { fill: var(--code); stroke: var(--code-line); }
  .all { fill: var(--all); stroke: var(--all-line); }
  .wire.engine, .wire.ledger, .wire.profiler, .wire.code, .wire.all { fill: none; }
"""


@dataclass(frozen=True)
class Graph:
    """What the picture shows."""

    rows: list[list[str]]
    """Packages from the highest layer to the lowest; the last row holds the modules that stand alone."""
    modules: dict[str, int]
    lines: dict[str, int]
    imports: dict[str, int]
    """Imports from modules of one package of modules of another, by "from to"; those of lone modules are left out."""

    def edges(self) -> list[tuple[str, str, int]]:
        """From, to, number of imports; the strongest last, so that it is drawn on top."""
        found = [(*name.split(" "), number) for name, number in self.imports.items()]
        return sorted(((a, b, n) for a, b, n in found), key=lambda edge: (edge[2], edge[0], edge[1]))


def graph() -> Graph:
    """The graph of the package as it is."""
    modules = read(ROOT / "src" / "mileage")
    packages = {module.part for module in modules.values() if module.is_package and module.name.count(".") == 1}
    names = [[name.split(".")[1] for name in row] for row in layers(ROOT / "pyproject.toml")]
    rows = [[name for name in row if name in packages] for row in names]
    alone = [name for row in names for name in row if name not in packages]
    number = Counter(module.part for module in modules.values())
    lines = Counter[str]()
    imports = Counter[str]()
    for module in modules.values():
        lines[module.part] += module.lines
        for other in module.edges:
            there = modules[other].part
            if module.part in packages and there in packages and there != module.part:
                imports[f"{module.part} {there}"] += 1
    shown = [name for row in rows for name in row] + alone
    return Graph(
        [*(row for row in rows if row), alone],
        {name: number[name] for name in shown},
        {name: lines[name] for name in shown},
        dict(sorted(imports.items())),
    )


@dataclass
class Box:
    """Where a package stands in the picture."""

    name: str
    row: int
    x: float
    width: float

    @property
    def middle(self) -> float:
        """Its centre."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """Its upper edge."""
        return _row_top(self.row)

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.top + BOX_HEIGHT


def _row_top(row: int) -> float:
    return MARGIN + row * (BOX_HEIGHT + ROW_GAP)


def place(graph: Graph) -> dict[str, Box]:
    """Boxes, each row in the middle, each as wide as its package is long; ordered so that few lines cross."""
    rows = [list(row) for row in graph.rows]
    boxes = _placed(graph, rows)
    for _ in range(8):
        for row in rows[:-1]:
            row.sort(key=lambda name: (round(_pull(graph, boxes, name)), name))
            boxes = _placed(graph, rows)
    return boxes


def _placed(graph: Graph, rows: list[list[str]]) -> dict[str, Box]:
    boxes = {}
    for level, row in enumerate(rows):
        alone = level == len(rows) - 1
        gap = LONE_GAP if alone else BOX_GAP
        most = (WIDTH - 2 * MARGIN + gap) / len(row) - gap if alone else math.inf
        widths = [min(max(MIN_BOX, PIXELS_PER_LINE * graph.lines[name]), most) for name in row]
        x = (WIDTH - sum(widths) - gap * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            boxes[name] = Box(name, level, x, width)
            x += width + gap
    return boxes


def _pull(graph: Graph, boxes: dict[str, Box], name: str) -> float:
    """Where the packages that it is tied to would have it."""
    ties = [(boxes[b if a == name else a].middle, n) for a, b, n in graph.edges() if name in (a, b)]
    return sum(x * n for x, n in ties) / sum(n for _, n in ties) if ties else WIDTH / 2


def gaps(boxes: dict[str, Box], row: int) -> list[float]:
    """Where a line can pass a row without touching a box: between two boxes, or outside."""
    there = sorted((box for box in boxes.values() if box.row == row), key=lambda box: box.x)
    between = [(left.x + left.width + right.x) / 2 for left, right in pairwise(there)]
    return [there[0].x - BOX_GAP / 2, *between, there[-1].x + there[-1].width + BOX_GAP / 2]


def wires(graph: Graph, boxes: dict[str, Box]) -> Iterator[tuple[str, str, int, str]]:
    """From, to, imports and the path of each line, which passes the rows between through gaps."""
    out_ports = _ports(graph, boxes, start=True)
    in_ports = _ports(graph, boxes, start=False)
    lanes = _lanes(boxes, {edge: (out_ports[edge], in_ports[edge]) for edge in out_ports})
    for a, b, n in graph.edges():
        points = [(out_ports[a, b], boxes[a].bottom)]
        for row in range(boxes[a].row + 1, boxes[b].row):
            x = lanes[a, b, row]
            points += [(x, _row_top(row) - 4), (x, _row_top(row) + BOX_HEIGHT + 4)]
        points.append((in_ports[a, b], boxes[b].top))
        yield a, b, n, _curve(points)


def _lanes(
    boxes: dict[str, Box], ends: dict[tuple[str, str], tuple[float, float]]
) -> dict[tuple[str, str, int], float]:
    """Where each line passes each row, side by side with the others in the same gap, in the order of where it goes."""
    cables = defaultdict(list)
    for (a, b), (x0, x1) in ends.items():
        for row in range(boxes[a].row + 1, boxes[b].row):
            straight = x0 + (row - boxes[a].row) / (boxes[b].row - boxes[a].row) * (x1 - x0)
            gap = min(gaps(boxes, row), key=lambda x: (abs(x - straight), x))
            cables[row, gap].append((x1 + x0 / 1000, a, b))
    found = {}
    for (row, gap), lines in cables.items():
        step = min(LANE, (BOX_GAP - 8) / len(lines))
        for position, (_, a, b) in enumerate(sorted(lines)):
            found[a, b, row] = gap + step * (position - (len(lines) - 1) / 2)
    return found


def _ports(graph: Graph, boxes: dict[str, Box], start: bool) -> dict[tuple[str, str], float]:
    """Where each line leaves (or enters) its box, spread along the edge in the order of where it goes."""
    ports = {}
    for name, box in boxes.items():
        ends = [(a, b) for a, b, _ in graph.edges() if (a if start else b) == name]
        ends.sort(key=lambda edge: boxes[edge[1] if start else edge[0]].middle)
        room = box.width - 36
        for position, edge in enumerate(ends):
            ports[edge] = box.x + 18 + room * (position + 0.5) / len(ends)
    return ports


def _curve(points: list[tuple[float, float]]) -> str:
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y1 - y0) / 2
        path += (
            f" L{x1:.1f} {y1:.1f}"
            if x0 == x1
            else f" C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
        )
    return path


def part_of(package: str) -> str:
    """The class of a package's colours."""
    return next((part.split()[0] for part, names in PARTS.items() if package in names), "all")


def draw(graph: Graph) -> str:
    """The picture."""
    boxes = place(graph)
    height = _row_top(len(graph.rows) - 1) + BOX_HEIGHT + 86
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="{FONT}" role="img" '
        'aria-label="Packages in layers, and which imports which">',
        f"<metadata>{escape(json.dumps(asdict(graph)), quote=False)}</metadata>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height:.0f}" rx="10"/>',
    ]
    for a, b, n, path in wires(graph, boxes):
        title = f"<title>{a} imports {b}: {n}</title>"
        parts.append(
            f'<path class="wire {part_of(a)}" stroke-width="{0.7 + n**0.5 * 0.55:.1f}" d="{path}">{title}</path>'
        )
    parts += [_box(graph, box) for box in boxes.values()]
    parts += _legend(height - 48)
    return "\n".join([*parts, "</svg>", ""])


def _box(graph: Graph, box: Box) -> str:
    number, lines = graph.modules[box.name], f"{graph.lines[box.name]:,} lines"
    size = lines if number == 1 else f"{number} modules, {lines}"
    name = "name small" if box.width < 110 else "name"
    return (
        f'<rect class="box {part_of(box.name)}" x="{box.x:.1f}" y="{box.top}" width="{box.width:.1f}" '
        f'height="{BOX_HEIGHT}" rx="7"/>'
        f'<text class="{name}" x="{box.middle:.1f}" y="{box.top + 24}">{box.name}</text>'
        f'<text class="size" x="{box.middle:.1f}" y="{box.top + 41}">{size}</text>'
    )


def _legend(y: float) -> Iterator[str]:
    shown = {**{part: part.split()[0] for part in PARTS}, "shared": "all"}
    widths = [34 + 8 * len(part) for part in shown]
    x = (WIDTH - sum(widths)) / 2
    for (part, colours), width in zip(shown.items(), widths, strict=True):
        yield f'<rect class="box {colours}" x="{x:.0f}" y="{y - 11}" width="14" height="14" rx="3"/>'
        yield f'<text class="note" x="{x + 20:.0f}" y="{y}">{part}</text>'
        x += width
    text = (
        "Lines lead down to what is imported, the thicker the more; what stands in the last row is imported everywhere."
    )
    yield f'<text class="note" x="{WIDTH / 2:.0f}" y="{y + 26}" text-anchor="middle">{text}</text>'


def drawn_from(picture: str) -> Graph:
    """The figures that a picture carries."""
    found = re.search(r"<metadata>(.*?)</metadata>", picture, re.DOTALL)
    if found is None:
        raise SystemExit("docs/images/layers.svg carries no figures: run 'make docs'")
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return Graph(**json.loads(text))


def stale(old: Graph, new: Graph) -> list[str]:
    """What a picture of `old` says that is no longer so."""
    found = []
    if [sorted(row) for row in old.rows] != [sorted(row) for row in new.rows]:
        found.append(f"layers are {new.rows}")
    for what, before, after in [("lines", old.lines, new.lines), ("imports", old.imports, new.imports)]:
        for name in sorted(before.keys() | after.keys()):
            a, b = before.get(name, 0), after.get(name, 0)
            if bool(a) != bool(b) or abs(a - b) > max(0.1 * a, 3 if what == "imports" else 30):
                found.append(f"{what} of {name}: {a}, now {b}")
    return found


def main() -> None:
    """Draw the picture, or check the one that is there."""
    if "--check" in sys.argv:
        old = TARGET.read_text()
        wrong = stale(drawn_from(old), graph()) or ([] if draw(drawn_from(old)) == old else ["it was drawn otherwise"])
        if wrong:
            sys.exit("docs/images/layers.svg is out of date, run 'make docs': " + "; ".join(wrong))
        return
    TARGET.write_text(draw(graph()))
    print("wrote images/layers.svg")


if __name__ == "__main__":
    main()
