"""What all benchmarks share: the machine they ran on, and results as JSON (everything) and Markdown (to read)."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.measure import machine
from mileage.measure.timing import TimingComparison
from mileage.tables import Strong, Table

# 1: first format.
FORMAT = 1
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "numpy",
    "numba",
    "scipy",
    "gymnasium",
    "torch",
    "jax",
    "rlox",
    "stable-baselines3",
    "rejax",
    "gymnax",
    "cpprb",
    "tianshou",
)


@dataclass(frozen=True)
class Report:
    """One run of one benchmark: tables to read, data to compute with."""

    name: str
    title: str
    tables: Sequence[str]
    data: Any

    def write(self, directory: Path = RESULTS, command: str | None = None) -> tuple[Path, Path]:
        """Write `name`.json and `name`.md into `directory`; the command is that of this process unless given."""
        directory.mkdir(parents=True, exist_ok=True)
        command = command or shown_command(sys.argv)
        found = fingerprint()
        record = {"format": FORMAT, "name": self.name, "command": command, "machine": found, "data": self.data}
        json_path, markdown_path = directory / f"{self.name}.json", directory / f"{self.name}.md"
        json_path.write_text(json.dumps(record) + "\n")
        versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
        parts = [
            f"# {self.title}",
            f"`{command}`",
            f"{found['time']}, {found['cpu']}, {found['cores']} cores, load {found['load']}, "
            f"Python {found['python']}, {versions}.",
            *self.tables,
        ]
        markdown_path.write_text("\n\n".join(parts) + "\n")
        return json_path, markdown_path


class Kept(UserDict[tuple[Any, ...], dict[str, Any]]):
    """Runs that are done, by what tells them apart; those that a file has are there, and it gets every further one."""

    def __init__(self, path: Path | None, *fields: str) -> None:
        """Read `path`, one run a line; without one nothing is kept. `fields` of a run are its key."""
        super().__init__()
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.data |= {tuple(run[field] for field in fields): run for run in map(json.loads, lines)}

    def __setitem__(self, key: tuple[Any, ...], run: dict[str, Any]) -> None:
        self.data[key] = run
        if self._path:
            with self._path.open("a") as file:
                file.write(json.dumps(run) + "\n")


def write_json(result: Mapping[str, Any], path: Path | None) -> None:
    """Print `result`, and write it to `path` where one was asked for."""
    text = json.dumps(result, indent=1)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def shown_command(argv: Sequence[str]) -> str:
    """The command line as somebody else would type it at the root of a clone."""
    arguments = [Path(each).name if each.startswith("/") else each for each in argv[1:]]
    return shlex.join(["PYTHONPATH=src", "python", f"benchmarks/{Path(argv[0]).name}", *arguments])


def fingerprint() -> dict[str, Any]:
    """The machine and the versions a result belongs to, and how busy it was."""
    return {
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": machine.cpu_model() or platform.machine(),
        "cores": machine.usable_cores(),
        # Above the number of cores, something else was running too.
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": machine.package_versions(PACKAGES),
    }


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; numbers are right-aligned."""
    return Table.of(header, rows).markdown()


def timing_table(comparisons: Sequence[TimingComparison], ours: str) -> str:
    """Medians in microseconds, and how many times as long as `ours` each library took in the same rounds.

    A library has one column, whichever of its ways ("torch, 1 thread") a job was done in.
    """
    by_library = [
        {_library(each.arm, ours): each.arm for each in comparison.measurements} for comparison in comparisons
    ]
    columns = list(dict.fromkeys(name for arms in by_library for name in arms))
    rows = []
    for comparison, arms in zip(comparisons, by_library, strict=True):
        row = [comparison.job]
        for name in columns:
            if name not in arms:
                row.append("–")
                continue
            median = comparison[arms[name]].median * 1e6
            text = f"{median:,.1f}" if median >= 1.0 else f"{median:.3f}"
            row.append(Strong(text) if name == ours else f"{text} ({comparison.ratio(arms[name], ours):,.1f}×)")
        rows.append(row)
    return markdown_table(["µs per call", *columns], rows)


def _library(arm: str, ours: str) -> str:
    return arm if arm.startswith(ours) else arm.split(",")[0]
