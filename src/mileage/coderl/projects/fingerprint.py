"""Everything that may make two builds differ, rustc's real flags included; one row alone may.

Compiler flags are split by meaning: the linker, the parallel front end, the code generator, debug information and the
compiler cache have rows of their own, so that a mode which declares one of them cannot carry a second one along.

Cargo takes them from one place only: CARGO_ENCODED_RUSTFLAGS, else RUSTFLAGS, else those of the target, else those of
the build, each in a variable or in a configuration file. A mode that sets one would silently drop the others, so they
are all moved into RUSTFLAGS before anything is compared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mileage.coderl.projects.systems import Command, Project
from mileage.coderl.sandbox.isolation import allowed_environment
from mileage.errors import BuildError, UnmatchedError, UsageError
from mileage.records import Record

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
class SetupDifference:
    """One row in which two fingerprints disagree."""

    key: str
    baseline: str
    mode: str

    def __str__(self) -> str:
        return f"{self.key}: {self.baseline!r} against {self.mode!r}"


def differences(baseline: Fingerprint, mode: Fingerprint) -> tuple[SetupDifference, ...]:
    """The rows in which two fingerprints disagree, in order of their names."""
    keys = [key for key in sorted(set(baseline) | set(mode)) if baseline.get(key) != mode.get(key)]
    return tuple(SetupDifference(key, baseline.get(key, "absent"), mode.get(key, "absent")) for key in keys)


def check_fair(mode_name: str, declared: str, baseline: Fingerprint, mode: Fingerprint) -> SetupDifference:
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


# --- The flags that Cargo will really give to rustc, and those it has given ---
ENCODED = "CARGO_ENCODED_RUSTFLAGS"
_TARGET = re.compile(r"CARGO_TARGET_(\w+)_RUSTFLAGS")


def is_flag_variable(name: str) -> bool:
    """Whether Cargo reads flags for rustc from a variable, RUSTFLAGS itself apart."""
    return name in (ENCODED, "CARGO_BUILD_RUSTFLAGS") or bool(_TARGET.fullmatch(name))


def cargo_configs(tree: Path, env: Mapping[str, str]) -> list[tuple[Path, Record]]:
    """The configuration files that Cargo reads for a build in `tree`, the nearest first."""
    home = Path(env.get("CARGO_HOME") or Path(env.get("HOME", os.path.expanduser("~"))) / ".cargo")
    places = [*(directory / ".cargo" for directory in (tree, *tree.parents)), home]
    found: dict[Path, Record] = {}
    for place in places:
        # Where both exist, Cargo reads the one without a suffix.
        file = next((place / name for name in ("config", "config.toml") if (place / name).is_file()), None)
        if file is None or file in found:
            continue
        try:
            found[file] = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise BuildError(f"{file} is not valid TOML: {error}") from None
    return list(found.items())


def _words(value: object) -> list[str]:
    return value.split() if isinstance(value, str) else [str(flag) for flag in value] if isinstance(value, list) else []


def _ask(command: Sequence[str], tree: Path, env: Mapping[str, str]) -> list[str]:
    """The lines that a tool prints; none if it cannot be started."""
    try:
        done = subprocess.run(command, cwd=tree, env=dict(env), capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def build_target(tree: Path, env: Mapping[str, str]) -> str:
    """The triple that a build in `tree` is for: the configured one, or this machine's."""
    named = env.get("CARGO_BUILD_TARGET")
    for _, config in cargo_configs(tree, env):
        value = config.get("build", {}).get("target")
        named = named or (value[0] if isinstance(value, list) and value else value)
    if named:
        return str(named)
    hosts = [line for line in _ask(("rustc", "-vV"), tree, env) if line.startswith("host: ")]
    return hosts[0].removeprefix("host: ") if hosts else ""


def effective_rustflags(tree: Path, env: Mapping[str, str]) -> list[str]:
    """The flags that Cargo gives to rustc for a build in `tree`, by its own order of precedence."""
    if ENCODED in env:
        return [flag for flag in env[ENCODED].split("\x1f") if flag]
    if "RUSTFLAGS" in env:
        return env["RUSTFLAGS"].split()
    configs = cargo_configs(tree, env)
    has_targets = any(_TARGET.fullmatch(name) for name in env) or any("target" in config for _, config in configs)
    flags = _target_flags(tree, env, configs) if has_targets else []
    if flags:
        return flags
    # Lists of several files are joined, the nearest last; the variable comes after them.
    build = [flag for _, config in reversed(configs) for flag in _words(config.get("build", {}).get("rustflags"))]
    return build + env.get("CARGO_BUILD_RUSTFLAGS", "").split()


def _target_flags(tree: Path, env: Mapping[str, str], configs: Sequence[tuple[Path, Record]]) -> list[str]:
    triple = build_target(tree, env)
    flags: list[str] = []
    for _, config in reversed(configs):
        for name, table in config.get("target", {}).items():
            applies = name == triple or (name.startswith("cfg(") and _holds(name, triple, tree, env))
            if isinstance(table, dict) and applies:
                flags += _words(table.get("rustflags"))
    variable = f"CARGO_TARGET_{triple.upper().replace('-', '_').replace('.', '_')}_RUSTFLAGS"
    return flags + env.get(variable, "").split()


def _holds(expression: str, triple: str, tree: Path, env: Mapping[str, str]) -> bool:
    """Whether a `cfg(...)` expression is true of a target, by what rustc says about it."""
    known = set(_ask(("rustc", "--print", "cfg", *(("--target", triple) if triple else ())), tree, env))
    tokens = re.findall(r'[\w-]+\s*=\s*"[^"]*"|[\w-]+|[(),]', expression)

    def read(position: int) -> tuple[bool, int]:
        word = tokens[position] if position < len(tokens) else ""
        if position + 1 >= len(tokens) or tokens[position + 1] != "(":
            return re.sub(r"\s*=\s*", "=", word) in known or word == "true", position + 1
        parts: list[bool] = []
        position += 2
        while position < len(tokens) and tokens[position] != ")":
            if tokens[position] == ",":
                position += 1
                continue
            part, position = read(position)
            parts.append(part)
        value = any(parts) if word == "any" else not any(parts) if word == "not" else all(parts)
        return value, position + 1

    return read(0)[0]


def folded(tree: Path, env: Mapping[str, str]) -> dict[str, str]:
    """`env` with all flags for rustc in RUSTFLAGS, where the fingerprint looks for them."""
    flags = effective_rustflags(tree, env)
    rest = {name: value for name, value in env.items() if not is_flag_variable(name) and name != "RUSTFLAGS"}
    if any(" " in flag for flag in flags):
        spaced = next(flag for flag in flags if " " in flag)
        raise UsageError(
            f"the flag {spaced!r} for rustc has a space in it, which RUSTFLAGS cannot hold: write it without"
        )
    # An empty variable is not an absent one: it keeps Cargo from looking any further.
    said = flags or ENCODED in env or "RUSTFLAGS" in env
    return {**rest, "RUSTFLAGS": " ".join(flags)} if said else rest


def folded_mode(name: str, before: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a mode whose table may set flags; one that Cargo would ignore is refused."""
    new = [key for key in env if is_flag_variable(key) and before.get(key) != env[key]]
    if not new:
        return dict(env)
    if env.get("RUSTFLAGS") and new != [ENCODED]:
        raise UsageError(
            f"mode {name!r} sets {new[0]}, which Cargo ignores beside the RUSTFLAGS that all arms have "
            f"({env['RUSTFLAGS']}): set RUSTFLAGS to those and yours"
        )
    flags = env[new[0]].split("\x1f" if new[0] == ENCODED else None)
    rest = {key: value for key, value in env.items() if key not in new}
    return {**rest, "RUSTFLAGS": " ".join(flag for flag in flags if flag)}


def used_rustflags(target_directory: Path) -> set[tuple[str, ...]]:
    """The flags that rustc was really called with, by what Cargo noted about each unit that it built."""
    found: set[tuple[str, ...]] = set()
    for file in target_directory.glob("**/.fingerprint/*/*.json"):
        try:
            flags = json.loads(file.read_text()).get("rustflags")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(flags, list):
            found.add(tuple(str(flag) for flag in flags))
    return found
