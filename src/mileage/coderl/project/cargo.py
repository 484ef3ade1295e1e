"""What Cargo says about a project: its name, its members, and the crate that most others depend on."""

from __future__ import annotations

import json
import subprocess
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
