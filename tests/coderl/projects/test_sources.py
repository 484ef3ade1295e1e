"""What a cold build starts from: tracked files, not what somebody once built."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.coderl import BenchConfig, detect, run_bench, to_text
from mileage.coderl.arms import SampleKind
from mileage.coderl.projects.workarea import copy_project, tracked_files

Files = Callable[[Path, dict[str, str]], Path]


def git(root: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(("git", "-C", str(root), *who, *words), check=True, capture_output=True)


@pytest.fixture
def repository(make_project: Path, need: Callable[..., None]) -> Path:
    need("git")
    git(make_project, "init", "--quiet")
    git(make_project, "add", ".")
    git(make_project, "commit", "--quiet", "-m", "first")
    git(make_project, "tag", "v1.2.3")
    return make_project


def test_objects_that_the_user_built_stay_behind(repository: Path, tmp_path: Path) -> None:
    subprocess.run(("make",), cwd=repository, check=True, capture_output=True)
    (repository / "main.c").write_text((repository / "main.c").read_text() + "/* changed */\n")
    copy = copy_project(detect(repository), tmp_path / "copy", history=False)
    names = sorted(path.name for path in (tmp_path / "copy").iterdir())
    assert names == ["Makefile", "main.c", "part.c", "part.h"]
    assert "changed" in (tmp_path / "copy" / "main.c").read_text()
    assert "3 others were left behind (app, main.o, part.o)" in copy.notes[0]


def test_outside_git_compiled_files_stay_behind(make_project: Path, tmp_path: Path) -> None:
    subprocess.run(("make",), cwd=make_project, check=True, capture_output=True)
    copy = copy_project(detect(make_project), tmp_path / "copy", history=True)
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["Makefile", "main.c", "part.c", "part.h"]
    assert "not in git" in copy.notes[0]


def test_ignored_inputs_and_lock_files_come_along(
    tmp_path: Path, write_files: Files, need: Callable[..., None]
) -> None:
    need("git", "node", "npm")
    files = {
        ".gitignore": "node_modules\npackage-lock.json\nlib\n",
        "package.json": '{"name": "a", "scripts": {"build": "node build.js"}}',
        "build.js": "// builds\n",
        "package-lock.json": "{}",
        "node_modules/dep/index.js": "1",
        "node_modules/.cache/old": "1",
        "lib/out.js": "built outside dist",
    }
    root = write_files(tmp_path / "npm", files)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    copy_project(detect(root), tmp_path / "copy", history=False)
    found = sorted(
        str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()
    )
    assert found == [".gitignore", "build.js", "node_modules/dep/index.js", "package-lock.json", "package.json"]


def test_git_describe_works_in_a_copy_and_the_original_is_left_alone(repository: Path, tmp_path: Path) -> None:
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in repository.rglob("*"))
    copy = copy_project(detect(repository), tmp_path / "copy", history=True)
    said = subprocess.run(
        ("git", "-C", str(tmp_path / "copy"), "describe", "--tags", "--dirty"), capture_output=True, text=True
    )
    assert said.stdout == "v1.2.3\n"
    assert copy.readable == (str(repository / ".git" / "objects"),)
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in repository.rglob("*")) == before


def test_builds_that_describe_themselves_are_measured(repository: Path, work: Path) -> None:
    makefile = repository / "Makefile"
    makefile.write_text(
        "version := $(shell git describe --tags)\n$(if $(version),,$(error no version))\n" + makefile.read_text()
    )
    git(repository, "commit", "--quiet", "-a", "-m", "second")
    config = BenchConfig(runs=1, jobs=1, modes=("warm-snapshot",))
    report = run_bench(detect(repository), config, work_base=work)
    assert report.measured


def test_a_cold_build_finds_nothing_that_an_earlier_one_made_outside_its_outputs(
    tmp_path: Path, work: Path, write_files: Files
) -> None:
    # It declares `out` and keeps its work in `stash`: the second build from clean would find that.
    build = "test ! -e stash && mkdir -p out stash && touch out/a stash/a"
    toml = f"[rl-bench]\nbuild = '{build}'\ncheck = 'true'\noutputs = ['out']\nedit_file = 'a.py'\n"
    root = write_files(tmp_path / "custom", {"rl-bench.toml": toml, "a.py": "A = 1\n"})
    report = run_bench(detect(root), BenchConfig(runs=3, jobs=1), work_base=work)
    cold = [sample for sample in report.samples if sample.kind == SampleKind.COLD]
    assert [str(sample.outcome) for sample in cold] == ["ok", "ok", "ok"]
    assert "KPI 1" in to_text(report)


def test_a_directory_that_git_ignores_is_not_a_repository(repository: Path) -> None:
    inner = repository / "scratch"
    inner.mkdir()
    (inner / "a.c").write_text("")
    assert tracked_files(inner) is None
    assert tracked_files(repository) == {"Makefile", "main.c", "part.c", "part.h"}
