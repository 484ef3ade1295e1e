"""Every arm's way to the examiner: the one file of mileage that any interpreter can load, and versions to tell it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
from pathlib import Path
from typing import Any

_FILE = Path(__file__).resolve().parents[2] / "src" / "mileage" / "external" / "exam" / "client.py"
_spec = importlib.util.spec_from_file_location("sitting", _FILE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


def options(*more: str) -> argparse.Namespace:
    """The command line of an arm: `--seed S --threads N`, and whatever else it takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    for name in more:
        parser.add_argument(f"--{name}")
    found = parser.parse_args()
    if found.threads == 1:  # XLA sizes its pool by the cores it may use
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return found


def exam(framework: str, threads: int, *packages: str) -> Any:
    """The exam, told the versions of `packages`, the framework's own first."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return _module.Exam(framework=framework, version=versions[packages[0]], threads=threads, packages=versions)
