"""How a project is recognised, and what its build system is told.

Nothing is run here except, for Cargo, `cargo metadata --no-deps`, which writes nothing, and, for Python, its
interpreter.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from mileage.coderl.projects.edits import C_SUFFIXES, LineEdit, central_edit, line_edit, most_central, source_files
from mileage.coderl.projects.systems import (
    BUILD_DIRECTORY,
    CONFIG_NAME,
    Command,
    Project,
    cargo_project_parts,
    java_project,
    meson_project,
    python_project,
    recipe_for,
    ruby_project,
)
from mileage.coderl.readers import TestFormat
from mileage.coderl.sandbox.executor import shell
from mileage.errors import BuildError, UnknownNameError, UsageError
from mileage.records import Record


def detect(root: Path, kind: str | None = None, edit_file: str | None = None) -> Project:
    """Recognise the project in `root`: its rl-bench.toml first, then the build files it has."""
    root = root.resolve()
    if not root.is_dir():
        raise UsageError(f"project {str(root)!r} is not a directory: give --project the root of a project")
    table = _read_table(root)
    chosen = kind or table.get("kind")
    if chosen is None and "build" not in table:
        chosen = next((name for name, marks in MARKERS.items() if any(_has(root, mark) for mark in marks)), None)
        recipe = recipe_for(root)
        if recipe and chosen in (None, "java", "make"):
            raise BuildError(recipe)
        if chosen is None:
            known = ", ".join(marks[0] for marks in MARKERS.values())
            raise BuildError(
                f"no known build system in {root}: add {CONFIG_NAME} with a [rl-bench] table "
                f"(build, check, edit_file), or one of {known}"
            )
    if chosen is not None and chosen not in MAKERS:
        raise UnknownNameError("project kind", chosen, MAKERS)
    project = MAKERS[chosen](root) if chosen else Project("custom", root, knows_dependencies=False)
    project = _override(project, table)
    if edit_file:
        project = replace(project, edit=line_edit(edit_file), edit_command=None)
    if project.edit and not (root / project.edit.path).is_file():
        raise UsageError(f"edit file {project.edit.path!r} is not in {root}: name a file relative to the project")
    if not project.build:
        raise UsageError(f'{CONFIG_NAME} names no build command: add build = "..." to its [rl-bench] table')
    return project


def _has(root: Path, mark: str) -> bool:
    return any(True for _ in root.glob(mark)) if "*" in mark else (root / mark).exists()


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
    "env", "tools", "lock_files", "modes", "baseline", "profile", "test_format", "test_reports",
    "harness", "inputs", "git",
}  # fmt: skip


def steps_of(value: Any) -> tuple[Command, ...]:
    """The commands of a TOML value: one shell line, or a list of them."""
    return tuple(shell(line) for line in ([value] if isinstance(value, str) else value))


def _override(project: Project, table: Record) -> Project:
    """`project` with what its rl-bench.toml says instead."""
    changes: Record = {key: steps_of(table[key]) for key in ("build", "check", "test", "clean") if key in table}
    if "build" in table and "check" not in table and not project.check:
        changes["check"] = changes["build"]
    for key in ("name", "profile", "git"):
        if key in table:
            changes[key] = table[key]
    if "test_format" in table and table["test_format"] not in list(TestFormat):
        raise UnknownNameError("test_format", str(table["test_format"]), list(TestFormat))
    if "test_format" in table or "test" in table:
        changes["test_format"] = TestFormat(table["test_format"]) if "test_format" in table else None
        changes["test_reports"] = ()
    for key in ("outputs", "lock_files", "test_reports", "harness", "inputs"):
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


# A build script says what tests are linked with, their main function included.
_CARGO_HARNESS = (
    "Cargo.toml", "*/Cargo.toml", "build.rs", "*/build.rs", ".cargo", "rust-toolchain", "rust-toolchain.toml",
)  # fmt: skip


def _cargo(root: Path) -> Project:
    parts = cargo_project_parts(root)
    flags = (*(("--workspace",) if parts.is_workspace else ()), "--profile", "{profile}", "--jobs", "{jobs}")
    return Project(
        kind="cargo",
        root=root,
        name=parts.name,
        build=(("cargo", "build", *flags),),
        check=(("cargo", "check", *flags),),
        test=(("cargo", "test", *flags, "--no-fail-fast"),),
        test_format=TestFormat.LIBTEST,
        harness=(*_CARGO_HARNESS, *parts.build_scripts),
        outputs=("target",),
        edit=line_edit(parts.central_file),
        tools={"rustc": ("rustc", "--version", "--verbose"), "cargo": ("cargo", "--version"), "cc": _C_TOOLS["cc"]},
        lock_files=("Cargo.lock",),
        config_files=(".cargo/config.toml", ".cargo/config", "rust-toolchain.toml", "rust-toolchain"),
        profile="dev",
    )


def _cmake(root: Path) -> Project:
    build = ("cmake", "--build", BUILD_DIRECTORY, "--parallel", "{jobs}")
    return Project(
        kind="cmake",
        root=root,
        build=(("cmake", "-S", ".", "-B", BUILD_DIRECTORY, "-DCMAKE_BUILD_TYPE={profile}"), build),
        check=(build,),
        test=(("ctest", "--test-dir", BUILD_DIRECTORY, "--output-on-failure", "--output-junit", "mileage-tests.xml"),),
        test_format=TestFormat.JUNIT,
        test_reports=(f"{BUILD_DIRECTORY}/mileage-tests.xml",),
        harness=("CMakeLists.txt", "*.cmake", "*/CMakeLists.txt", "CMakePresets.json", "CMakeUserPresets.json"),
        outputs=(BUILD_DIRECTORY,),
        configured=(f"{BUILD_DIRECTORY}/CMakeCache.txt",),
        edit=central_edit(root, C_SUFFIXES),
        tools={**_C_TOOLS, "cmake": ("cmake", "--version")},
        profile="Debug",
    )


# Makefiles, what they include as a rule, and the lists of dependencies that compilers write for them.
_MAKEFILES = (
    "GNUmakefile",
    "Makefile",
    "makefile",
    "*/GNUmakefile",
    "*/Makefile",
    "*/makefile",
    "*.mk",
    "*.mak",
    "*.d",
)


def _make(root: Path) -> Project:
    build = ("make", "-j", "{jobs}")
    makefile = next(root / name for name in MARKERS["make"] if (root / name).exists())
    text = makefile.read_text(errors="replace")
    has_test = re.search(r"^(test|check)\s*:", text, re.MULTILINE)
    has_clean = re.search(r"^(distclean|clean)\s*:", text, re.MULTILINE)
    # A file with a target's name makes the target up to date, so that nothing runs.
    targets = [has_test[1]] if has_test and not (root / has_test[1]).exists() else []
    included = re.findall(r"^[-s]?include\s+([^#\n]+)", text, re.MULTILINE)
    named = [name for line in included for name in line.split() if "$" not in name]
    return Project(
        kind="make",
        root=root,
        build=(build,),
        check=(build,),
        test=((*build, has_test[1]),) if has_test else (),
        harness=tuple(dict.fromkeys((*_MAKEFILES, *targets, *named))),
        clean=(("make", has_clean[1]),) if has_clean else (),
        knows_dependencies=False,
        edit=central_edit(root, C_SUFFIXES),
        tools={**_C_TOOLS, "make": ("make", "--version")},
    )


# What bundlers and compilers write and keep, wherever their results go.
_NODE_OUTPUTS = (
    "dist", "**/*.tsbuildinfo", "node_modules/.cache", "node_modules/.vite", ".next", ".nuxt", ".parcel-cache",
    ".turbo", ".svelte-kit", ".rollup.cache", ".nx", ".angular", ".swc", ".wireit",
)  # fmt: skip


# What the usual runners, and what translates for them, read before the first test.
_NODE_HARNESS = (
    "package.json", ".npmrc", "tsconfig*.json", "jest.config.*", "vitest.config.*", "vitest.workspace.*",
    "vite.config.*", ".mocharc*", "ava.config.*", "karma.conf.*", "playwright.config.*", "cypress.config.*", ".taprc",
    ".nycrc*", ".c8rc*", "babel.config.*", ".babelrc*", ".swcrc", "__mocks__", "bunfig.toml", "deno.json*",
)  # fmt: skip


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
        harness=_NODE_HARNESS,
        outputs=tuple(dict.fromkeys((out[1].removeprefix("./") if out else "dist", *_NODE_OUTPUTS))),
        inputs=("node_modules",),
        edit=central_edit(root, (".ts", ".tsx") if has_config else (".js",)),
        tools={"node": ("node", "--version"), "npm": ("npm", "--version"), "tsc": (*tsc, "--version")},
        lock_files=("package-lock.json", "yarn.lock", "pnpm-lock.yaml"),
        config_files=("tsconfig.json", ".npmrc"),
    )


def _go(root: Path) -> Project:
    files = [file for file in source_files(root, (".go",)) if not file.endswith("_test.go")]
    return Project(
        kind="go",
        root=root,
        build=(("go", "build", "-p", "{jobs}", "./..."),),
        check=(("go", "vet", "-p", "{jobs}", "./..."),),
        # What is in its cache of results was put there by whoever could write to it.
        test=(("go", "test", "-json", "-count=1", "-p", "{jobs}", "./..."),),
        test_format=TestFormat.GO_JSON,
        harness=("go.mod", "go.sum", "go.work", "vendor"),
        outputs=(BUILD_DIRECTORY,),
        edit=line_edit(most_central(root, files)),
        # Go builds into its cache, so a cold build needs a cache of its own, inside the copy.
        env={"GOCACHE": "{tree}/" + BUILD_DIRECTORY, "GOFLAGS": "-mod=mod"},
        tools={"go": ("go", "version")},
        lock_files=("go.sum", "go.mod"),
    )


def _maven(root: Path) -> Project:
    # Its cache of builds is the user's, so a build from it would not be cold.
    quiet = ("mvn", "--batch-mode", "--offline", "--quiet", "-Dmaven.build.cache.enabled=false")
    return Project(
        kind="maven",
        root=root,
        build=((*quiet, "-DskipTests", "package"),),
        check=((*quiet, "compile"),),
        test=((*quiet, "test"),),
        test_format=TestFormat.JUNIT,
        test_reports=("**/target/surefire-reports/*.xml",),
        harness=("pom.xml", "*/pom.xml", ".mvn", "*junit-platform.properties", "*META-INF/services/org.junit.*"),
        outputs=("target", "**/target"),
        edit=central_edit(root, (".java",)),
        tools={"java": ("java", "-version"), "mvn": ("mvn", "--version")},
        lock_files=("pom.xml",),
    )


# In the order they are tried: a build system that calls another one comes first.
MARKERS = {
    "cargo": ("Cargo.toml",),
    "go": ("go.mod",),
    "maven": ("pom.xml",),
    "cmake": ("CMakeLists.txt",),
    "npm": ("tsconfig.json", "package.json"),
    "make": ("GNUmakefile", "Makefile", "makefile"),
    "meson": ("meson.build",),
    "python": ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "requirements.in", "Pipfile"),
    "ruby": ("Gemfile", "Rakefile"),
    "java": ("*.java", "src/*.java", "src/*/*.java", "src/**/*.java"),
}
MAKERS = {
    "cargo": _cargo, "go": _go, "maven": _maven, "cmake": _cmake, "npm": _npm, "make": _make, "python": python_project,
    "meson": meson_project, "ruby": ruby_project, "java": java_project,
}  # fmt: skip
