"""Runs pytest for a project whose code may be against it; given to the project's own Python as text.

pytest is imported with all it needs before the project is on the path, so that no module takes the place of another.
Tests whose outcomes are known are run before and after the project's own, in the same process: if they turn out
otherwise afterwards, the runner is not what it was, and its report is removed. It fails by an error that nobody sees,
because sys.exit would leave before the end of the main function.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported with nothing of the project on the path
    import pytest

KNOWN = """import unittest
import pytest
def test_right(): assert [1] == [1]
def test_wrong(): assert [1] == [2]
def test_error(): raise ValueError
def test_none():
    with pytest.raises(ValueError): pass
class TestCase(unittest.TestCase):
    def test_unequal(self): self.assertEqual(1, 2)
"""
OUTCOMES = {
    "test_right": "passed",
    "test_wrong": "failed",
    "test_error": "failed",
    "test_none": "failed",
    "test_unequal": "failed",
}
SETTINGS = ("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def import_pytest() -> None:
    """Import pytest and what it imports later on, with nothing of the project on the path."""
    places = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    project = [each for each in sys.path if each in places]
    sys.path[:] = [each for each in sys.path if each not in project]
    import importlib
    import pkgutil

    import _pytest

    for name in ("difflib", "doctest", "shutil", "tempfile", "unittest", "pytest"):
        importlib.import_module(name)
    for each in pkgutil.iter_modules(_pytest.__path__):
        importlib.import_module("_pytest." + each.name)
    sys.path[:0] = project


class Listener:
    """Takes down the outcome of each test."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down one report."""
        if report.when == "call":
            self.found[report.nodeid.split("::")[-1]] = report.outcome


def tells_wrong_from_right() -> bool:
    """Whether tests whose outcomes are known have them."""
    import shutil
    import tempfile

    import pytest

    directory, listener = tempfile.mkdtemp(), Listener()
    kept = {name: os.environ.pop(name, None) for name in SETTINGS}
    os.environ[SETTINGS[0]] = "1"
    path = os.path.join(directory, "test_" + os.urandom(8).hex() + ".py")
    with open(path, "w") as file:
        file.write(KNOWN)
    plain = ["-c", os.devnull, "--noconftest", "--rootdir", directory]
    for name in ("cacheprovider", "terminal", "faulthandler"):
        plain += ["-p", "no:" + name]
    try:
        pytest.main([path, *plain], plugins=[listener])
    except BaseException:
        return False
    finally:
        del os.environ[SETTINGS[0]]
        os.environ.update({name: value for name, value in kept.items() if value is not None})
        sys.modules.pop(os.path.basename(path)[:-3], None)
        shutil.rmtree(directory, ignore_errors=True)
    return listener.found == OUTCOMES


def main() -> None:
    """Run the project's tests, and fail if they do."""
    import_pytest()
    import pytest

    sys.argv[0] = "pytest"
    before = tells_wrong_from_right()
    code = pytest.console_main()
    sys.excepthook = lambda *_: None
    if before and not tells_wrong_from_right():
        print("the test runner was changed: tests that must fail do not fail any more")
        for each in sys.argv:
            if each.startswith("--junitxml="):
                os.unlink(each.split("=", 1)[1])
        code = 1
    if code != 0:
        raise RuntimeError("tests failed")


if __name__ == "__main__":
    main()
