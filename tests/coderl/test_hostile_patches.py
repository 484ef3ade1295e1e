"""Candidates that attack the machine: contained, reported, and the pool serves on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coderl.conftest import CARGO_FILES, need, write_files
from mileage.coderl.config import RewardConfig, RewardResult
from mileage.coderl.patching import PatchSample, PatchVerdict
from mileage.coderl.pool import BuildReward
from mileage.coderl.projects.workarea import tree_digest
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.isolation import isolation_problem
from waiting import until

GOOD = PatchSample("good", path="app/src/main.rs", content="fn main() {}\n")


def build_script(body: str, name: str = "hostile") -> PatchSample:
    """Return a candidate whose build script runs `body`; panicking makes the build fail and be reported."""
    return PatchSample(name, path="app/build.rs", content="fn main() {\n" + body + "\n}\n")


@pytest.fixture(scope="module")
def shared_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildReward]:
    """One pool for all attacks: that it serves to the end is part of what is tested."""
    problem = isolation_problem()
    if problem:
        pytest.skip(f"user namespaces with overlayfs are not available: {problem}")
    need("cargo", "cc")
    base = tmp_path_factory.mktemp("hostile")
    work = base / "work"
    config = RewardConfig(
        workers=2,
        # No attack below is about time: a busy machine must not make one of them a timeout.
        timeout_seconds=300.0,
        memory_bytes=1 << 30,
        disk_bytes=64 << 20,
        max_processes=64,
        isolation=Isolation.REQUIRE,
        use_cache=False,
    )
    project = write_files(base / "project", CARGO_FILES)
    (project / "way-out").symlink_to("/tmp")
    with BuildReward(project, config, work_base=work) as made:
        yield made
    assert list(work.iterdir()) == []


@pytest.fixture
def pool(shared_pool: BuildReward) -> Iterator[BuildReward]:
    before = tree_digest(shared_pool.project.root)
    yield shared_pool
    # Whatever the candidate did, the next one is judged as always, and nothing of it is left.
    assert shared_pool.reward([GOOD])[0].verdict is PatchVerdict.PASS
    assert leftovers() == []
    assert tree_digest(shared_pool.project.root) == before


MARK = f"9{os.getpid():07d}"


def leftovers() -> list[str]:
    """Return live processes that carry this test's mark in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                if MARK.encode() in Path("/proc", name, "cmdline").read_bytes():
                    found.append(name)
            except OSError:
                continue
    return found


def judge(pool: BuildReward, sample: PatchSample) -> RewardResult:
    return pool.reward([sample])[0]


@pytest.mark.parametrize("path", ["/tmp/mileage-escape", "../../escape", "core/../../escape", "way-out/escape"])
def test_paths_out_of_the_tree(pool: BuildReward, path: str) -> None:
    result = judge(pool, PatchSample("escape", path=path, content="x"))
    assert result.verdict is PatchVerdict.DOES_NOT_APPLY
    assert "unsafe path" in result.diagnostic
    assert not Path("/tmp/mileage-escape").exists()
    assert not Path("/tmp/escape").exists()


def test_a_symbolic_link_in_a_diff(pool: BuildReward) -> None:
    patch = "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"
    result = judge(pool, PatchSample("link", patch=patch))
    assert result.verdict is PatchVerdict.DOES_NOT_APPLY
    assert "symbolic link" in result.diagnostic


def test_a_build_script_that_leaves_a_daemon(pool: BuildReward) -> None:
    body = f'std::process::Command::new("sh").args(["-c", "setsid sleep {MARK} >/dev/null 2>&1 &"]).status().unwrap();'
    assert judge(pool, build_script(body)).verdict is PatchVerdict.PASS
    assert leftovers() == []


def test_a_build_script_that_forks_without_end(pool: BuildReward) -> None:
    body = f'loop {{ std::process::Command::new("sleep").arg("{MARK}").spawn().unwrap(); }}'
    result = judge(pool, build_script(body))
    assert result.verdict is PatchVerdict.KILLED
    assert "processes limit" in result.diagnostic


def test_a_build_script_that_fills_the_disk(pool: BuildReward) -> None:
    body = (
        'use std::io::Write; let mut f = std::fs::File::create("/tmp/big").unwrap(); let b = vec![7u8; 1 << 20];'
        "for _ in 0..4096 { f.write_all(&b).unwrap(); }"
    )
    free = os.statvfs("/tmp").f_bavail
    result = judge(pool, build_script(body))
    assert result.verdict is PatchVerdict.COMPILE_ERROR
    assert not Path("/tmp/big").exists()
    block = os.statvfs("/tmp").f_frsize
    assert (free - os.statvfs("/tmp").f_bavail) * block < 2 << 30


def test_a_build_script_that_takes_all_memory(pool: BuildReward) -> None:
    body = "let mut v: Vec<Vec<u8>> = vec![]; loop { v.push(vec![7u8; 32 << 20]); }"
    result = judge(pool, build_script(body))
    assert result.verdict is PatchVerdict.KILLED
    assert "memory limit" in result.diagnostic


def test_a_build_script_that_reads_outside(pool: BuildReward, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    body = f'panic!("stolen: {{}}", std::fs::read_to_string("{secret}").unwrap());'
    result = judge(pool, build_script(body))
    assert result.verdict is PatchVerdict.COMPILE_ERROR
    assert "hunter2" not in result.diagnostic


def test_source_that_includes_a_file_from_outside(pool: BuildReward, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    source = f'fn main() {{ println!("{{}}", include_str!("{secret}")); }}\n'
    result = judge(pool, PatchSample("include", path="app/src/main.rs", content=source))
    assert result.verdict is PatchVerdict.COMPILE_ERROR
    assert "couldn't read" in result.diagnostic


def test_a_build_script_that_writes_outside(pool: BuildReward) -> None:
    target = pool.project.root / "core/src/lib.rs"
    before = target.read_bytes()
    body = f'std::fs::write("{target}", "gone").unwrap();'
    assert judge(pool, build_script(body)).verdict is PatchVerdict.COMPILE_ERROR
    assert target.read_bytes() == before


def test_a_build_script_that_opens_a_socket(pool: BuildReward) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.2)
        port = server.getsockname()[1]
        body = f'std::net::TcpStream::connect("127.0.0.1:{port}").expect("no network");'
        result = judge(pool, build_script(body))
        assert result.verdict is PatchVerdict.COMPILE_ERROR
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_build_script_that_poisons_the_snapshot(pool: BuildReward) -> None:
    """A candidate that damages the built tree must not change the verdict on the next one."""
    body = (
        'let out = std::env::var("OUT_DIR").unwrap(); let t = std::path::Path::new(&out).ancestors().nth(3).unwrap();'
        'std::fs::remove_dir_all(t.join("deps")).ok(); std::fs::remove_dir_all(t.join(".fingerprint")).ok();'
    )
    judge(pool, build_script(body))
    bad = PatchSample("bad", path="app/src/main.rs", content="fn main() { x }\n")
    assert [result.verdict for result in pool.reward([GOOD, bad])] == [PatchVerdict.PASS, PatchVerdict.COMPILE_ERROR]


def test_good_candidates_are_served_while_bad_ones_hang(cargo_project: Path, work: Path, isolation: None) -> None:
    config = RewardConfig(workers=3, timeout_seconds=10.0, isolation=Isolation.REQUIRE, use_cache=False)
    with BuildReward(cargo_project, config, work_base=work) as pool:
        sleep = f'std::process::Command::new("sleep").arg("{MARK}").status().unwrap();'
        bad = pool.submit([build_script(sleep, "sleeps"), build_script("loop {}", "spins")])
        other = PatchSample("b", path="app/src/main.rs", content="fn main() { let _ = 1; }\n")
        assert [result.verdict for result in pool.reward([GOOD, other])] == [PatchVerdict.PASS, PatchVerdict.PASS]
        assert [future.result().verdict for future in bad] == [PatchVerdict.TIMEOUT, PatchVerdict.TIMEOUT]
        assert leftovers() == []
        assert pool.reward([GOOD])[0].verdict is PatchVerdict.PASS
    assert list(work.iterdir()) == []


def test_closing_the_pool_ends_what_is_running(cargo_project: Path, work: Path, isolation: None) -> None:
    pool = BuildReward(cargo_project, RewardConfig(workers=1, timeout_seconds=600), work_base=work)
    body = f'std::process::Command::new("sleep").arg("{MARK}").status().unwrap();'
    (future,) = pool.submit([build_script(body)])
    until(leftovers)
    pool.close()
    # That the pool was closed says nothing about the candidate.
    assert future.result().verdict is PatchVerdict.INFRA_ERROR
    assert future.result().reward is None
    assert leftovers() == []
    assert list(work.iterdir()) == []
