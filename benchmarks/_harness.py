"""What all benchmarks share: the machine they ran on, and results as JSON (everything) and Markdown (to read)."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.profiling.timing import Comparison

# 1: first format.
FORMAT = 1
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("numpy", "numba", "scipy", "gymnasium", "torch", "jax", "rlox", "stable-baselines3", "rejax", "gymnax")


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
        machine = fingerprint()
        record = {"format": FORMAT, "name": self.name, "command": command, "machine": machine, "data": self.data}
        json_path, markdown_path = directory / f"{self.name}.json", directory / f"{self.name}.md"
        json_path.write_text(json.dumps(record, indent=1) + "\n")
        versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        parts = [
            f"# {self.title}",
            f"`{command}`",
            f"{machine['time']}, {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, {versions}.",
            *self.tables,
        ]
        markdown_path.write_text("\n\n".join(parts) + "\n")
        return json_path, markdown_path


def shown_command(argv: Sequence[str]) -> str:
    """The command line as somebody else would type it at the root of a clone."""
    arguments = [Path(each).name if each.startswith("/") else each for each in argv[1:]]
    return shlex.join(["PYTHONPATH=src", "python", f"benchmarks/{Path(argv[0]).name}", *arguments])


def fingerprint() -> dict[str, Any]:
    """The machine and the versions a result belongs to."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": packages,
    }


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; numbers are right-aligned."""
    lines = [[str(cell) for cell in row] for row in rows]
    rule = ["---:" if all(_numeric(line[i]) for line in lines) else "---" for i in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in ([*header], rule, *lines))


def _numeric(text: str) -> bool:
    return text.strip("–x× ").replace(",", "").replace(".", "", 1).lstrip("-").isdigit() or text == "–"


def timing_table(comparisons: Sequence[Comparison], ours: str) -> str:
    """Medians in microseconds, and how many times as long as `ours` each arm took in the same rounds."""
    arms = list(dict.fromkeys(each.arm for comparison in comparisons for each in comparison.measurements))
    rows = []
    for comparison in comparisons:
        row = [comparison.job]
        for arm in arms:
            if arm not in [each.arm for each in comparison.measurements]:
                row.append("–")
            elif arm == ours:
                row.append(f"**{comparison[arm].median * 1e6:,.1f}**")
            else:
                row.append(f"{comparison[arm].median * 1e6:,.1f} ({comparison.ratio(arm, ours):,.1f}×)")
        rows.append(row)
    return markdown_table(["µs per call", *arms], rows)
