"""Flags by Cargo's own order of precedence, and what Cargo really gave to rustc."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mileage.coderl import BenchConfig, detect, run_bench
from mileage.coderl.bench import plan_arms
from mileage.coderl.projects.fingerprint import build_target, effective_rustflags, folded, used_rustflags
from mileage.coderl.projects.modes import baseline_setup, find_mode
from mileage.errors import UnmatchedError, UsageError

NOWHERE = {"CARGO_HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No flags from whoever runs the tests."""
    for name in ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def configure(project: Path, text: str) -> None:
    (project / ".cargo").mkdir(exist_ok=True)
    (project / ".cargo" / "config.toml").write_text(text)


def test_the_encoded_variable_wins_then_the_plain_one_then_the_build_s(tmp_path: Path) -> None:
    configure(tmp_path, '[build]\nrustflags = "-Ca -Cb"\n')
    build = {**NOWHERE, "CARGO_BUILD_RUSTFLAGS": "-Cc"}
    assert effective_rustflags(tmp_path, build) == ["-Ca", "-Cb", "-Cc"]
    plain = {**build, "RUSTFLAGS": "-Cd"}
    assert effective_rustflags(tmp_path, plain) == ["-Cd"]
    assert effective_rustflags(tmp_path, {**plain, "CARGO_ENCODED_RUSTFLAGS": "-Ce\x1f-Cf"}) == ["-Ce", "-Cf"]
    assert effective_rustflags(tmp_path, {**build, "RUSTFLAGS": ""}) == []
    assert folded(tmp_path, {**build, "RUSTFLAGS": ""}) == {**NOWHERE, "RUSTFLAGS": ""}


def test_flags_of_the_host_target_are_moved_and_not_refused(
    cargo_project: Path, environment: pytest.MonkeyPatch
) -> None:
    project = detect(cargo_project)
    triple = build_target(cargo_project, baseline_setup(project, 1).env)
    configure(
        cargo_project,
        f"[build]\nrustflags = ['-Cignored']\n[target.{triple}]\nrustflags = ['-Cdebuginfo=1']\n"
        '[target.\'cfg(all(unix, not(windows), any(target_os = "linux", target_os = "macos")))\']\n'
        "rustflags = ['-Cforce-frame-pointers']\n[target.'cfg(windows)']\nrustflags = ['-Cnever']\n",
    )
    name = f"CARGO_TARGET_{triple.upper().replace('-', '_')}_RUSTFLAGS"
    environment.setenv(name, "-Copt-level=1")
    env = baseline_setup(project, 1).env
    assert env["RUSTFLAGS"] == "-Cdebuginfo=1 -Cforce-frame-pointers -Copt-level=1"
    assert name not in env


def test_a_wrapper_and_a_shared_directory_in_a_configuration_file_are_off(cargo_project: Path, tmp_path: Path) -> None:
    log = tmp_path / "wrapped"
    wrapper = tmp_path / "wrapper.sh"
    wrapper.write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec "$@"\n')
    wrapper.chmod(0o755)
    wrappers = f'rustc-wrapper = "{wrapper}"\nrustc-workspace-wrapper = "{wrapper}"\n'
    shared = f'target-dir = "{tmp_path / "shared"}"\nbuild-dir = "{tmp_path / "between"}"\n'
    configure(cargo_project, f"[build]\n{wrappers}{shared}")
    setup = baseline_setup(detect(cargo_project), 1)
    env = setup.environment(str(cargo_project))
    subprocess.run(setup.commands(setup.build)[0], cwd=cargo_project, env=env, check=True, capture_output=True)
    assert not log.exists()
    assert not (tmp_path / "shared").exists()
    assert not (tmp_path / "between").exists()


def test_a_mode_s_flags_reach_the_fingerprint_whatever_variable_it_sets(
    cargo_project: Path, environment: pytest.MonkeyPatch
) -> None:
    (cargo_project / "rl-bench.toml").write_text(
        "[rl-bench.modes.sneaky]\ndifference = 'linker'\nenv = { CARGO_BUILD_RUSTFLAGS = '-Copt-level=1' }\n"
        "[rl-bench.modes.encoded]\ndifference = 'linker'\nenv = { CARGO_ENCODED_RUSTFLAGS = '-Copt-level=2' }\n"
    )
    project = detect(cargo_project)
    base = baseline_setup(project, 1)
    assert find_mode("sneaky", project).change(base, project).env["RUSTFLAGS"] == "-Copt-level=1"
    assert find_mode("encoded", project).change(base, project).env["RUSTFLAGS"] == "-Copt-level=2"
    environment.setenv("RUSTFLAGS", "-Cdebuginfo=0")
    project = detect(cargo_project)
    base = baseline_setup(project, 1)
    with pytest.raises(UsageError, match="CARGO_BUILD_RUSTFLAGS, which Cargo ignores"):
        find_mode("sneaky", project).change(base, project)


def test_what_rustc_was_called_with_is_compared(
    cargo_project: Path, work: Path, environment: pytest.MonkeyPatch
) -> None:
    # A build command may bring flags of its own, which no fingerprint of variables and files can see.
    (cargo_project / "rl-bench.toml").write_text(
        "[rl-bench]\nkind = 'cargo'\nbuild = 'RUSTFLAGS=-Copt-level=1 cargo build --offline --jobs {jobs}'\n"
    )
    with pytest.raises(UnmatchedError, match=r"rustc was called with '-Copt-level=1'"):
        run_bench(detect(cargo_project), BenchConfig(runs=1, jobs=1), work_base=work)


def test_used_flags_are_read_from_cargo_s_own_notes(tmp_path: Path) -> None:
    unit = tmp_path / "debug" / ".fingerprint" / "core-lib-0123"
    unit.mkdir(parents=True)
    (unit / "lib-core_lib.json").write_text('{"rustflags": ["-Ca", "-Cb"]}')
    (unit / "other.json").write_text("not json")
    assert used_rustflags(tmp_path) == {("-Ca", "-Cb")}


@pytest.mark.parametrize("mode", ["threads", "cranelift"])
def test_nightly_modes_are_refused_on_stable(cargo_project: Path, mode: str, environment: pytest.MonkeyPatch) -> None:
    project = detect(cargo_project)
    base = baseline_setup(project, 1)
    version = subprocess.run(("rustc", "--version"), capture_output=True, text=True, env=dict(base.env)).stdout
    if "nightly" in version:
        pytest.skip("the default toolchain is nightly")
    with pytest.raises(UsageError, match="needs a nightly compiler"):
        plan_arms(project, BenchConfig(modes=(mode,)))
