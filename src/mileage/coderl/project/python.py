"""Python projects: built by compiling and collecting, with the interpreter that is theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mileage.coderl.outcomes import TestFormat
from mileage.coderl.project.edits import central_edit
from mileage.coderl.project.model import BUILD_DIRECTORY, Project

# Its own path too: what is on the path may be a script that starts it.
_ASK = (
    "import sys, importlib.util as u; "
    "print(sys.executable); print(sys.prefix); print(sys.base_prefix); print(bool(u.find_spec('pytest')))"
)


@dataclass(frozen=True)
class Interpreter:
    """A Python, where its files are, and whether it can run tests."""

    path: str
    prefixes: tuple[str, ...]
    has_pytest: bool


def _interpreter(path: str) -> Interpreter | None:
    """What the Python at `path` says about itself; None if there is none."""
    try:
        done = subprocess.run((path, "-c", _ASK), capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 4:
        return None
    return Interpreter(lines[0], tuple(dict.fromkeys(lines[1:3])), lines[3] == "True")


def interpreter_of(root: Path, has_tests: bool) -> tuple[Interpreter, tuple[str, ...]]:
    """The Python of a project, and what is to be said about the choice.

    That is the one in its own virtual environment, else in the active one, else the one on the path. Where that cannot
    run the project's tests, it is the one that runs this.
    """
    own = [str(root / name / "bin" / "python") for name in (".venv", "venv")]
    active = os.environ.get("VIRTUAL_ENV")
    candidates = [*own, *([f"{active}/bin/python"] if active else []), shutil.which("python3") or sys.executable]
    found = next((each for path in candidates if (each := _interpreter(path))), None)
    mine = Interpreter(sys.executable, tuple(dict.fromkeys((sys.prefix, sys.base_prefix))), False)
    if found is None:
        return mine, (f"no Python was found for the project: {sys.executable} runs it",)
    if not has_tests or found.has_pytest or found.path in own:
        return found, ()
    fallback = _interpreter(sys.executable)
    if fallback is None or not fallback.has_pytest:
        return found, (f"{found.path} has no pytest: tests are not run",)
    return fallback, (f"{found.path} has no pytest: {sys.executable}, which runs mileage, builds and tests",)


# What pytest and Python itself read before the first test, and what would take their place on the path.
PYTHON_HARNESS = (
    "conftest.py", "*/conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml",
    "sitecustomize.py", "*/sitecustomize.py", "usercustomize.py", "*/usercustomize.py", "*.pth",
    "pytest.toml", ".pytest.toml", "*.dist-info", "*.egg-info", "*.dist-info/*", "*.egg-info/*",
    "pytest.py", "src/pytest.py", "pytest", "src/pytest", "_pytest", "src/_pytest", "pluggy*", "src/pluggy*",
)  # fmt: skip
_PARTS = [Path(__file__).with_name(name).read_text() for name in ("honest_equality.py", "run_pytest.py")]
_RUN_PYTEST = _PARTS[0] + _PARTS[1].replace("from __future__ import annotations\n", "")


def python_project(root: Path) -> Project:
    """A project with Python's own files, or with requirements alone."""
    has_files = any(root.glob("**/test_*.py")) or any(root.glob("**/*_test.py"))
    python, notes = interpreter_of(root, has_files)
    compile_all = (python.path, "-m", "compileall", "-q", "-j", "{jobs}", ".")
    has_tests = has_files and python.has_pytest
    collect = (python.path, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    return Project(
        kind="python",
        root=root,
        build=(compile_all, collect) if has_tests else (compile_all,),
        check=(compile_all, collect) if has_tests else (compile_all,),
        test=(
            (
                python.path,
                "-c",
                _RUN_PYTEST,
                "-q",
                "-p",
                "no:cacheprovider",
                f"--junitxml={BUILD_DIRECTORY}/tests.xml",
            ),
        )
        if has_tests
        else (),
        test_format=TestFormat.JUNIT,
        test_reports=(f"{BUILD_DIRECTORY}/tests.xml",),
        harness=PYTHON_HARNESS,
        outputs=("**/__pycache__", BUILD_DIRECTORY),
        edit=central_edit(root, (".py",)),
        env={"PYTHONPATH": "{tree}/src:{tree}"},
        tools={"python": (python.path, "--version")},
        readable=python.prefixes,
        notes=notes,
        lock_files=("requirements.txt", "constraints.txt", "uv.lock", "poetry.lock"),
        config_files=("pyproject.toml",),
    )
