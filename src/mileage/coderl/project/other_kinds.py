"""Meson, Ruby and plain Java; and, for build systems that are only recognised, what to write into rl-bench.toml."""

from __future__ import annotations

from pathlib import Path

from mileage.coderl.outcomes import TestFormat
from mileage.coderl.project.edits import central_edit
from mileage.coderl.project.model import BUILD_DIRECTORY, CONFIG_NAME, Project

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
