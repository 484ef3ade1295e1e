"""What Cargo says about a project: its name, its members, and the crate that most others depend on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mileage._errors import BuildError


@dataclass(frozen=True)
class CargoParts:
    """The name of a Cargo project, whether it has several crates, and the file an edit should go into."""

    name: str
    is_workspace: bool
    central_file: str


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
    return CargoParts((at_root or [root.name])[0], len(packages) > 1, str(Path(target).relative_to(root)))


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


def _may_be_host(target: str) -> bool:
    """Whether a target of a Cargo configuration may be this machine; a cfg() expression may."""
    return target.startswith("cfg(") or (target.startswith(platform.machine()) and "linux" in target)


def configured_rustflags(tree: Path, env: Mapping[str, str]) -> list[str]:
    """The rustflags that Cargo's configuration files give a build in `tree`.

    A RUSTFLAGS variable replaces them silently, so a mode that sets one would drop them: the benchmark has to
    move them into the variable of every arm.
    """
    home = Path(env.get("CARGO_HOME") or Path(env.get("HOME", os.path.expanduser("~"))) / ".cargo")
    files = [directory / ".cargo" / name for directory in (tree, *tree.parents) for name in ("config.toml", "config")]
    files += [home / "config.toml", home / "config"]
    flags: list[str] = []
    for file in dict.fromkeys(files):
        if not file.is_file():
            continue
        try:
            config = tomllib.loads(file.read_text())
        except tomllib.TOMLDecodeError as error:
            raise BuildError(f"{file} is not valid TOML: {error}") from None
        for target, table in config.get("target", {}).items():
            if isinstance(table, dict) and "rustflags" in table and _may_be_host(target):
                raise BuildError(
                    f"{file} sets rustflags for target {target!r}, which a RUSTFLAGS variable would replace: "
                    "move them to build.rustflags so that every arm gets them"
                )
        value = config.get("build", {}).get("rustflags", [])
        flags += value.split() if isinstance(value, str) else [str(flag) for flag in value]
    return flags
