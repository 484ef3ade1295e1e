"""Write the tables against other libraries from the committed results: five in the README, all in docs/bench.md.

    python benchmarks/readme_table.py
    python benchmarks/readme_table.py --check

Only files in `results/` are read, so that what is shown can be traced to the command and the machine that produced it.
A result that is not there is not shown.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _harness import RESULTS, markdown_table
from mileage.profiling.bench.peers import machine_line, summary_table
from mileage.tables import Markdown, Strong
from ppo_cartpole import OURS, RIVAL, by_arm, median, ratio, returns_table

ROOT = Path(__file__).resolve().parent.parent
REGION = re.compile(r"(<!-- peers:begin -->\n).*?(<!-- peers:end -->)", re.DOTALL)
# Made by `mileage bench`, in its own format; everything else is a report of `_harness`.
BENCH = "bench"

Record = dict[str, Any]


def ppo_tables(data: Sequence[Record]) -> list[str]:
    """PPO on CartPole: speed at matched settings, and time to the target."""
    matched = [record for record in data if record["mode"] == "matched"]
    target = [record for record in data if record["mode"] == "target"]
    tables = []
    if matched:
        rows = [
            [
                name,
                f"{median(runs, 'steps_per_second'):,.0f}",
                ratio(matched, OURS, name, "steps_per_second"),
                f"{sum(run['held_out_mean_return'] for run in runs) / len(runs):.0f}",
            ]
            for name, runs in by_arm(matched).items()
        ]
        header = ["same settings, 50,176 steps", "steps/s of training", "mileage is faster by", "held-out return"]
        tables.append(markdown_table(header, rows))
    if target:
        tables.append(markdown_table(["to 475 on 100 held-out episodes", *_TARGET_COLUMNS], _target_rows(target)))
    return tables


_TARGET_COLUMNS = ("reached", "seconds from process start", "times mileage", "steps")


def _target_rows(records: Sequence[Record]) -> list[list[str]]:
    rows = []
    for name, runs in by_arm(records).items():
        reached = [run for run in runs if run["reached"]]
        cells = ["–"] * 3
        if reached:
            cells = [
                f"{median(reached, 'wall_to_target_s'):.2f}",
                ratio([run for run in records if run["reached"]], name, OURS, "wall_to_target_s"),
                f"{median(reached, 'steps'):,.0f}",
            ]
        rows.append([name, f"{len(reached)} of {len(runs)}", *cells])
    return rows


def bench_section(record: Record) -> list[str]:
    """Every primitive against the libraries that do it too."""
    return [
        f"**Primitives** ([all figures](benchmarks/results/{BENCH}.md))",
        f"`{record['command']}`",
        f"{machine_line(record)} Spread is the interquartile range over the median.",
        summary_table(record).markdown(),
    ]


SECTIONS: dict[str, tuple[str, Callable[[Sequence[Record]], list[str]]]] = {
    "ppo_cartpole": ("PPO on CartPole-v1", ppo_tables),
    "ppo_cartpole_returns": ("The same settings, held-out returns of many seeds", lambda data: [returns_table(data)]),
}


def region(results: Path) -> str:
    """The text between the marks."""
    parts: list[str] = []
    for name, (title, tables) in SECTIONS.items():
        file = results / f"{name}.json"
        if not file.is_file():
            continue
        record = json.loads(file.read_text())
        machine = record["machine"]
        where = f"{machine['time']}, {machine['cpu']}, {machine['cores']} cores, load {machine['load']}"
        parts += [
            f"**{title}** ({where}; [all figures](benchmarks/results/{name}.md))",
            f"`{record['command']}`",
            *tables(record["data"]),
        ]
    if (results / f"{BENCH}.json").is_file():
        parts += bench_section(json.loads((results / f"{BENCH}.json").read_text()))
    others = [path for path in sorted(results.glob("*.md")) if path.stem not in (*SECTIONS, BENCH)]
    if others:
        links = ", ".join(f"[{_title(path)}](benchmarks/results/{path.name})" for path in others)
        parts.append(f"More results: {links}.")
    return "\n\n".join(parts) if parts else "No result is committed yet."


def _title(path: Path) -> str:
    found = re.match(r"# (.+)", path.read_text())
    return found[1] if found else path.stem


@dataclass(frozen=True)
class Figure:
    """One row of the README's table: a number of ours beside the best other one and beside the usual reference."""

    title: str
    result: str
    """The file it comes from."""
    records: Callable[[Any], Sequence[Record]]
    """The records in that file's data that it is about."""
    key: str
    form: str
    more_is_better: bool


FIGURES = [
    Figure(
        "PPO, CartPole-v1, same settings: training steps/s", "ppo_cartpole",
        lambda data: [run for run in data if run["mode"] == "matched"], "steps_per_second", "{:,.0f}", True,
    ),
    Figure(
        "PPO, CartPole-v1: seconds from process start to a held-out 475", "ppo_cartpole",
        lambda data: [run for run in data if run["mode"] == "target" and run["reached"]],
        "wall_to_target_s", "{:.2f}", False,
    ),
    Figure(
        "PPO, HalfCheetah-v5, same settings: training steps/s", "ppo_halfcheetah",
        lambda data: data["speed"], "steps_per_second", "{:,.0f}", True,
    ),
    Figure(
        "SAC, Pendulum-v1, same settings: training steps/s", "sac_pendulum",
        lambda data: data["matched"], "steps_per_second", "{:,.0f}", True,
    ),
]  # fmt: skip
RETURNS = "ppo_cartpole_returns"


def figures(results: Path) -> str:
    """The README's table."""
    rows, machines = [], []
    for figure in FIGURES:
        file = results / f"{figure.result}.json"
        if file.is_file():
            record = json.loads(file.read_text())
            if found := figure.records(record["data"]):
                machines.append(record["machine"])
                rows.append(_figure_row(figure, found))
    if (results / f"{RETURNS}.json").is_file():
        record = json.loads((results / f"{RETURNS}.json").read_text())
        machines.append(record["machine"])
        rows.append(_returns_row(record["data"]))
    if not rows:
        return "No result is committed yet."
    where = {f"{machine['cores']} cores of {machine['cpu']}" for machine in machines}
    days = sorted({machine["time"][:10] for machine in machines})
    measured = f"Measured on {' and '.join(sorted(where))}, {' to '.join(dict.fromkeys([days[0], days[-1]]))}."
    return "\n\n".join([markdown_table(["", OURS, "fastest other", RIVAL], rows), measured])


def _figure_row(figure: Figure, records: Sequence[Record]) -> list[str]:
    medians = {name: median(runs, figure.key) for name, runs in by_arm(records).items()}
    others = sorted((name for name in medians if not name.startswith(OURS)), key=lambda name: medians[name])
    if figure.more_is_better:
        others.reverse()
    rivals = [name for name in others if name.startswith(RIVAL)]
    fastest = ""
    if others and others[0] not in rivals:
        fastest = f"{others[0].split(',')[0]} {_beside(figure, records, medians, others[0])}"
    rival = _beside(figure, records, medians, rivals[0]) if rivals else "–"
    title = Markdown(f"[{figure.title}](benchmarks/results/{figure.result}.md)")
    return [title, Strong(figure.form.format(medians[OURS])), fastest, rival]


def _beside(figure: Figure, records: Sequence[Record], medians: dict[str, float], name: str) -> str:
    over, under = (OURS, name) if figure.more_is_better else (name, OURS)
    return f"{figure.form.format(medians[name])} ({ratio(records, over, under, figure.key)})"


def _returns_row(data: Sequence[Record]) -> list[str]:
    cells = [[cell.strip() for cell in line.split("|")] for line in returns_table(data).splitlines()]
    means = {row[1]: (row[2], row[3]) for row in cells if len(row) > 4}
    title = f"PPO, CartPole-v1, same settings: mean held-out return of {means[OURS][0]} seeds, 95 % interval"
    rival = means[RIVAL][1] if RIVAL in means else "–"
    return [Markdown(f"[{title}](benchmarks/results/{RETURNS}.md)"), Strong(means[OURS][1]), "", rival]


# Every page with a region, and what fills it; links are written from the root of the tree.
PAGES: dict[str, Callable[[Path], str]] = {
    "README.md": figures,
    "docs/bench.md": lambda results: region(results).replace("](benchmarks/", "](../benchmarks/"),
}


def updated(page: str, text: str, results: Path = RESULTS) -> str:
    """The text of a page with its region made anew."""
    if not REGION.search(text):
        raise SystemExit(f"{page} has no region peers:begin … peers:end")
    return REGION.sub(lambda match: f"{match[1]}\n{PAGES[page](results)}\n\n{match[2]}", text)


def main() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        new = updated(page, text)
        if "--check" in sys.argv:
            if new != text:
                sys.exit(f"{page} is out of date: run 'python benchmarks/readme_table.py'")
        else:
            (ROOT / page).write_text(new)
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
