"""Write the README's tables against other libraries from the committed results.

    python benchmarks/readme_table.py
    python benchmarks/readme_table.py --check

Only files in `results/` are read, so that what the README shows can be traced to the command and the machine that
produced it. A result that is not there is not shown.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _harness import RESULTS, markdown_table
from mileage.bench.export import machine_line, summary_table
from ppo_cartpole import OURS, by_arm, median, ratio, returns_table

README = Path(__file__).resolve().parent.parent / "README.md"
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


def updated(readme: str, results: Path = RESULTS) -> str:
    """The README with its region made anew."""
    if not REGION.search(readme):
        raise SystemExit("README.md has no region peers:begin … peers:end")
    return REGION.sub(lambda match: f"{match[1]}\n{region(results)}\n\n{match[2]}", readme)


def main() -> None:
    text = README.read_text()
    new = updated(text)
    if "--check" in sys.argv:
        if new != text:
            sys.exit("README.md is out of date: run 'python benchmarks/readme_table.py'")
        return
    README.write_text(new)
    print("wrote README.md")


if __name__ == "__main__":
    main()
