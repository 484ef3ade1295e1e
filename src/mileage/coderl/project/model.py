"""What a project is to the benchmark and to the pool: commands, and what they read and make.

`{jobs}` in a command stands for the number of parallel jobs, `{profile}` for the build profile, `{tree}` in a variable
for the place of the copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mileage._records import ReadRecord
from mileage.coderl.outcomes import TestFormat
from mileage.coderl.project.edits import LineEdit

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
