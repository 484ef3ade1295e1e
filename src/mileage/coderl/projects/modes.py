"""Modes: each is one declared difference from the baseline, and how to bring it about."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mileage.coderl.projects.detection import steps_of
from mileage.coderl.projects.fingerprint import (
    NOT_INSTALLED,
    ArmSetup,
    base_environment,
    cmake_no_debug_words,
    folded,
    folded_mode,
    tool_version,
)
from mileage.coderl.projects.systems import Project
from mileage.errors import BuildError, UnknownNameError, UsageError
from mileage.records import ReadRecord

BASELINE = "baseline"
_CARGO = frozenset({"cargo"})
_C = frozenset({"cmake", "make"})


@dataclass(frozen=True)
class Mode:
    """A way to build that differs from the baseline in `difference` alone (a fingerprint row, or its prefix)."""

    name: str
    difference: str
    about: str
    change: Callable[[ArmSetup, Project], ArmSetup]
    needs: tuple[str, ...] = ()
    kinds: frozenset[str] | None = None
    fill_runs: int = 0
    """Runs before the measurement that fill what the mode keeps (a compiler cache); they are not counted."""
    check: Callable[[ArmSetup, Project], None] | None = None
    """Refuses a toolchain that the mode cannot work with, before anything is built."""


def _append(setup: ArmSetup, **flags: str) -> ArmSetup:
    """The setup with words added to environment variables."""
    env = dict(setup.env)
    for name, value in flags.items():
        env[name] = f"{env.get(name, '')} {value}".strip()
    return replace(setup, env=env)


def _set(setup: ArmSetup, **variables: str) -> ArmSetup:
    return replace(setup, env={**setup.env, **variables})


def _linker(name: str) -> Callable[[ArmSetup, Project], ArmSetup]:
    def change(setup: ArmSetup, project: Project) -> ArmSetup:
        if project.kind == "cargo":
            return _append(setup, RUSTFLAGS=f"-Clink-arg=-fuse-ld={name}")
        return _append(setup, LDFLAGS=f"-fuse-ld={name}")

    return change


def _no_debug_info(setup: ArmSetup, project: Project) -> ArmSetup:
    if project.kind == "cargo":
        name = "RELEASE" if setup.profile == "release" else "DEV"
        return _set(setup, **{f"CARGO_PROFILE_{name}_DEBUG": "0"})
    if project.kind == "cmake":
        # CMake puts the build type's -g behind CFLAGS, where it wins over a -g0.
        words = cmake_no_debug_words(setup.profile)
        configure, *rest = setup.build
        if not words or configure[0] != "cmake":
            raise UsageError(
                f"mode 'no-debuginfo' knows CMake's build types Debug and RelWithDebInfo, not {setup.profile!r} by "
                f"{configure[0]!r}: declare a mode of your own in rl-bench.toml"
            )
        return replace(setup, build=((*configure, *words), *rest))
    return _append(setup, CFLAGS="-g0", CXXFLAGS="-g0")


def _need_nightly(setup: ArmSetup, project: Project) -> None:
    """Refuse a compiler that does not take unstable flags."""
    said = tool_version(("rustc", "--version"), setup.env, project.root)
    if setup.env.get("RUSTC_BOOTSTRAP") or said == NOT_INSTALLED or re.search(r"-(?:nightly|dev)\b", said):
        return
    raise UsageError(f"this mode needs a nightly compiler, and {said} is none: add --toolchain nightly")


def _need_cranelift(setup: ArmSetup, project: Project) -> None:
    """Refuse a toolchain without the Cranelift back end."""
    _need_nightly(setup, project)
    sysroot = tool_version(("rustc", "--print", "sysroot"), setup.env, project.root)
    if sysroot != NOT_INSTALLED and not any(Path(sysroot).glob("lib/rustlib/*/codegen-backends/*cranelift*")):
        add = "rustup component add rustc-codegen-cranelift-preview"
        raise UsageError(f"mode 'cranelift' needs a component that this toolchain lacks: {add}")


def _sccache(setup: ArmSetup, project: Project) -> ArmSetup:
    setup = replace(setup, env={name: value for name, value in setup.env.items() if name != "SCCACHE_RECACHE"})
    if project.kind == "cargo":
        return _set(setup, RUSTC_WRAPPER="sccache")
    return _set(setup, CMAKE_C_COMPILER_LAUNCHER="sccache", CMAKE_CXX_COMPILER_LAUNCHER="sccache")


def _ccache(setup: ArmSetup, project: Project) -> ArmSetup:
    env = {name: value for name, value in setup.env.items() if name != "CCACHE_DISABLE"}
    return _set(replace(setup, env=env), CMAKE_C_COMPILER_LAUNCHER="ccache", CMAKE_CXX_COMPILER_LAUNCHER="ccache")


BUILT_IN = {
    mode.name: mode
    for mode in (
        Mode("mold", "linker", "link with mold", _linker("mold"), ("mold",), _CARGO | _C),
        Mode("lld", "linker", "link with lld", _linker("lld"), ("ld.lld",), _CARGO | _C),
        Mode("wild", "linker", "link with wild", _linker("wild"), ("wild",), _CARGO | _C),
        Mode("threads", "frontend_threads", "parallel front end (-Z threads, nightly)",
             lambda setup, _: _append(setup, RUSTFLAGS=f"-Zthreads={setup.jobs}"), (), _CARGO, check=_need_nightly),
        Mode("cranelift", "codegen_backend", "Cranelift back end (nightly)",
             lambda setup, _: _append(setup, RUSTFLAGS="-Zcodegen-backend=cranelift"), (), _CARGO,
             check=_need_cranelift),
        Mode("sccache", "compiler_cache", "sccache, filled", _sccache, ("sccache",), _CARGO | {"cmake"}, 1),
        Mode("ccache", "compiler_cache", "ccache, filled", _ccache, ("ccache",), frozenset({"cmake"}), 1),
        Mode("no-debuginfo", "debug_info", "no debug information", _no_debug_info, (), _CARGO | _C),
        Mode("cargo-slicer", "compiler_cache", "cargo-slicer",
             lambda setup, _: _set(setup, RUSTC_WRAPPER="cargo_slicer_dispatch"), ("cargo_slicer_dispatch",), _CARGO),
        Mode("warm-snapshot", "warm_snapshot", "restored built tree plus a one-line edit",
             lambda setup, _: replace(setup, warm_snapshot=True)),
    )
}  # fmt: skip


def baseline_setup(project: Project, jobs: int, toolchain: str | None = None) -> ArmSetup:
    """How the project builds without any mode."""
    env = {**base_environment(), **project.env}
    if project.kind == "cargo":
        env["CARGO_TARGET_DIR"] = "{tree}/target"
        # Since Cargo 1.91 a configuration file may keep what is between source and result elsewhere.
        env["CARGO_BUILD_BUILD_DIR"] = "{tree}/target"
        env["CARGO_NET_OFFLINE"] = env.get("CARGO_NET_OFFLINE", "true")
        # Empty is not unset: it also turns off a wrapper that a configuration file names.
        env = {"RUSTC_WRAPPER": "", "RUSTC_WORKSPACE_WRAPPER": "", **env}
        if toolchain:
            env["RUSTUP_TOOLCHAIN"] = toolchain
        env = folded(project.root, env)
    elif toolchain:
        raise UsageError(f"--toolchain {toolchain!r} is for Cargo projects, this one is {project.kind}")
    setup = ArmSetup(env=env, build=project.build, check=project.check, jobs=jobs, profile=project.profile)
    return _apply_table(BASELINE, setup, project.baseline_table) if project.baseline_table else setup


def find_mode(name: str, project: Project) -> Mode:
    """The mode called `name`: one of the project's own, or a built-in one that fits the project."""
    if name in project.mode_tables:
        return _user_mode(name, project.mode_tables[name])
    if name not in BUILT_IN:
        raise UnknownNameError("mode", name, [*BUILT_IN, *project.mode_tables])
    mode = BUILT_IN[name]
    if mode.kinds is not None and project.kind not in mode.kinds:
        raise UsageError(f"mode {name!r} is for {', '.join(sorted(mode.kinds))} projects, this one is {project.kind}")
    for tool in mode.needs:
        if shutil.which(tool) is None:
            raise BuildError(f"mode {name!r} needs {tool!r}, which is not installed")
    return mode


def default_modes(project: Project) -> tuple[str, ...]:
    """What is compared where nobody names a mode: the project's own modes, else cargo-slicer and a warm snapshot."""
    slicer = BUILT_IN["cargo-slicer"]
    installed = project.kind in _CARGO and all(map(shutil.which, slicer.needs))
    return tuple(project.mode_tables) or (slicer.name,) * installed + ("warm-snapshot",) * (project.edit is not None)


_MODE_KEYS = {"difference", "about", "env", "build", "check", "jobs", "profile", "toolchain", "fill_runs", "files"}


def _user_mode(name: str, table: ReadRecord) -> Mode:
    """A mode of a project's rl-bench.toml."""
    unknown = set(table) - _MODE_KEYS
    if unknown:
        raise UnknownNameError(f"key of mode {name!r}", sorted(unknown)[0], _MODE_KEYS)
    if "difference" not in table:
        add = 'add difference = "linker" (or another row of the fingerprint)'
        raise UsageError(f"mode {name!r} declares no difference: {add}")
    about, fill_runs = table.get("about", name), int(table.get("fill_runs", 0))
    return Mode(
        name, table["difference"], about, lambda setup, _: _apply_table(name, setup, table), fill_runs=fill_runs
    )


def _apply_table(name: str, setup: ArmSetup, table: ReadRecord) -> ArmSetup:
    """The setup with what the TOML table of arm `name` changes."""
    env = {**setup.env, **{key: str(value) for key, value in table.get("env", {}).items()}}
    env = folded_mode(name, setup.env, env)
    if "toolchain" in table:
        env["RUSTUP_TOOLCHAIN"] = str(table["toolchain"])
    return replace(
        setup,
        env=env,
        build=steps_of(table["build"]) if "build" in table else setup.build,
        check=steps_of(table["check"]) if "check" in table else setup.check,
        jobs=int(table.get("jobs", setup.jobs)),
        profile=str(table.get("profile", setup.profile)),
        files=dict(table.get("files", setup.files)),
    )
