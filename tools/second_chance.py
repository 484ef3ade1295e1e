"""Run pytest; what fails gets a second chance, alone in a new process, and whatever needed it is listed at the end.

    python tools/second_chance.py -n 2 tests/kernels

A test that fails and then passes is `FLAKY` and does not fail the whole; one that fails twice does, and so does
whatever else keeps pytest from its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

_PLACE = "MILEAGE_TEST_OUTCOMES"
"""The variable that says where this file, as a plugin, writes what became of the tests."""
FLAKY_LIST = "MILEAGE_FLAKY_LIST"
"""The variable that names a file to which `FLAKY` lines are added, for whoever runs several commands."""


class Outcomes(NamedTuple):
    """What became of the tests of one run of pytest."""

    code: int
    failed: dict[str, str]
    """The first line of its failure for each."""
    passed: frozenset[str]


class _Noted:
    """The plugin's memory of one session."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._failed: dict[str, str] = {}
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, _first_line(report))
        elif report.when == "call" and report.passed:
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._place.write_text(json.dumps({"failed": self._failed, "passed": sorted(self._passed)}))


def pytest_configure(config: pytest.Config) -> None:
    """Take notes in the process that hears of all tests."""
    place = os.environ.get(_PLACE)
    if place is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(_Noted(Path(place)))


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (str(report.longrepr) if crash is None else crash.message).strip().splitlines()
    return lines[0] if lines else "no reason given"


def _pytest(words: list[str]) -> Outcomes:
    own = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "outcomes.json"
        path = os.pathsep.join(filter(None, [own, os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, *words]
        code = subprocess.run(
            command, env=os.environ | {_PLACE: str(place), "PYTHONPATH": path}, check=False
        ).returncode
        noted = json.loads(place.read_text()) if place.exists() else {"failed": {}, "passed": []}
    return Outcomes(code, noted["failed"], frozenset(noted["passed"]))


def run(words: list[str]) -> int:
    """Run pytest with `words`, and say what was flaky; the exit code of the whole."""
    first = _pytest(words)
    if first.code != pytest.ExitCode.TESTS_FAILED or not first.failed:
        return first.code
    print(f"\nAgain, alone: {len(first.failed)} that failed", flush=True)
    again = _pytest([*words, "-n0", *first.failed])
    passed = again.passed - set(again.failed)
    if lines := [f"FLAKY: {name}: {why}" for name, why in first.failed.items() if name in passed]:
        print("", *lines, sep="\n", flush=True)
        if listed := os.environ.get(FLAKY_LIST):
            with open(listed, "a", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in lines)
    return 0 if again.code == 0 and passed >= set(first.failed) else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
