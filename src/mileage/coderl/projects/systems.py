"""What a project is, and the build systems: Cargo, Python, Meson, Ruby, plain Java.

`{jobs}` in a command stands for the number of parallel jobs, `{profile}` for the build profile, `{tree}` in a variable
for the place of the copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mileage.coderl.projects.edits import LineEdit, central_edit
from mileage.coderl.readers import TestFormat
from mileage.errors import BuildError
from mileage.records import ReadRecord

CONFIG_NAME = "rl-bench.toml"
BUILD_DIRECTORY = ".mileage-build"
Command = tuple[str, ...]


@dataclass(frozen=True)
class Project:
    """A project and the commands that build, check and test it, relative to its root."""

    kind: str
    root: Path
    name: str = ""
    """What reports call it; that of the root's directory by default."""
    build: tuple[Command, ...] = ()
    check: tuple[Command, ...] = ()
    test: tuple[Command, ...] = ()
    test_format: TestFormat | None = None
    """How the test command says what each test did; None: recognised by what it prints."""
    test_reports: tuple[str, ...] = ()
    """Globs of the JUnit files that the test command writes."""
    harness: tuple[str, ...] = ()
    """Globs of the files that say which tests run and how."""
    clean: tuple[Command, ...] = ()
    outputs: tuple[str, ...] = ()
    """Directories and files (globs below the root) that a build makes. Empty: a cold build starts from a new copy."""
    knows_dependencies: bool = True
    """Whether the build system itself finds out which files each of its outputs is made of."""
    configured: tuple[str, ...] = ()
    """Files in which a build keeps what it found out about its sources; a candidate that adds or removes one is built
    without them."""
    inputs: tuple[str, ...] = ()
    """Files and directories that a build reads although git does not track them, such as installed packages."""
    git: bool = False
    """Whether candidates' builds see the project's git history, too; benchmarks always do."""
    edit: LineEdit | None = None
    edit_command: Command | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, Command] = field(default_factory=dict)
    """Tool name to the command that prints its version; part of the fingerprint."""
    lock_files: tuple[str, ...] = ()
    config_files: tuple[str, ...] = ()
    profile: str = "default"
    readable: tuple[str, ...] = ()
    """Paths outside the system's directories that builds read, such as the Python they run."""
    notes: tuple[str, ...] = ()
    """What a report has to say about how the project was recognised."""
    mode_tables: Mapping[str, ReadRecord] = field(default_factory=dict)
    """The [rl-bench.modes.*] and [rl-bench.baseline] tables of the project's own file."""
    baseline_table: ReadRecord = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.root.name)


# --- What Cargo says about a project: its name, its members, and the crate that most others depend on ---
@dataclass(frozen=True)
class CargoParts:
    """The name of a Cargo project, whether it has several crates, and the file an edit should go into."""

    name: str
    is_workspace: bool
    central_file: str
    build_scripts: tuple[str, ...] = ()
    """Programs that run before a crate is compiled, and say what it is linked with."""


def cargo_project_parts(root: Path) -> CargoParts:
    """Ask `cargo metadata --no-deps`, which resolves nothing and writes nothing."""
    command = ("cargo", "metadata", "--no-deps", "--format-version", "1", "--offline")
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        raise BuildError(f"{root} is a Cargo project but cargo is not installed: install Rust") from None
    if done.returncode != 0:
        raise BuildError(f"cargo cannot read {root}: {done.stderr.strip().splitlines()[-1]}")
    data = json.loads(done.stdout)
    members = set(data["workspace_members"])
    packages = {package["name"]: package for package in data["packages"] if package["id"] in members}
    named = {name: {each["name"] for each in package["dependencies"]} for name, package in packages.items()}
    dependents = _dependents({name: others & set(packages) for name, others in named.items()})
    central = max(sorted(packages), key=lambda name: dependents[name])
    target = _library_first(packages[central]["targets"])
    at_root = [name for name, package in packages.items() if Path(package["manifest_path"]).parent == root]
    scripts = [
        str(Path(each["src_path"]).relative_to(root))
        for package in packages.values()
        for each in package["targets"]
        if "custom-build" in each["kind"] and Path(each["src_path"]).is_relative_to(root)
    ]
    name = (at_root or [root.name])[0]
    return CargoParts(name, len(packages) > 1, str(Path(target).relative_to(root)), tuple(sorted(scripts)))


def _library_first(targets: list[dict[str, object]]) -> str:
    """The source path of the library target, or of the first target that is not a build script."""
    kinds = {"lib", "rlib", "proc-macro", "dylib", "cdylib"}
    ordered = sorted(targets, key=lambda target: (not kinds & set(_kinds(target)), "custom-build" in _kinds(target)))
    return str(ordered[0]["src_path"])


def _kinds(target: dict[str, object]) -> list[str]:
    kinds = target["kind"]
    return [str(kind) for kind in kinds] if isinstance(kinds, list) else []


def _dependents(depends_on: Mapping[str, set[str]]) -> dict[str, int]:
    """How many members depend on each member, directly or not."""
    counts = dict.fromkeys(depends_on, 0)
    for name in depends_on:
        seen: set[str] = set()
        pending = [name]
        while pending:
            for other in depends_on[pending.pop()] - seen:
                seen.add(other)
                pending.append(other)
        for other in seen - {name}:
            counts[other] += 1
    return counts


# --- Python projects: built by compiling and collecting, with the interpreter that is theirs ---
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
_PARTS = [(Path(__file__).parents[1] / "tamper" / name).read_text() for name in ("equality.py", "pytest_plugin.py")]
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


# --- Meson, Ruby and plain Java; and, for build systems that are only recognised, what to write into rl-bench.toml ---
_JAVA_SOURCES = "find . -name '*.java' -not -path './" + BUILD_DIRECTORY + "/*'"
_RUBY_SOURCES = "find . -name '*.rb' -not -path './vendor/*' -print0"


def meson_project(root: Path) -> Project:
    """A Meson project, built in a directory of its own."""
    build = ("meson", "compile", "-C", BUILD_DIRECTORY, "-j", "{jobs}")
    return Project(
        kind="meson",
        root=root,
        build=(("meson", "setup", "--buildtype={profile}", BUILD_DIRECTORY), build),
        check=(build,),
        test=(("meson", "test", "-C", BUILD_DIRECTORY),),
        test_format=TestFormat.JUNIT,
        test_reports=(f"{BUILD_DIRECTORY}/meson-logs/testlog.junit.xml",),
        harness=("meson.build", "*/meson.build", "meson_options.txt", "meson.options"),
        outputs=(BUILD_DIRECTORY,),
        configured=(f"{BUILD_DIRECTORY}/meson-private/coredata.dat", f"{BUILD_DIRECTORY}/build.ninja"),
        edit=central_edit(root, (".c", ".h", ".cc", ".cpp", ".cxx", ".hpp")),
        tools={"meson": ("meson", "--version"), "ninja": ("ninja", "--version"), "cc": ("cc", "--version")},
        profile="debug",
    )


def ruby_project(root: Path) -> Project:
    """A Ruby project: every file is parsed; tests by Rake, or by RSpec where it is set up."""
    parse = ("sh", "-c", f"{_RUBY_SOURCES} | xargs -0 -n 1 -P {{jobs}} ruby -c > /dev/null")
    test = ("rspec",) if (root / ".rspec").exists() or (root / "spec").is_dir() else ("rake", "test")
    return Project(
        kind="ruby",
        root=root,
        build=(parse,),
        check=(parse,),
        test=(test,),
        harness=("Rakefile", ".rspec", "Gemfile", "Gemfile.lock", "spec/spec_helper.rb", "test/test_helper.rb"),
        outputs=(BUILD_DIRECTORY,),
        inputs=("vendor",),
        edit=central_edit(root, (".rb",)),
        tools={"ruby": ("ruby", "--version")},
        lock_files=("Gemfile.lock",),
    )


def java_project(root: Path) -> Project:
    """Java sources without a build file: one call of the compiler. There is no test command to be known."""
    classes = f"{BUILD_DIRECTORY}/classes"
    compile_all = ("sh", "-c", f"mkdir -p {classes} && {_JAVA_SOURCES} > {BUILD_DIRECTORY}/sources && "
                   f"javac -d {classes} @{BUILD_DIRECTORY}/sources")  # fmt: skip
    return Project(
        kind="java",
        root=root,
        build=(compile_all,),
        check=(compile_all,),
        outputs=(BUILD_DIRECTORY, "**/*.class"),
        edit=central_edit(root, (".java",)),
        tools={"javac": ("javac", "-version")},
    )


# Markers, and the three commands with what they make. None of these systems builds offline and in a copy by itself.
_RECIPES = {
    "Gradle": (
        ("build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"),
        (
            'build = "./gradlew --offline --no-daemon --no-build-cache assemble"',
            'check = "./gradlew --offline --no-daemon --no-build-cache classes"',
            'test = "./gradlew --offline --no-daemon --no-build-cache test"',
            'test_format = "junit"',
            'test_reports = ["**/build/test-results/**/*.xml"]',
            'outputs = ["build", "**/build", ".gradle"]',
            'edit_file = "src/main/java/PATH/TO/CENTRAL.java"',
        ),
    ),
    "Bazel": (
        ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel"),
        (
            'build = "bazel --output_base=$PWD.bazel build --disk_cache= --jobs={jobs} //..."',
            'check = "bazel --output_base=$PWD.bazel build --disk_cache= --jobs={jobs} //..."',
            'test = "bazel --output_base=$PWD.bazel test --disk_cache= --jobs={jobs} //..."',
            'clean = "bazel --output_base=$PWD.bazel clean --expunge"',
            'test_format = "junit"',
            'test_reports = ["bazel-testlogs/**/test.xml"]',
            'edit_file = "PATH/TO/CENTRAL.cc"',
        ),
    ),
    ".NET": (
        ("*.sln", "*.slnx", "*.csproj", "*.fsproj", "*/*.csproj"),
        (
            'build = "dotnet build --no-restore --nologo -maxcpucount:{jobs}"',
            'check = "dotnet build --no-restore --nologo -maxcpucount:{jobs}"',
            'test = "dotnet test --no-restore --nologo --logger:junit"',
            'test_format = "junit"',
            'test_reports = ["**/TestResults/*.xml"]',
            'outputs = ["bin", "**/bin", "TestResults", "**/TestResults"]',
            'inputs = ["obj"]',
            'edit_file = "PATH/TO/CENTRAL.cs"',
            'edit_line = "internal static class MileageEdit{n} { }"',
        ),
    ),
    "Swift": (
        ("Package.swift",),
        (
            'build = "swift build --disable-automatic-resolution --jobs {jobs}"',
            'check = "swift build --disable-automatic-resolution --jobs {jobs}"',
            'test = "swift test --disable-automatic-resolution --xunit-output tests.xml"',
            'test_format = "junit"',
            'test_reports = ["tests.xml"]',
            'outputs = [".build"]',
            'edit_file = "Sources/NAME/CENTRAL.swift"',
            'edit_line = "let mileageEdit{n} = {n}"',
        ),
    ),
    "Cabal": (
        ("*.cabal", "cabal.project", "stack.yaml"),
        (
            'build = "cabal build --offline --jobs={jobs} all"',
            'check = "cabal build --offline --jobs={jobs} --ghc-options=-fno-code all"',
            'test = "cabal test --offline all"',
            'outputs = ["dist-newstyle"]',
            'edit_file = "src/CENTRAL.hs"',
            'edit_line = "mileageEdit{n} = {n} :: Int"',
        ),
    ),
}  # fmt: skip


def recipe_for(root: Path) -> str | None:
    """What to write into rl-bench.toml for a build system that is recognised and not built in; None for all others."""
    for name, (marks, lines) in _RECIPES.items():
        if any(True for mark in marks for _ in root.glob(mark)):
            text = "\n".join(("", "[rl-bench]", *lines, ""))
            return (
                f"{root} is built by {name}, whose commands depend on the project: put these into {CONFIG_NAME}\n{text}"
            )
    return None
