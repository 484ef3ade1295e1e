"""Tests heard past what they print: witnesses in C, Go and Node, and what results are worth without them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from mileage.coderl.test_results import TestOutcome, TestResult

SOURCE = Path(__file__).with_name("witness.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wl,-z,initfirst")
NOT_HEARD = (
    "a program that leaves in the middle of its tests with exit code 0 is not noticed, unless its test runner reports "
    "each test: "
)
GO_NOT_HEARD = "a Go program that prints results of tests that it did not run is not noticed: "
# What Go's package testing calls is given another name, and witness.go has the old one.
_GO_RENAMED = (
    (re.compile(r"^import \($", re.MULTILINE), 'import mileage "syscall"\n\nimport ('),
    (re.compile(r"^func \(m \*M\) Run\(\) \(code int\) \{$", re.MULTILINE), "func (m *M) mileageRun() (code int) {"),
    (re.compile(r"^func \(t \*T\) report\(\) \{$", re.MULTILINE), "func (t *T) mileageReport() {"),
)
_GO_SECONDS = 120.0


@dataclass(frozen=True)
class Witnesses:
    """What is loaded into programs so that they say how they end and what each test did."""

    library: str = ""
    """For programs with a C library; empty where it could not be made."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Set for the commands that run tests, besides those of the library."""
    always: Mapping[str, str] = field(default_factory=dict)
    """Set for every command, because what is built depends on them."""
    problems: tuple[str, ...] = ()
    """Sentences that say what is not heard, and why."""


def make_witnesses(directory: Path, kind: str, env: Mapping[str, str]) -> Witnesses:
    """Make what hears the tests of a project of some `kind`, in `directory`, which candidates must be able to read."""
    directory.mkdir(parents=True, exist_ok=True)
    library, problem = _make_library(directory)
    guard = shutil.copy(SOURCE.with_suffix(".js"), directory / "witness.js")
    variables = {"NODE_OPTIONS": f"{env.get('NODE_OPTIONS', '')} --require={guard}".strip()}
    if kind != "go":
        return Witnesses(library, variables, problems=(problem,) if problem else ())
    # A program of Go has no C library: the one would hear nothing that the other does not.
    overlay, problem = _make_overlay(directory, env)
    flags = f"{env.get('GOFLAGS', '')} -overlay={overlay}".strip()
    return Witnesses(library, variables, {"GOFLAGS": flags} if overlay else {}, (problem,) if problem else ())


def _make_library(directory: Path) -> tuple[str, str]:
    """The path of the library, or an empty one and the sentence that says why there is none."""
    library = directory / "witness.so"
    command = (os.environ.get("CC") or "cc", *_FLAGS, "-o", str(library), str(SOURCE), "-ldl")
    failed = _run(command, dict(os.environ), 60.0)
    return ("", f"{NOT_HEARD}{failed}") if failed else (str(library), "")


def _make_overlay(directory: Path, env: Mapping[str, str]) -> tuple[str, str]:
    """The path of what is laid over Go's own sources, or an empty one and the sentence that says why there is none."""
    surroundings = {**os.environ, **{name: env[name] for name in ("PATH", "GOROOT", "GOTOOLCHAIN") if name in env}}
    try:
        asked = subprocess.run(("go", "env", "GOROOT"), capture_output=True, text=True, timeout=60, env=surroundings)
        package = Path(asked.stdout.strip()) / "src" / "testing"
        text = (package / "testing.go").read_text()
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{GO_NOT_HEARD}{error}"
    for pattern, renamed in _GO_RENAMED:
        text, count = pattern.subn(renamed, text)
        if count != 1:
            return "", f"{GO_NOT_HEARD}this version's package testing is not known"
    added = SOURCE.with_suffix(".go").read_text().partition("\n)\n")[2]
    (directory / "testing.go").write_text(text + added)
    overlay = directory / "overlay.json"
    overlay.write_text(json.dumps({"Replace": {str(package / "testing.go"): str(directory / "testing.go")}}))
    failed = _run(("go", "build", f"-overlay={overlay}", "testing"), surroundings, _GO_SECONDS)
    return ("", f"{GO_NOT_HEARD}{failed}") if failed else (str(overlay), "")


def _run(command: tuple[str, ...], env: Mapping[str, str], seconds: float) -> str:
    """Why a command failed; empty if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"{command[0]} failed"])[-1]


# --- What a test runner says past its output, which anybody can write to, and what results are worth without it ---
NOT_TOLD = "its output says that it passed, and the test runner does not"


def confirmed(results: tuple[TestResult, ...], told: Set[str], known: Set[str]) -> tuple[TestResult, ...]:
    """The results, but for passes that the runner should have told, and did not.

    It tells `pass NAME` or `other NAME` of a test and `end PACKAGE` when it is through with a package; `known` is what
    it told where it was right. What it did not speak of there need not be told.
    """
    names = {line.partition(" ")[2] for line in known if line.startswith(("pass ", "other "))}
    packages = {line.partition(" ")[2] for line in known if line.startswith("end ")}

    def is_missing(name: str) -> bool:
        package = name.partition("::")[0]
        return (name in names and f"pass {name}" not in told) or (package in packages and f"end {package}" not in told)

    return tuple(
        replace(result, outcome=TestOutcome.ERROR, message=NOT_TOLD)
        if result.passed and is_missing(result.name)
        else result
        for result in results
    )
