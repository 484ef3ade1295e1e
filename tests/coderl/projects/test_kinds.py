"""Build systems that are recognised, built in or by a recipe; and which Python runs a Python project."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.coderl import BuildReward, PatchSample, PatchVerdict, RewardConfig, detect
from mileage.coderl.projects.systems import interpreter_of
from mileage.errors import BuildError

Files = Callable[[Path, dict[str, str]], Path]
HELLO = "class Hello {\n    public static void main(String[] a) { System.out.println(1); }\n}\n"
MESON = {
    "meson.build": "project('p', 'c')\ne = executable('p', 'main.c')\ntest('runs', e)\n",
    "main.c": "int main(void) { return 0; }\n",
}


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"requirements.txt": "", "a.py": "A = 1\n"}, "python"),
        ({"Pipfile": "", "a.py": "A = 1\n"}, "python"),
        (MESON, "meson"),
        ({"Gemfile": "", "a.rb": "A = 1\n"}, "ruby"),
        ({"Rakefile": "", "lib/a.rb": "A = 1\n"}, "ruby"),
        ({"Hello.java": HELLO}, "java"),
        ({"src/org/example/Hello.java": HELLO}, "java"),
    ],
)
def test_projects_are_recognised(tmp_path: Path, write_files: Files, files: dict[str, str], kind: str) -> None:
    project = detect(write_files(tmp_path / "p", files))
    assert project.kind == kind
    assert project.edit is not None


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"build.gradle": "", "src/main/java/A.java": HELLO}, "Gradle"),
        ({"settings.gradle.kts": ""}, "Gradle"),
        ({"MODULE.bazel": "", "a.cc": ""}, "Bazel"),
        ({"App.csproj": "", "a.cs": ""}, ".NET"),
        ({"Package.swift": "", "Sources/a.swift": ""}, "Swift"),
        ({"p.cabal": "", "Makefile": "all:\n", "A.hs": ""}, "Cabal"),
    ],
)
def test_other_build_systems_get_a_recipe_that_can_be_pasted(
    tmp_path: Path, write_files: Files, files: dict[str, str], name: str
) -> None:
    root = write_files(tmp_path / "p", files)
    with pytest.raises(BuildError, match=f"is built by {name}") as refused:
        detect(root)
    recipe = str(refused.value).split("\n", 1)[1]
    table = tomllib.loads(recipe)["rl-bench"]
    assert {"build", "check", "test", "edit_file"} <= set(table)
    (root / "rl-bench.toml").write_text(recipe)
    edited = root / table["edit_file"]
    edited.parent.mkdir(parents=True, exist_ok=True)
    edited.write_text("")
    assert detect(root).build[0][-1] == table["build"]


def test_meson_tests_are_read_one_by_one(
    isolation: None, tmp_path: Path, work: Path, write_files: Files, need: Callable[..., None]
) -> None:
    need("meson", "ninja", "cc")
    config = RewardConfig(("build", "test"), workers=1, protected=("meson.build",))
    samples = [
        PatchSample("good", path="main.c", content="int main(void) { return 1 - 1; }\n"),
        PatchSample("bad", path="main.c", content="int main(void) { return 1; }\n"),
    ]
    with BuildReward(write_files(tmp_path / "p", MESON), config, work_base=work) as pool:
        assert len(pool.expected.pass_to_pass) == 1
        found = [result.verdict for result in pool.reward(samples)]
    assert found == [PatchVerdict.PASS, PatchVerdict.TEST_FAILURE]


def test_plain_java_is_compiled(
    isolation: None, tmp_path: Path, work: Path, write_files: Files, need: Callable[..., None]
) -> None:
    need("javac")
    samples = [
        PatchSample("good", path="Hello.java", content=HELLO.replace("(1)", "(2)")),
        PatchSample("bad", path="Hello.java", content=HELLO.replace("(1)", "(x)")),
    ]
    root = write_files(tmp_path / "p", {"Hello.java": HELLO})
    with BuildReward(root, RewardConfig(("build",), workers=1), work_base=work) as pool:
        found = [result.verdict for result in pool.reward(samples)]
    assert found == [PatchVerdict.PASS, PatchVerdict.COMPILE_ERROR]


def test_a_python_project_runs_its_own_interpreter(
    tmp_path: Path, write_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "p", {"requirements.txt": "", "a.py": "A = 1\n"})
    venv.create(root / ".venv", with_pip=False)
    own = str(root / ".venv" / "bin" / "python")
    project = detect(root)
    assert project.build[0][0] == own
    assert str(root / ".venv") in project.readable
    assert subprocess.run((*project.tools["python"],), capture_output=True).returncode == 0
    other = tmp_path / "other"
    venv.create(other, with_pip=False)
    bare = write_files(tmp_path / "bare", {"requirements.txt": "", "a.py": "A = 1\n"})
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    assert detect(bare).build[0][0] == str(other / "bin" / "python")


def test_without_pytest_of_its_own_a_project_is_tested_by_ours_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    venv.create(other, with_pip=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(other))
    found, notes = interpreter_of(tmp_path, has_tests=True)
    assert found.path == sys.executable
    assert "has no pytest" in notes[0]
