"""The flags that Cargo will really give to rustc, and those it has given.

Cargo takes them from one place only: CARGO_ENCODED_RUSTFLAGS, else RUSTFLAGS, else those of the target, else those of
the build, each in a variable or in a configuration file. A mode that sets one would silently drop the others, so they
are all moved into RUSTFLAGS before anything is compared.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from mileage._errors import BuildError, UsageError
from mileage._records import Record

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
