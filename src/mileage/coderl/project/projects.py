"""What a project is to the benchmark, and how one is recognised.

A `Project` names commands; nothing is run here except, for Cargo, `cargo metadata --no-deps`, which writes nothing.
`{jobs}` in a command stands for the number of parallel jobs, `{profile}` for the build profile, `{tree}` in a variable
for the place of the copy.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mileage._errors import BuildError, UnknownNameError, UsageError
from mileage._records import ReadRecord, Record
from mileage.coderl.build.executor import shell
from mileage.coderl.project.cargo import cargo_project_parts
from mileage.coderl.project.edits import C_SUFFIXES, LineEdit, line_edit, most_central, source_files

CONFIG_NAME = "rl-bench.toml"
BUILD_DIRECTORY = ".mileage-build"
Command = tuple[str, ...]


@dataclass(frozen=True)
class Project:
    """A project and the commands that build, check and test it, relative to its root."""

    kind: str
    root: Path
    name: str
    build: tuple[Command, ...]
    check: tuple[Command, ...]
    test: tuple[Command, ...] = ()
    clean: tuple[Command, ...] = ()
    outputs: tuple[str, ...] = ()
    """Directories and files (globs below the root) that a build makes. Empty: a cold build starts from a new copy."""
    edit: LineEdit | None = None
    edit_command: Command | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, Command] = field(default_factory=dict)
    """Tool name to the command that prints its version; part of the fingerprint."""
    lock_files: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    profile: str = "default"
    mode_tables: Mapping[str, ReadRecord] = field(default_factory=dict)
    """The [rl-bench.modes.*] and [rl-bench.baseline] tables of the project's own file."""
    baseline_table: ReadRecord = field(default_factory=dict)


def detect(root: Path, kind: str | None = None, edit_file: str | None = None) -> Project:
    """Recognise the project in `root`: its rl-bench.toml first, then the build files it has."""
    root = root.resolve()
    if not root.is_dir():
        raise UsageError(f"project {str(root)!r} is not a directory: give --project the root of a project")
    table = _read_table(root)
    chosen = kind or table.get("kind")
    if chosen is None and "build" not in table:
        chosen = next((name for name, marks in MARKERS.items() if any((root / mark).exists() for mark in marks)), None)
        if chosen is None:
            known = ", ".join(mark for marks in MARKERS.values() for mark in marks)
            raise BuildError(
                f"no known build system in {root}: add {CONFIG_NAME} with a [rl-bench] table "
                f"(build, check, edit_file), or one of {known}"
            )
    if chosen is not None and chosen not in MAKERS:
        raise UnknownNameError("project kind", chosen, MAKERS)
    project = MAKERS[chosen](root) if chosen else Project("custom", root, root.name, (), ())
    project = _override(project, table)
    if edit_file:
        project = replace(project, edit=line_edit(edit_file), edit_command=None)
    if project.edit and not (root / project.edit.path).is_file():
        raise UsageError(f"edit file {project.edit.path!r} is not in {root}: name a file relative to the project")
    if not project.build:
        raise UsageError(f'{CONFIG_NAME} names no build command: add build = "..." to its [rl-bench] table')
    return project


def _read_table(root: Path) -> Record:
    path = root / CONFIG_NAME
    if not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text()).get("rl-bench")
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None
    if not isinstance(table, dict):
        raise UsageError(f"{path} has no [rl-bench] table: put the commands under [rl-bench]")
    unknown = set(table) - _TABLE_KEYS
    if unknown:
        raise UnknownNameError(f"key in {CONFIG_NAME}", sorted(unknown)[0], _TABLE_KEYS)
    return table


_TABLE_KEYS = {
    "kind", "name", "build", "check", "test", "clean", "outputs", "edit", "edit_file", "edit_line",
    "env", "tools", "lock_files", "modes", "baseline", "profile",
}  # fmt: skip


def steps_of(value: Any) -> tuple[Command, ...]:
    """The commands of a TOML value: one shell line, or a list of them."""
    return tuple(shell(line) for line in ([value] if isinstance(value, str) else value))


def _override(project: Project, table: Record) -> Project:
    """`project` with what its rl-bench.toml says instead."""
    changes: Record = {key: steps_of(table[key]) for key in ("build", "check", "test", "clean") if key in table}
    if "build" in table and "check" not in table and not project.check:
        changes["check"] = changes["build"]
    for key in ("name", "profile"):
        if key in table:
            changes[key] = table[key]
    for key in ("outputs", "lock_files"):
        if key in table:
            changes[key] = tuple(table[key])
    if "env" in table:
        changes["env"] = {**project.env, **{name: str(value) for name, value in table["env"].items()}}
    if "tools" in table:
        changes["tools"] = {**project.tools, **{name: shell(line) for name, line in table["tools"].items()}}
    if "edit" in table:
        changes |= {"edit": None, "edit_command": shell(table["edit"])}
    if "edit_file" in table:
        line = table.get("edit_line")
        changes["edit"] = LineEdit(table["edit_file"], line) if line else line_edit(table["edit_file"])
    changes["mode_tables"] = table.get("modes", {})
    changes["baseline_table"] = table.get("baseline", {})
    return replace(project, **changes)


_C_TOOLS = {"cc": ("cc", "--version"), "c++": ("c++", "--version"), "ld": ("ld", "--version")}


def _cargo(root: Path) -> Project:
    parts = cargo_project_parts(root)
    flags = (*(("--workspace",) if parts.is_workspace else ()), "--profile", "{profile}", "--jobs", "{jobs}")
    return Project(
        kind="cargo",
        root=root,
        name=parts.name,
        build=(("cargo", "build", *flags),),
        check=(("cargo", "check", *flags),),
        test=(("cargo", "test", *flags, "--quiet"),),
        outputs=("target",),
        edit=line_edit(parts.central_file),
        tools={"rustc": ("rustc", "--version", "--verbose"), "cargo": ("cargo", "--version"), "cc": _C_TOOLS["cc"]},
        lock_files=("Cargo.lock",),
        config_files=(".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain"),
        profile="dev",
    )


def _central_edit(root: Path, suffixes: tuple[str, ...]) -> LineEdit:
    return line_edit(most_central(root, source_files(root, suffixes)))


def _cmake(root: Path) -> Project:
    build = ("cmake", "--build", BUILD_DIRECTORY, "--parallel", "{jobs}")
    return Project(
        kind="cmake",
        root=root,
        name=root.name,
        build=(("cmake", "-S", ".", "-B", BUILD_DIRECTORY, "-DCMAKE_BUILD_TYPE={profile}"), build),
        check=(build,),
        test=(("ctest", "--test-dir", BUILD_DIRECTORY, "--output-on-failure"),),
        outputs=(BUILD_DIRECTORY,),
        edit=_central_edit(root, C_SUFFIXES),
        tools={**_C_TOOLS, "cmake": ("cmake", "--version")},
        profile="Debug",
    )


def _make(root: Path) -> Project:
    build = ("make", "-j", "{jobs}")
    makefile = next(root / name for name in MARKERS["make"] if (root / name).exists())
    has_test = re.search(r"^(test|check)\s*:", makefile.read_text(errors="replace"), re.MULTILINE)
    return Project(
        kind="make",
        root=root,
        name=root.name,
        build=(build,),
        check=(build,),
        test=((*build, has_test[1]),) if has_test else (),
        edit=_central_edit(root, C_SUFFIXES),
        tools={**_C_TOOLS, "make": ("make", "--version")},
    )


def _npm(root: Path) -> Project:
    package = json.loads((root / "package.json").read_text()) if (root / "package.json").exists() else {}
    scripts = package.get("scripts", {})
    tsc = ("npx", "--no-install", "tsc")
    has_config = (root / "tsconfig.json").exists()
    if not has_config and "build" not in scripts:
        raise BuildError(f"{root} has neither a tsconfig.json nor a build script in package.json: add {CONFIG_NAME}")
    build = ("npm", "run", "--silent", "build") if "build" in scripts else (*tsc, "--project", "tsconfig.json")
    check = (*tsc, "--noEmit", "--project", "tsconfig.json") if has_config else build
    out = re.search(r'"outDir"\s*:\s*"([^"]+)"', (root / "tsconfig.json").read_text()) if has_config else None
    return Project(
        kind="npm",
        root=root,
        name=str(package.get("name") or root.name),
        build=(build,),
        check=(check,),
        test=(("npm", "test", "--silent"),) if "test" in scripts else (),
        outputs=tuple(dict.fromkeys((out[1].removeprefix("./") if out else "dist", "dist", "**/*.tsbuildinfo"))),
        edit=_central_edit(root, (".ts", ".tsx") if has_config else (".js",)),
        tools={"node": ("node", "--version"), "npm": ("npm", "--version"), "tsc": (*tsc, "--version")},
        lock_files=("package-lock.json", "yarn.lock", "pnpm-lock.yaml"),
        config_files=("tsconfig.json", ".npmrc"),
    )


def _go(root: Path) -> Project:
    files = [file for file in source_files(root, (".go",)) if not file.endswith("_test.go")]
    return Project(
        kind="go",
        root=root,
        name=root.name,
        build=(("go", "build", "-p", "{jobs}", "./..."),),
        check=(("go", "vet", "-p", "{jobs}", "./..."),),
        test=(("go", "test", "-p", "{jobs}", "./..."),),
        outputs=(BUILD_DIRECTORY,),
        edit=line_edit(most_central(root, files)),
        # Go builds into its cache, so a cold build needs a cache of its own, inside the copy.
        env={"GOCACHE": "{tree}/" + BUILD_DIRECTORY, "GOFLAGS": "-mod=mod"},
        tools={"go": ("go", "version")},
        lock_files=("go.sum", "go.mod"),
    )


def _maven(root: Path) -> Project:
    quiet = ("mvn", "--batch-mode", "--offline", "--quiet")
    return Project(
        kind="maven",
        root=root,
        name=root.name,
        build=((*quiet, "-DskipTests", "package"),),
        check=((*quiet, "compile"),),
        test=((*quiet, "test"),),
        outputs=("target", "**/target"),
        edit=_central_edit(root, (".java",)),
        tools={"java": ("java", "-version"), "mvn": ("mvn", "--version")},
        lock_files=("pom.xml",),
    )


def _python(root: Path) -> Project:
    compile_all = (sys.executable, "-m", "compileall", "-q", "-j", "{jobs}", ".")
    has_tests = bool(find_spec("pytest")) and any(root.glob("**/test_*.py"))
    collect = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    return Project(
        kind="python",
        root=root,
        name=root.name,
        build=(compile_all, collect) if has_tests else (compile_all,),
        check=(compile_all, collect) if has_tests else (compile_all,),
        test=((sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),) if has_tests else (),
        outputs=("**/__pycache__",),
        edit=_central_edit(root, (".py",)),
        env={"PYTHONPATH": "{tree}/src:{tree}"},
        tools={"python": (sys.executable, "--version")},
        lock_files=("requirements.txt", "constraints.txt", "uv.lock", "poetry.lock"),
        config_files=("pyproject.toml",),
    )


# In the order they are tried: a build system that calls another one comes first.
MARKERS = {
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
    "maven": ("pom.xml",),
    "cmake": ("CMakeLists.txt",),
    "npm": ("tsconfig.json", "package.json"),
    "make": ("GNUmakefile", "Makefile", "makefile"),
    "python": ("pyproject.toml", "setup.py", "setup.cfg"),
}
MAKERS = {"cargo": _cargo, "go": _go, "maven": _maven, "cmake": _cmake, "npm": _npm, "make": _make, "python": _python}
