"""A test that fails once is run again by itself, loudly; one that fails twice stays failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import second_chance

FLAKY = """
from pathlib import Path

def test_flaky():
    if not Path("tried").exists():
        Path("tried").touch()
        assert [1, 2] == [1], "only once"
"""
BROKEN = "def test_broken():\n    assert 1 == 2\n"
FINE = "from pathlib import Path\ndef test_fine():\n    open('runs', 'a').write('x')\n"
SETUP = """
import pytest
from pathlib import Path

@pytest.fixture
def part():
    if not Path("set up").exists():
        Path("set up").touch()
        raise OSError("not yet")

@pytest.mark.parametrize("word", ["a b", "x::y[z]"])
def test_setup(part, word):
    pass
"""
WORKER = """
import os
from pathlib import Path

def test_dies():
    if not Path("died").exists():
        Path("died").touch()
        os._exit(3)
"""


def chanced(folder: Path, *words: str, **tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(text)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    outside[second_chance.FLAKY_LIST] = str(folder / "listed")
    # Plugins that are installed for the suite take seconds to load.
    outside |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-q -p xdist"}
    return subprocess.run(
        [sys.executable, second_chance.__file__, *words], cwd=folder, env=outside, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_where_nothing_failed_nothing_is_run_again(tmp_path: Path) -> None:
    done = chanced(tmp_path, fine=FINE)
    assert (done.returncode, (tmp_path / "runs").read_text()) == (0, "x")
    assert "FLAKY" not in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "workers"])
def test_what_passes_the_second_time_is_listed_at_the_very_end(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = chanced(tmp_path, *workers, flaky=FLAKY, fine=FINE)
    assert done.returncode == 0
    line = "FLAKY: test_flaky.py::test_flaky: AssertionError: only once"
    assert (done.stdout.splitlines()[-1], (tmp_path / "listed").read_text()) == (line, line + "\n")
    assert (tmp_path / "runs").read_text() == "x"


def test_what_fails_twice_is_red_beside_what_is_flaky(tmp_path: Path) -> None:
    done = chanced(tmp_path, flaky=FLAKY, broken=BROKEN)
    assert done.returncode == 1
    assert done.stdout.count("test_broken.py::test_broken - assert 1 == 2") == 2
    assert done.stdout.splitlines()[-1] == "FLAKY: test_flaky.py::test_flaky: AssertionError: only once"


def test_errors_of_fixtures_have_a_second_chance_too(tmp_path: Path) -> None:
    done = chanced(tmp_path, setup=SETUP)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "FLAKY: test_setup.py::test_setup[a b]: OSError: not yet"


def test_a_worker_that_died_is_flaky_and_a_session_that_died_is_red(tmp_path: Path) -> None:
    done = chanced(tmp_path, "-n", "2", dies=WORKER)
    assert done.returncode == 0
    assert "FLAKY: test_dies.py::test_dies: worker 'gw" in done.stdout.splitlines()[-1]
    (tmp_path / "died").unlink()
    assert chanced(tmp_path, dies=WORKER).returncode == 3


@pytest.mark.parametrize("text", ["import no_such_module\n", ""], ids=["import", "no tests"])
def test_what_cannot_be_collected_is_red(tmp_path: Path, text: str) -> None:
    done = chanced(tmp_path, other=text)
    assert done.returncode != 0
    assert "Again" not in done.stdout
