from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from mileage.coderl.projects.detection import detect
from mileage.coderl.projects.edits import LineEdit, line_edit, most_central
from mileage.coderl.projects.modes import baseline_setup
from mileage.coderl.projects.systems import Project
from mileage.coderl.sandbox.executor import BuildJob, Limits, LocalExecutor
from mileage.errors import BuildError, UnknownNameError, UsageError

Write = Callable[[Path, dict[str, str]], Path]

NPM = {
    "package.json": json.dumps({"name": "lib", "scripts": {"build": "tsc", "test": "node t.js"}}),
    "tsconfig.json": '{"compilerOptions": {"outDir": "./out"}}',
    "src/a.ts": "export const a = 1;\n",
    "src/b.ts": "import { a } from './a';\nexport const b = a;\n",
    "src/c.ts": "import { a } from './a';\nexport const c = a;\n",
}
GO = {
    "go.mod": "module example.com/m\n\ngo 1.19\n",
    "main.go": 'package main\n\nimport "example.com/m/part"\n\nfunc main() { part.Run() }\n',
    "part/part.go": "package part\n\nfunc Run() {}\n",
}
MAVEN = {
    "pom.xml": "<project/>\n",
    "src/main/java/p/A.java": "package p;\npublic class A {\n}\n",
    "src/main/java/p/B.java": "package p;\nimport p.A;\npublic class B {\n}\n",
}
PYTHON = {
    "pyproject.toml": "[project]\nname = 'x'\n",
    "src/pkg/__init__.py": "",
    "src/pkg/base.py": "X = 1\n",
    "src/pkg/user.py": "from pkg.base import X\n",
    "tests/test_x.py": "from pkg.base import X\n\n\ndef test_x():\n    assert X == 1\n",
}
CMAKE = {
    "CMakeLists.txt": "cmake_minimum_required(VERSION 3.13)\nproject(demo C)\nadd_executable(app main.c part.c)\n",
    "part.h": "int part(void);\n",
    "part.c": '#include "part.h"\nint part(void) { return 0; }\n',
    "main.c": '#include "part.h"\nint main(void) { return part(); }\n',
}


def build(project: Project, tree: Path, check: bool = False) -> None:
    """Run the project's own commands where it is."""
    setup = baseline_setup(project, jobs=1)
    steps = setup.commands(setup.check if check else setup.build)
    job = BuildJob(steps, str(tree), setup.environment(str(tree)), limits=Limits(timeout_seconds=120))
    result = LocalExecutor().run(job)
    assert result.succeeded, result.steps[-1].output


def test_a_cargo_workspace_and_its_most_central_crate(cargo_project: Path) -> None:
    project = detect(cargo_project)
    assert (project.kind, project.name) == ("cargo", "cargo-project")
    assert project.edit == line_edit("core/src/lib.rs")
    assert "--workspace" in project.build[0]
    assert project.lock_files == ("Cargo.lock",)


def test_what_says_how_tests_are_linked_and_run_is_part_of_the_harness(
    cargo_project: Path, tmp_path: Path, write_files: Write
) -> None:
    script = cargo_project / "app/steps.rs"
    script.write_text("fn main() {}\n")
    manifest = cargo_project / "app/Cargo.toml"
    manifest.write_text(manifest.read_text().replace("[package]\n", '[package]\nbuild = "steps.rs"\n'))
    assert {"build.rs", "*/build.rs", "app/steps.rs"} <= set(detect(cargo_project).harness)
    node = write_files(tmp_path / "node", {"package.json": '{"scripts": {"build": "true"}}', "a.js": "1;\n"})
    runners = ("jest.config.js", "vitest.config.ts", ".mocharc.json", "babel.config.js", "tsconfig.test.json")
    assert not [name for name in runners if not any(fnmatch(name, glob) for glob in detect(node).harness)]


def test_detecting_a_cargo_project_writes_nothing(cargo_project: Path) -> None:
    (cargo_project / "Cargo.lock").unlink()
    before = sorted(cargo_project.rglob("*"))
    detect(cargo_project)
    assert sorted(cargo_project.rglob("*")) == before


@pytest.mark.parametrize(
    ("files", "kind", "edited"),
    [
        (NPM, "npm", "src/a.ts"),
        (GO, "go", "part/part.go"),
        (MAVEN, "maven", "src/main/java/p/A.java"),
        (PYTHON, "python", "src/pkg/base.py"),
        (CMAKE, "cmake", "part.h"),
    ],
)
def test_each_build_system_is_recognised_with_its_most_used_file(
    tmp_path: Path, write_files: Write, files: dict[str, str], kind: str, edited: str
) -> None:
    project = detect(write_files(tmp_path / "p", files))
    assert project.kind == kind
    assert project.edit is not None
    assert project.edit.path == edited


def test_a_makefile(make_project: Path) -> None:
    project = detect(make_project)
    assert project.kind == "make"
    assert project.edit == line_edit("part.h")
    assert project.test == (("make", "-j", "{jobs}", "test"),)


@pytest.mark.parametrize(
    ("files", "tools"),
    [(CMAKE, ("cmake", "cc")), (PYTHON, ()), (GO, ("go",))],
    ids=["cmake", "python", "go"],
)
def test_the_edit_is_valid_code_and_the_commands_build_it(
    tmp_path: Path, write_files: Write, need: Callable[..., None], files: dict[str, str], tools: tuple[str, ...]
) -> None:
    need(*tools)
    root = write_files(tmp_path / "p", files)
    project = detect(root)
    assert project.edit is not None
    build(project, root)
    file = root / project.edit.path
    file.write_bytes(project.edit.edited(file.read_bytes(), 41))
    build(project, root, check=True)
    assert "41" in file.read_text()


def test_cargo_and_make_edits_are_valid_code(cargo_project: Path, make_project: Path) -> None:
    for root in (cargo_project, make_project):
        project = detect(root)
        assert project.edit is not None
        file = root / project.edit.path
        file.write_bytes(project.edit.edited(file.read_bytes(), 7))
        build(project, root)


def test_a_typescript_edit_is_valid_code(tmp_path: Path, write_files: Write, need: Callable[..., None]) -> None:
    need("tsc")
    root = write_files(tmp_path / "p", {**NPM, "package.json": "{}"})
    edit = detect(root).edit
    assert edit is not None
    (root / edit.path).write_bytes(edit.edited((root / edit.path).read_bytes(), 3))
    result = LocalExecutor().run(BuildJob((("tsc", "--noEmit", "-p", "."),), str(root), {"PATH": str(Path(shutil.which("tsc") or "").parent) + ":/usr/bin:/bin"}))  # fmt: skip  # noqa: E501
    assert result.succeeded, result.steps[0].output


def test_a_java_edit_goes_into_the_class() -> None:
    edited = line_edit("A.java").edited(b"package p;\n\npublic class A {\n    int x;\n}\n", 5)
    expected = b"package p;\n\npublic class A {\n    static final long MILEAGE_EDIT_5 = 5L;\n    int x;\n}\n"
    assert edited == expected
    with pytest.raises(BuildError, match="no class"):
        line_edit("A.java").edited(b"enum E { X }\n", 1)


def test_an_edit_adds_exactly_one_line_and_no_two_are_alike() -> None:
    edit = LineEdit("a.py", "N_{n} = {'{'}")
    before = b"x = 1"
    after = edit.edited(before, 3)
    assert after.splitlines() == [b"x = 1", b"N_3 = {'{'}"]
    assert edit.edited(before, 4) != after


def test_an_unknown_language_asks_for_a_line() -> None:
    with pytest.raises(BuildError, match="edit_line"):
        line_edit("main.zig")


def test_a_file_nobody_names_is_central_if_it_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "only.c").write_text("int x;\n")
    assert most_central(tmp_path, ["only.c"]) == "only.c"


def test_any_project_through_toml(tmp_path: Path, write_files: Write) -> None:
    config = """
[rl-bench]
name = "zigzag"
build = ["zig build", "zig fmt"]
check = "zig ast-check a.zig"
clean = "rm -rf zig-out"
outputs = ["zig-out"]
edit_file = "a.zig"
edit_line = "const n{n} = {n};"
env = { LEVEL = 3 }
lock_files = ["zig.lock"]
[rl-bench.modes.fast]
difference = "env.LEVEL"
env = { LEVEL = 4 }
"""
    root = write_files(tmp_path / "p", {"rl-bench.toml": config, "a.zig": "", "Makefile": "all:\n"})
    project = detect(root)
    assert (project.kind, project.name) == ("custom", "zigzag")
    assert project.build == (("sh", "-c", "zig build"), ("sh", "-c", "zig fmt"))
    assert project.check == (("sh", "-c", "zig ast-check a.zig"),)
    assert project.edit == LineEdit("a.zig", "const n{n} = {n};")
    assert project.env == {"LEVEL": "3"}
    assert project.mode_tables["fast"]["difference"] == "env.LEVEL"


def test_toml_overrides_what_was_detected(make_project: Path) -> None:
    (make_project / "rl-bench.toml").write_text('[rl-bench]\nkind = "make"\ncheck = "make part.o"\n')
    project = detect(make_project)
    assert project.kind == "make"
    assert project.build == (("make", "-j", "{jobs}"),)
    assert project.check == (("sh", "-c", "make part.o"),)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("[other]\n", UsageError, "no \\[rl-bench\\] table"),
        ("[rl-bench\n", UsageError, "not valid TOML"),
        ('[rl-bench]\nbiuld = "x"\n', UnknownNameError, "did you mean 'build'"),
        ('[rl-bench]\nkind = "cargo2"\n', UnknownNameError, "did you mean 'cargo'"),
        ('[rl-bench]\nbuild = "x"\nedit_file = "absent.c"\n', UsageError, "absent.c"),
    ],
)
def test_a_bad_configuration_says_what_to_do(tmp_path: Path, text: str, error: type[Exception], says: str) -> None:
    (tmp_path / "rl-bench.toml").write_text(text)
    with pytest.raises(error, match=says):
        detect(tmp_path)


def test_a_directory_without_a_build_system_says_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"rl-bench\.toml"):
        detect(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        detect(tmp_path / "absent")
