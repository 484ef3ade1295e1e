"""Everything that may make two builds differ, as one flat table per arm, and the rule that only one row may.

Compiler flags are split by meaning: the linker, the parallel front end, the code generator, debug information and the
compiler cache have rows of their own, so that a mode which declares one of them cannot carry a second one along.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mileage._errors import UnmatchedError
from mileage.coderl.build.environment import allowed_environment
from mileage.coderl.project.model import Command, Project

Fingerprint = Mapping[str, str]

# Variables that change between two shells on one machine without changing a build.
VOLATILE = frozenset({
    "_", "OLDPWD", "PWD", "SHLVL", "TERM", "COLUMNS", "LINES", "DISPLAY", "XAUTHORITY", "TMUX", "TMUX_PANE", "STY",
    "COLORTERM", "LS_COLORS", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "WINDOWID", "LOGNAME",
    "PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT",
    "PYTEST_XDIST_TESTRUNUID", "INVOCATION_ID", "JOURNAL_STREAM", "MAKEFLAGS", "MAKELEVEL", "MFLAGS",
})  # fmt: skip
# Variables through which a compiler cache could warm a build that is meant to be cold.
CACHE_VARIABLES = ("RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_RUSTC_WRAPPER")
LAUNCHER_VARIABLES = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")
FLAG_VARIABLES = ("RUSTFLAGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
NOT_INSTALLED = "not installed"

_LINKER = re.compile(r"(?:-C\s*link-arg=)?-fuse-ld=(\S+)|-C\s*linker=(\S+)|(?:-C\s*link-arg=)?--ld-path=(\S+)")
# What has a row of its own among the flags of C and its like, and among those of Rust.
_C_ROWS = {"linker": _LINKER, "debug_info": re.compile(r"(?<!\S)-g(\d?)(?!\S)")}
_RUST_ROWS = {
    "linker": _LINKER,
    "frontend_threads": re.compile(r"-Z\s*threads=(\S+)"),
    "codegen_backend": re.compile(r"-Z\s*codegen-backend=(\S+)"),
    "debug_info": re.compile(r"-C\s*debuginfo=(\S+)"),
}
_DEBUG_OVERRIDE = re.compile(r"CARGO_PROFILE_\w+_DEBUG")

# CMake's own flags of its build types, without their -g.
_CMAKE_NO_DEBUG = {"Debug": "-g0", "RelWithDebInfo": "-O2 -g0 -DNDEBUG"}


def cmake_no_debug_words(profile: str) -> tuple[str, ...]:
    """What tells CMake to leave debug information out of a build type; nothing if that has none."""
    flags = _CMAKE_NO_DEBUG.get(profile)
    return tuple(f"-DCMAKE_{lang}_FLAGS_{profile.upper()}={flags}" for lang in ("C", "CXX")) if flags else ()


def base_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment all arms share: what toolchains read of the user's, without compiler caches."""
    dropped = VOLATILE | set(CACHE_VARIABLES) | set(LAUNCHER_VARIABLES)
    allowed = allowed_environment(os.environ if source is None else source)
    env = {name: value for name, value in allowed.items() if name not in dropped}
    env["CCACHE_DISABLE"] = "1"
    # A build may call sccache by itself: it then fills its cache and reads nothing from it.
    env["SCCACHE_RECACHE"] = "1"
    return env


@dataclass(frozen=True)
class ArmSetup:
    """All that decides how one arm builds; commands still hold `{jobs}` and `{profile}`, variables `{tree}`."""

    env: Mapping[str, str]
    build: tuple[Command, ...]
    check: tuple[Command, ...]
    jobs: int
    profile: str
    warm_snapshot: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    """Files of the copy that are replaced by other files of the project: target to source."""

    def commands(self, steps: tuple[Command, ...]) -> tuple[Command, ...]:
        """`steps` with job count and profile filled in."""

        def filled(word: str) -> str:
            return word.replace("{jobs}", str(self.jobs)).replace("{profile}", self.profile)

        return tuple(tuple(map(filled, step)) for step in steps)

    def environment(self, tree: str) -> dict[str, str]:
        """The variables of a build whose copy is at `tree`."""
        return {name: value.replace("{tree}", tree) for name, value in self.env.items()}


def _take(pattern: re.Pattern[str], text: str) -> tuple[list[str], str]:
    """What `pattern` finds in `text` and the text without it."""
    found = [next(group for group in (*match.groups(), "") if group is not None) for match in pattern.finditer(text)]
    return found, " ".join(pattern.sub(" ", text).split())


def split_flags(env: Mapping[str, str]) -> dict[str, str]:
    """The flag variables split into rows by meaning; a row that nothing sets says `default`."""
    said: dict[str, list[str]] = {row: [] for row in _RUST_ROWS}
    rows: dict[str, str] = {}
    for name in FLAG_VARIABLES:
        rest = env.get(name, "")
        for row, pattern in (_RUST_ROWS if name == "RUSTFLAGS" else _C_ROWS).items():
            found, rest = _take(pattern, rest)
            said[row] += [f"{name}={value or 'default'}" for value in found] if row == "debug_info" else found
        rows[f"flags.{name}"] = rest or "none"
    said["debug_info"] += [f"{name}={env[name]}" for name in sorted(env) if _DEBUG_OVERRIDE.fullmatch(name)]
    said["linker"] = sorted(set(said["linker"]))
    for row in ("frontend_threads", "codegen_backend"):
        said[row] = said[row][-1:]
    return rows | {row: " ".join(values) or "default" for row, values in said.items()}


def _split_cache(env: Mapping[str, str]) -> str:
    names = [f"{name}={env[name]}" for name in (*CACHE_VARIABLES, *LAUNCHER_VARIABLES) if env.get(name)]
    return " ".join(names) or "none"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else "absent"


def tool_version(command: Command, env: Mapping[str, str], tree: Path) -> str:
    """What a tool says about itself, on one line."""
    try:
        done = subprocess.run(command, env=dict(env), cwd=tree, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return NOT_INSTALLED
    lines = (done.stdout or done.stderr).strip().splitlines()
    return "; ".join(line.strip() for line in lines[:8]) if done.returncode == 0 else NOT_INSTALLED


def fingerprint(
    project: Project, setup: ArmSetup, tree: Path, revision: str, replaced: Iterable[str] = ()
) -> dict[str, str]:
    """The fingerprint of an arm whose copy of the project is `tree`; `replaced` are files that some arm replaces."""
    env = setup.environment("<tree>")
    rows = {"project.revision": revision, "jobs": str(setup.jobs), "profile": setup.profile}
    own = setup.environment(str(tree))
    rows |= {f"toolchain.{name}": tool_version(command, own, tree) for name, command in project.tools.items()}
    rows |= split_flags(env)
    rows["compiler_cache"] = _split_cache(env)
    rows["warm_snapshot"] = "yes" if setup.warm_snapshot else "no"
    rows |= {f"lock_file.{name}": _digest(tree / name) for name in project.lock_files}
    rows |= {f"config.{name}": _digest(tree / name) for name in project.config_files}
    named = {*project.lock_files, *project.config_files}
    rows |= {f"files.{name}": _digest(tree / name) for name in sorted({*replaced, *setup.files} - named)}
    no_debug = cmake_no_debug_words(setup.profile) if project.kind == "cmake" else ()
    build = tuple(tuple(word for word in step if word not in no_debug) for step in setup.build)
    if build != setup.build:
        rows["debug_info"] = "none"
    rows["commands.build"] = _text(build)
    rows["commands.check"] = _text(setup.check)
    for name, value in sorted(env.items()):
        if _is_profile_override(name):
            rows[f"profile.{name}"] = value
        elif name == "RUSTUP_TOOLCHAIN":
            rows["toolchain.RUSTUP_TOOLCHAIN"] = value
        elif not _has_own_row(name):
            rows[f"env.{name}"] = _private(name, value)
    return rows


def _private(name: str, value: str) -> str:
    """A variable as it may be stored: what came from the user's shell is hashed, it may be a secret."""
    if os.environ.get(name) != value:
        return value
    return "sha256:" + hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _text(steps: Iterable[Command]) -> str:
    return " && ".join(" ".join(step) for step in steps)


def _is_profile_override(name: str) -> bool:
    return name.startswith("CARGO_PROFILE_") and not _DEBUG_OVERRIDE.fullmatch(name)


def _has_own_row(name: str) -> bool:
    own = {*FLAG_VARIABLES, *CACHE_VARIABLES, *LAUNCHER_VARIABLES}
    # The cache's own settings belong to the cache; on the baseline they do nothing.
    return name in own or name.startswith(("SCCACHE_", "CCACHE_")) or bool(_DEBUG_OVERRIDE.fullmatch(name))


@dataclass(frozen=True)
class Difference:
    """One row in which two fingerprints disagree."""

    key: str
    baseline: str
    mode: str

    def __str__(self) -> str:
        return f"{self.key}: {self.baseline!r} against {self.mode!r}"


def differences(baseline: Fingerprint, mode: Fingerprint) -> tuple[Difference, ...]:
    """The rows in which two fingerprints disagree, in order of their names."""
    keys = [key for key in sorted(set(baseline) | set(mode)) if baseline.get(key) != mode.get(key)]
    return tuple(Difference(key, baseline.get(key, "absent"), mode.get(key, "absent")) for key in keys)


def check_fair(mode_name: str, declared: str, baseline: Fingerprint, mode: Fingerprint) -> Difference:
    """The one declared difference; UnmatchedError with the list if there is any other, or none."""
    found = differences(baseline, mode)
    own = [difference for difference in found if covers(declared, difference.key)]
    other = [difference for difference in found if not covers(declared, difference.key)]
    if other:
        listed = "; ".join(str(difference) for difference in other)
        raise UnmatchedError(
            f"mode {mode_name!r} declares one difference ({declared}) but also differs in {len(other)}: {listed}. "
            "Give both sides the same setting"
        )
    if not own:
        raise UnmatchedError(f"mode {mode_name!r} declares {declared} but builds exactly like the baseline: remove it")
    return own[0]


def covers(declared: str, key: str) -> bool:
    """Whether a declared difference (`linker`, `toolchain`) covers a row (`linker`, `toolchain.rustc`)."""
    return key == declared or key.startswith(declared + ".")
