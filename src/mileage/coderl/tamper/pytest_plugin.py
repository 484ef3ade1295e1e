"""Runs pytest for a project whose code may be against it; given to the project's own Python as text.

pytest is imported with all it needs before the project is on the path, so that no module takes the place of another.
Tests whose outcomes are known are run before and after the project's own, in the same process: if they turn out
otherwise afterwards, the runner is not what it was, and its report is removed. Objects that are equal to everything are
seen through (`honest_equality`). What each test did is also told to the launcher, so that a report which was rewritten
afterwards is worth nothing. It fails by an error that nobody sees, because sys.exit would leave before the end of the
main function.
"""

from __future__ import annotations

import os
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported with nothing of the project on the path
    from collections.abc import Callable

    import pytest

    from mileage.coderl.tamper.equality import Equality

KNOWN = """import unittest
import pytest
def test_right(): assert [1] == [1]
def test_wrong(): assert [1] == [2]
def test_error(): raise ValueError
def test_none():
    with pytest.raises(ValueError): pass
exec("class Always:\\n    def __eq__(self, other): return True")
def test_equal(): assert Always() == 1
class TestCase(unittest.TestCase):
    def test_unequal(self): self.assertEqual(1, 2)
"""
OUTCOMES = {
    "test_right": "passed",
    "test_wrong": "failed",
    "test_error": "failed",
    "test_none": "failed",
    "test_equal": "failed",
    "test_unequal": "failed",
}
STRANGE = "not from a file of the tests"
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

    def __init__(self, equality: Equality | None = None) -> None:
        self.equality = equality
        self.found: dict[str, str] = {}
        self.phases: dict[str, set[str]] = {}
        self.functions: dict[str, tuple[types.FunctionType, types.CodeType]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take down what each test is made of."""
        for item in session.items:
            function = getattr(item, "function", None)  # foreign: a pytest item
            if isinstance(function, types.FunctionType):
                self.functions[item.nodeid] = function, function.__code__

    def is_the_same(self, node: str) -> bool:
        """Whether a test is what it was, and from a file that no candidate writes; one that is no function counts."""
        if self.equality is None or node not in self.functions:
            return True
        function, code = self.functions[node]
        return function.__code__ is code and self.equality.is_trusted(code.co_filename)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take down one report."""
        if report.when == "call":
            self.found[report.nodeid.split("::")[-1]] = report.outcome
            if not self.is_the_same(report.nodeid):
                # It is not spoken of: where it is known to be a test of another kind, nothing is missed.
                self.phases[report.nodeid] = {STRANGE}
        self.phases.setdefault(report.nodeid, set()).add(str(report.when) + " " + report.outcome)

    def told(self) -> list[str]:
        """What each test did, by the name that it has in JUnit XML."""
        from _pytest.junitxml import mangle_test_address

        lines = []
        for node, phases in self.phases.items():
            if STRANGE in phases:
                continue
            *owners, name = mangle_test_address(node)
            failed = any(phase.endswith("failed") for phase in phases)
            word = "pass" if "call passed" in phases and not failed else "other"
            lines.append(word + " " + ".".join(owners) + "::" + name)
        return lines


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


def teller() -> Callable[[list[str]], None]:
    """What tells lines to the launcher, with all it needs already in its hands."""
    import socket

    name = os.environ.get("MILEAGE_WITNESS", "")
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    send = channel.sendto

    def tell(lines: list[str]) -> None:
        for line in lines if name else ():
            send(b"T" + line.encode("utf-8", "replace")[:3000], "\0" + name)

    return tell


def main() -> None:
    """Run the project's tests, and fail if they do."""
    import_pytest()
    import pytest

    sys.argv[0] = "pytest"
    tell, equality = teller(), Equality()
    listener = Listener(equality)
    equality.begin()
    before = tells_wrong_from_right()
    code = int(pytest.main(plugins=[listener, equality]))
    sys.stdout.flush()
    sys.excepthook = lambda *_: None
    problem = ""
    if before and not tells_wrong_from_right():
        problem = "the test runner was changed: tests that must fail do not fail any more"
    elif before:
        problem = ", ".join(f"{name} says that everything is equal" for name in sorted(set(equality.unguarded())))
    if problem:
        print(problem)
        for each in sys.argv:
            if each.startswith("--junitxml="):
                os.unlink(each.split("=", 1)[1])
        code = 1
    else:
        tell(listener.told())
    if code != 0:
        raise RuntimeError("tests failed")


if __name__ == "__main__":
    main()
