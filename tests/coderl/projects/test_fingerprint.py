"""A mode that differs in more than it declares is refused, with the list."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.bench import BenchConfig, run_bench
from mileage.coderl.projects.detection import detect
from mileage.coderl.projects.fingerprint import base_environment, check_fair, differences, fingerprint, split_flags
from mileage.coderl.projects.modes import BUILT_IN, baseline_setup, find_mode
from mileage.coderl.report import BenchReport
from mileage.errors import BuildError, UnknownNameError, UnmatchedError, UsageError

LINKER = 'difference = "linker"\nenv = { RUSTFLAGS = "-Clink-arg=-fuse-ld=lld%s" }\n'


def bench(root: Path, work: Path, mode_table: str, name: str = "mode") -> BenchReport:
    """Run a benchmark of one mode given in TOML, without building anything."""
    (root / "rl-bench.toml").write_text(f"[rl-bench]\nkind = 'cargo'\n[rl-bench.modes.{name}]\n{mode_table}")
    executor = FakeExecutor(lambda job: fake_result(1.0))
    config = BenchConfig(runs=1, modes=(name,), jobs=2)
    return run_bench(detect(root), config, executor=executor, work_base=work)


def test_the_declared_difference_alone_is_accepted(cargo_project: Path, work: Path) -> None:
    report = bench(cargo_project, work, LINKER % "")
    assert report.arms[1].difference is not None
    assert str(report.arms[1].difference) == "linker: 'default' against 'lld'"


def test_different_rustflags_are_refused(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match=r"flags\.RUSTFLAGS: 'none' against '-Copt-level=1'"):
        bench(cargo_project, work, LINKER % " -Copt-level=1")


def test_the_parallel_front_end_cannot_ride_along_with_a_linker(cargo_project: Path, work: Path) -> None:
    # This is how a published 5.1× came about that was 1.26× with equal flags.
    with pytest.raises(UnmatchedError, match="frontend_threads: 'default' against '8'"):
        bench(cargo_project, work, LINKER % " -Z threads=8")


def test_a_different_toolchain_is_refused(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match=r"toolchain\.RUSTUP_TOOLCHAIN: 'absent' against 'nightly'"):
        bench(cargo_project, work, 'toolchain = "nightly"\n' + LINKER % "")


def test_a_different_profile_is_refused(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match="profile: 'dev' against 'release'"):
        bench(cargo_project, work, 'profile = "release"\n' + LINKER % "")


def test_a_profile_setting_is_refused(cargo_project: Path, work: Path) -> None:
    table = 'difference = "linker"\n[rl-bench.modes.mode.env]\nRUSTFLAGS = "-Clink-arg=-fuse-ld=lld"\n'
    with pytest.raises(UnmatchedError, match=r"profile\.CARGO_PROFILE_DEV_OPT_LEVEL: 'absent' against '0'"):
        bench(cargo_project, work, table + 'CARGO_PROFILE_DEV_OPT_LEVEL = "0"\n')


def test_different_jobs_are_refused(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match="jobs: '2' against '4'"):
        bench(cargo_project, work, "jobs = 4\n" + LINKER % "")


def test_a_different_lock_file_is_refused(cargo_project: Path, work: Path) -> None:
    (cargo_project / "other.lock").write_text("# other versions\n")
    with pytest.raises(UnmatchedError, match=r"lock_file\.Cargo\.lock: '\w{16}' against '\w{16}'"):
        bench(cargo_project, work, LINKER % "" + 'files = { "Cargo.lock" = "other.lock" }\n')


def test_a_different_variable_is_refused(cargo_project: Path, work: Path) -> None:
    table = 'difference = "linker"\nenv = { RUSTFLAGS = "-Clink-arg=-fuse-ld=lld", CARGO_INCREMENTAL = "0" }\n'
    with pytest.raises(UnmatchedError, match=r"env\.CARGO_INCREMENTAL: 'absent' against '0'"):
        bench(cargo_project, work, table)


def test_all_differences_are_listed(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match=r"also differs in 3: .*frontend_threads.*jobs.*profile"):
        bench(cargo_project, work, 'jobs = 4\nprofile = "release"\n' + LINKER % " -Zthreads=4")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ('difference = "jobs"\njobs = 4\n', "jobs"),
        ('difference = "profile"\nprofile = "release"\n', "profile"),
        ('difference = "toolchain"\nenv = { RUSTUP_TOOLCHAIN = "stable" }\n', "toolchain.RUSTUP_TOOLCHAIN"),
    ],
)
def test_anything_may_be_the_declared_difference(cargo_project: Path, work: Path, table: str, key: str) -> None:
    difference = bench(cargo_project, work, table).arms[1].difference
    assert difference is not None
    assert difference.key == key


def test_a_mode_that_changes_nothing_is_refused(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UnmatchedError, match="builds exactly like the baseline"):
        bench(cargo_project, work, 'difference = "linker"\n')


def test_a_mode_must_declare_its_difference(cargo_project: Path, work: Path) -> None:
    with pytest.raises(UsageError, match="declares no difference"):
        bench(cargo_project, work, 'env = { A = "1" }\n')


def test_nothing_was_built_for_a_refused_pair(cargo_project: Path, work: Path) -> None:
    (cargo_project / "rl-bench.toml").write_text(
        "[rl-bench]\nkind = 'cargo'\n[rl-bench.modes.m]\njobs = 4\n" + LINKER % ""
    )
    executor = FakeExecutor(lambda job: fake_result(1.0))
    with pytest.raises(UnmatchedError):
        run_bench(detect(cargo_project), BenchConfig(modes=("m",), jobs=1), executor=executor, work_base=work)
    assert executor.jobs == []
    assert list(work.iterdir()) == []


def test_no_debuginfo_takes_it_out_of_a_cmake_build(tmp_path: Path, need: Callable[..., None]) -> None:
    need("cmake", "cc")
    root = tmp_path / "project"
    root.mkdir()
    (root / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.16)\nproject(p C)\nadd_library(p p.c)\n")
    (root / "p.c").write_text("int p(void) { return 1; }\n")
    project = detect(root)
    base = baseline_setup(project, 1)
    mode = find_mode("no-debuginfo", project)
    changed = mode.change(base, project)
    rows = [fingerprint(project, setup, root, "r") for setup in (base, changed)]
    assert str(check_fair("no-debuginfo", mode.difference, *rows)) == "debug_info: 'default' against 'none'"
    found = []
    for setup in (base, changed):
        for command in setup.commands(setup.build):
            subprocess.run(command, cwd=root, check=True, capture_output=True, env=setup.environment(str(root)))
        (library,) = root.glob("**/libp.a")
        found.append(b".debug_info" in library.read_bytes())
        shutil.rmtree(root / ".mileage-build")
    assert found == [True, False]


@pytest.mark.parametrize("name", ["mold", "lld", "no-debuginfo", "threads", "cranelift", "warm-snapshot"])
def test_every_built_in_mode_differs_in_its_declared_row_alone(cargo_project: Path, name: str) -> None:
    from mileage.coderl.projects.fingerprint import fingerprint

    project = detect(cargo_project)
    mode = BUILT_IN[name]
    base = baseline_setup(project, 2)
    rows = [fingerprint(project, setup, cargo_project, "r") for setup in (base, mode.change(base, project))]
    assert check_fair(name, mode.difference, *rows).key == mode.difference
    assert len(differences(*rows)) == 1


def test_flags_are_split_by_meaning() -> None:
    rows = split_flags(
        {
            "RUSTFLAGS": "-C link-arg=-fuse-ld=mold -Zthreads=8 -Ctarget-cpu=native -C debuginfo=1",
            "CFLAGS": "-O2 -g -gz",
            "CARGO_PROFILE_DEV_DEBUG": "0",
        }
    )
    assert rows["linker"] == "mold"
    assert rows["frontend_threads"] == "8"
    assert rows["flags.RUSTFLAGS"] == "-Ctarget-cpu=native"
    assert rows["flags.CFLAGS"] == "-O2 -gz"
    assert rows["debug_info"] == "RUSTFLAGS=1 CFLAGS=default CARGO_PROFILE_DEV_DEBUG=0"


def test_the_shared_environment_has_no_cache_and_no_secret() -> None:
    env = base_environment({"PATH": "/bin", "RUSTC_WRAPPER": "sccache", "MY_TOKEN": "t", "PWD": "/x"})
    assert env == {"PATH": "/bin", "CCACHE_DISABLE": "1", "SCCACHE_RECACHE": "1"}


def test_configured_rustflags_reach_every_arm(cargo_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUSTFLAGS", raising=False)
    (cargo_project / ".cargo").mkdir()
    config = cargo_project / ".cargo" / "config.toml"
    config.write_text(
        '[build]\nrustflags = ["-Ctarget-cpu=native"]\n[target.x86_64-pc-windows-msvc]\nrustflags = ["-x"]\n'
    )
    project = detect(cargo_project)
    base = baseline_setup(project, 1)
    assert base.env["RUSTFLAGS"] == "-Ctarget-cpu=native"
    assert BUILT_IN["mold"].change(base, project).env["RUSTFLAGS"] == "-Ctarget-cpu=native -Clink-arg=-fuse-ld=mold"


def test_a_mode_that_does_not_fit_or_is_not_installed_says_so(
    make_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = detect(make_project)
    with pytest.raises(UsageError, match="this one is make"):
        find_mode("cranelift", project)
    with pytest.raises(UnknownNameError, match="did you mean 'mold'"):
        find_mode("molt", project)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(BuildError, match="needs 'mold'"):
        find_mode("mold", project)


def test_a_toolchain_that_is_not_installed_is_refused(cargo_project: Path, work: Path) -> None:
    config = BenchConfig(runs=1, jobs=1, toolchain="no-such-toolchain")
    executor = FakeExecutor(lambda job: fake_result(1.0))
    with pytest.raises(UsageError, match="toolchain 'no-such-toolchain' is not installed"):
        run_bench(detect(cargo_project), config, executor=executor, work_base=work)


@pytest.mark.parametrize("replaced", ["core/src/lib.rs", "Cargo.toml"])
def test_files_that_a_mode_replaces_are_part_of_its_difference(cargo_project: Path, work: Path, replaced: str) -> None:
    (cargo_project / "other").write_text("# other\n" + (cargo_project / "Cargo.toml").read_text())
    modes = "".join(
        f"[rl-bench.modes.{name}]\ndifference = '{difference}'\nfiles = {{ '{replaced}' = 'other' }}\nenv = {env}\n"
        for name, difference, env in (
            ("sneaky", "linker", "{ RUSTFLAGS = '-Clink-arg=-fuse-ld=bfd' }"),
            ("declared", "files", "{}"),
        )
    )
    (cargo_project / "rl-bench.toml").write_text(modes)
    project = detect(cargo_project)
    executor = FakeExecutor(lambda job: fake_result(1.0))
    with pytest.raises(UnmatchedError, match=f"files.{replaced}"):
        run_bench(project, BenchConfig(runs=1, jobs=1, modes=("sneaky",)), executor=executor, work_base=work)
    report = run_bench(project, BenchConfig(runs=1, jobs=1, modes=("declared",)), executor=executor, work_base=work)
    assert report.arms[1].difference is not None
    assert report.arms[1].difference.key == f"files.{replaced}"
