from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coderl.fakes import FakeExecutor, fake_result
from mileage.coderl.sandbox import process as watching
from mileage.coderl.sandbox.executor import (
    BuildJob,
    BuildResult,
    Change,
    Jail,
    Judging,
    Limits,
    LocalExecutor,
    StepOutcome,
    TakingTurns,
    TreeMount,
)
from mileage.coderl.sandbox.isolation import make_jail
from mileage.errors import ChangeError, InfraError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/mileage"}


def run(
    tree: Path, *scripts: str, limits: Limits | None = None, jail: Jail | None = None, **more: object
) -> BuildResult:
    cwd = jail.tree.at if jail else str(tree)
    steps = tuple(("sh", "-c", script) for script in scripts)
    job = BuildJob(steps, cwd, ENV, limits=limits or Limits(timeout_seconds=300), jail=jail, **more)  # type: ignore[arg-type]
    return LocalExecutor().run(job)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    (path / "file").write_text("original\n")
    return path


@pytest.fixture(params=["plain", "isolated"])
def jail(request: pytest.FixtureRequest, tmp_path: Path, tree: Path) -> Jail | None:
    """Every test of limits and killing holds with and without namespaces."""
    if request.param == "plain":
        return None
    request.getfixturevalue("isolation")
    root = tmp_path / "root"
    root.mkdir()
    return make_jail(root, TreeMount(tree, "/w", overlay=True), ENV, disk_bytes=32 << 20)


def alive(marker: str) -> list[str]:
    """Return the processes of this machine whose command line holds `marker`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                line = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line:
                found.append(name)
    return found


def test_steps_run_in_order_and_stop_at_the_first_failure(tree: Path, jail: Jail | None) -> None:
    result = run(tree, "echo one", "echo two; exit 3", "echo three", jail=jail)
    assert [step.output for step in result.steps] == ["one\n", "two\n"]
    assert [step.exit_code for step in result.steps] == [0, 3]
    assert not result.succeeded


def test_changes_are_written_before_the_first_step(tree: Path, jail: Jail | None) -> None:
    changes = (
        Change("deep/er/new", b"n"),
        Change("file", None),
        Change("tool", b"#!/bin/sh\necho ran\n", executable=True),
    )
    result = run(tree, "cat deep/er/new; test ! -e file && ./tool", jail=jail, changes=changes)
    assert result.steps[0].output == "nran\n"


def test_cpu_time_counts_what_the_command_burnt(tree: Path, jail: Jail | None) -> None:
    # A counting loop costs CPU time; sleeping costs next to none.
    busy = run(tree, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done", jail=jail).steps[0]
    idle = run(tree, "sleep 0.2", jail=jail).steps[0]
    assert busy.cpu_seconds > idle.cpu_seconds
    assert idle.wall_seconds >= 0.2
    assert idle.peak_rss_bytes > 100_000


def test_a_timeout_kills_double_forked_children_too(tree: Path, jail: Jail | None) -> None:
    marker = f"7{secrets.randbelow(10**9):09d}"
    result = run(
        tree, f"(setsid sleep {marker} &); setsid sh -c 'sleep {marker} & sleep {marker}' & sleep {marker}",
        limits=Limits(timeout_seconds=0.5), jail=jail,
    )  # fmt: skip
    assert result.steps[0].outcome is StepOutcome.TIMEOUT
    assert alive(marker) == []


def test_daemons_left_by_a_successful_command_are_killed(tree: Path, jail: Jail | None) -> None:
    marker = f"8{secrets.randbelow(10**9):09d}"
    assert run(tree, f"(setsid sleep {marker} >/dev/null 2>&1 &); exit 0", jail=jail).succeeded
    assert alive(marker) == []


def test_memory_above_the_limit_is_its_own_outcome(tree: Path, jail: Jail | None) -> None:
    script = "exec /usr/bin/perl -e '$x = \"x\" x 400_000_000; sleep 600'"
    result = run(tree, script, limits=Limits(timeout_seconds=300, memory_bytes=100 << 20), jail=jail)
    assert result.steps[0].outcome is StepOutcome.MEMORY


def test_too_many_processes_is_its_own_outcome(tree: Path, jail: Jail | None) -> None:
    script = "i=0; while [ $i -lt 60 ]; do sleep 600 & i=$((i+1)); done; wait"
    result = run(tree, script, limits=Limits(timeout_seconds=300, max_processes=30), jail=jail)
    assert result.steps[0].outcome is StepOutcome.PROCESSES


SHARED = """
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static void *sleeper(void *unused) { pause(); return unused; }
int main(int count, char **words) {
    if (!strcmp(words[1], "shared")) {
        size_t size = 300u << 20;
        memset(mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), 7, size);
    } else if (!strcmp(words[1], "threads")) {
        for (int i = 0; i < 60; i++) { pthread_t thread; pthread_create(&thread, 0, sleeper, 0); }
    } else {
        return memfd_create("x", 0) < 0 ? 7 : 0;
    }
    sleep(600);
}
"""


@pytest.fixture
def program(tree: Path, need: Callable[..., None]) -> Path:
    need("cc")
    (tree / "shared.c").write_text(SHARED)
    subprocess.run(("cc", "-pthread", "-o", tree / "program", tree / "shared.c"), check=True)
    return tree


@pytest.mark.parametrize("groups", [True, False], ids=["groups", "sampled"])
@pytest.mark.parametrize(
    ("way", "outcome"), [("shared", StepOutcome.MEMORY), ("threads", StepOutcome.PROCESSES)], ids=["shared", "threads"]
)
def test_shared_memory_and_threads_count_with_and_without_groups(
    program: Path, jail: Jail | None, way: str, outcome: StepOutcome, groups: bool
) -> None:
    limits = Limits(timeout_seconds=300, memory_bytes=100 << 20, max_processes=30)
    job = BuildJob((("./program", way),), jail.tree.at if jail else str(program), ENV, limits=limits, jail=jail)
    assert LocalExecutor(None if groups else {}).run(job).steps[0].outcome is outcome


def test_memory_files_that_nothing_would_count_are_refused(program: Path, jail: Jail | None) -> None:
    limits = Limits(timeout_seconds=300, memory_bytes=100 << 20)
    job = BuildJob((("./program", "memfd"),), jail.tree.at if jail else str(program), ENV, limits=limits, jail=jail)
    # Without isolation there is no filter.
    assert LocalExecutor({}).run(job).steps[0].exit_code == (7 if jail else 0)


def test_endless_output_keeps_its_beginning_and_its_end(tree: Path, jail: Jail | None) -> None:
    result = run(tree, "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last", jail=jail)
    output = result.steps[0].output
    assert output.startswith("first\n")
    assert output.endswith("last\n")
    assert "bytes left out" in output
    assert len(output) < 200_000


def test_a_missing_program_is_a_failed_step_that_says_so(tree: Path, jail: Jail | None) -> None:
    cwd = jail.tree.at if jail else str(tree)
    result = LocalExecutor().run(BuildJob((("no-such-compiler",),), cwd, ENV, jail=jail))
    assert result.steps[0].exit_code == 127
    assert "no-such-compiler" in result.steps[0].output


def test_cancel_ends_a_running_job_at_once(tree: Path, jail: Jail | None) -> None:
    executor = LocalExecutor()
    cwd = jail.tree.at if jail else str(tree)
    threading.Timer(0.4, executor.cancel).start()
    # It would sleep for ten minutes.
    result = executor.run(BuildJob((("sleep", "600"),), cwd, ENV, jail=jail))
    assert result.steps[0].outcome is StepOutcome.CANCELLED


def test_two_holders_of_one_lock_never_run_at_the_same_time(tmp_path: Path) -> None:
    running: list[int] = []
    overlaps: list[int] = []

    def answer(job: BuildJob) -> BuildResult:
        running.append(1)
        overlaps.append(len(running))
        time.sleep(0.02)
        running.pop()
        return fake_result(0.1)

    executors = [TakingTurns(FakeExecutor(answer), tmp_path / "lock", hold_seconds=0.0) for _ in range(4)]
    threads = [threading.Thread(target=executor.run, args=(BuildJob((), "/", {}),)) for executor in executors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [1, 1, 1, 1]


def test_a_lock_is_kept_between_jobs_and_given_up_in_time(tmp_path: Path) -> None:
    def is_free() -> bool:
        with (tmp_path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    executor = FakeExecutor(lambda job: fake_result(0.1))
    keeping = TakingTurns(executor, tmp_path / "lock", hold_seconds=1000.0)
    keeping.run(BuildJob((), "/", {}))
    assert not is_free()
    keeping.release()
    assert is_free()
    TakingTurns(executor, tmp_path / "lock", hold_seconds=0.0).run(BuildJob((), "/", {}))
    assert is_free()


def test_a_jail_that_cannot_be_made_is_a_failure_of_the_machine(tree: Path, isolation: None) -> None:
    jail = make_jail(tree / "absent", TreeMount(tree, "/w", overlay=True), ENV)
    with pytest.raises(InfraError, match="could not be started"):
        run(tree, "true", jail=jail)


# More directories within each other than Python recurses.
DEEP = "i=0; while [ $i -lt 1500 ]; do mkdir d && cd d || exit 1; i=$((i+1)); done"


class TestIsolation:
    """What an isolated job can see and reach."""

    @pytest.fixture(autouse=True)
    def _isolated(self, isolation: None, tmp_path: Path, tree: Path) -> None:
        (tmp_path / "root").mkdir()
        self.tree = tree
        self.secret = tmp_path / "secret"
        self.secret.write_text("hunter2")
        self.jail = make_jail(tmp_path / "root", TreeMount(tree, "/w", overlay=True), ENV, disk_bytes=16 << 20)

    def output(self, script: str) -> str:
        return run(self.tree, script, jail=self.jail).steps[0].output

    def test_writes_stay_in_the_layer(self) -> None:
        assert "changed" in self.output("echo changed > file; echo new > other; rm -f none; cat file")
        assert (self.tree / "file").read_text() == "original\n"
        assert [path.name for path in self.tree.iterdir()] == ["file"]

    def test_files_of_the_machine_are_not_there(self) -> None:
        output = self.output(f"cat {self.secret}; cat /etc/shadow; ls {Path.home()}/.ssh; ls /var /home")
        assert "hunter2" not in output
        assert output.count("No such file") >= 4 or output.count("cannot access") >= 2

    def test_system_directories_cannot_be_written(self) -> None:
        output = self.output("touch /usr/bin/evil; mount -o remount,rw /usr; echo x > /proc/sys/kernel/core_pattern")
        assert "Read-only file system" in output
        assert not Path("/usr/bin/evil").exists()

    def test_there_is_no_network(self) -> None:
        script = (
            '/usr/bin/perl -MIO::Socket::INET -e \'IO::Socket::INET->new(PeerAddr => "192.0.2.1:80", Timeout => 3) '
            'or die "refused: $!"\''
        )
        assert "Network is unreachable" in self.output(script)
        assert self.output("cat /proc/net/dev | grep -c :").strip() == "1"

    def test_processes_of_the_job_reach_each_other_over_localhost(self) -> None:
        script = (
            '/usr/bin/perl -MIO::Socket::INET -e \'$s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") '
            'or die; $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $s->sockport) or die "no: $!"; '
            'print "connected\\n"\''
        )
        assert self.output(script) == "connected\n"

    def test_standard_streams_and_terminals_are_there(self) -> None:
        script = (
            "echo out > /dev/stdout; echo err > /dev/stderr; cat /dev/stdin | wc -c; ls /dev/pts /dev/ptmx /dev/tty"
        )
        assert self.output(script).split() == ["out", "err", "0", "/dev/ptmx", "/dev/tty", "/dev/pts:", "ptmx"]
        assert self.output("script -qec 'test -t 1 && echo terminal' /dev/null").strip() == "terminal"

    def test_there_is_no_further_namespace(self) -> None:
        output = self.output("unshare --user true; unshare --mount true; cat /proc/sys/user/max_user_namespaces")
        assert output.count("Operation not permitted") == 2
        assert output.split()[-1] == "0"

    def test_files_without_content_are_bounded_too(self) -> None:
        script = "i=0; while [ $i -lt 20000 ] && : > /tmp/$i; do i=$((i+1)); done"
        assert "No space left" in self.output(script)

    def test_changes_that_cannot_be_written_are_the_candidates_fault(self) -> None:
        (self.tree / "dir").mkdir()
        for change in (Change("dir", b"x"), Change("file/below", b"x"), Change("big", b"x" * (17 << 20))):
            with pytest.raises(ChangeError, match="cannot be written"):
                run(self.tree, "true", jail=self.jail, changes=(change,))

    @pytest.mark.parametrize("script", ["head -c 64000000 /dev/zero > big; true", DEEP])
    def test_a_tree_that_cannot_be_judged_is_the_candidates_doing(self, script: str) -> None:
        source = self.tree.with_name("judge")
        source.mkdir()
        (source / "tests").write_bytes(b"x" * 100_000)
        judging = Judging(1, source, ("tests",), ("tests", "*.lock"))
        steps = (("sh", "-c", script), ("true",))
        job = BuildJob(
            steps, self.jail.tree.at, ENV, limits=Limits(timeout_seconds=300), jail=self.jail, judging=judging
        )
        result = LocalExecutor().run(job)
        assert result.tampered[0].startswith("the tree cannot be restored or read")

    def test_other_processes_are_invisible(self) -> None:
        pids = self.output("for p in /proc/[0-9]*; do echo ${p#/proc/}; done").split()
        assert len(pids) <= 3
        assert str(os.getpid()) not in pids or os.getpid() < 10

    def test_the_disk_is_bounded(self) -> None:
        output = self.output("head -c 64000000 /dev/zero > big; ls -l big | wc -l")
        assert "No space left" in output

    def test_there_are_no_privileges(self) -> None:
        output = self.output("grep Cap /proc/self/status")
        assert {line.split()[1].strip("0") for line in output.splitlines()} == {""}

    def test_process_one_cannot_be_killed_and_its_answer_cannot_be_forged(self) -> None:
        result = run(
            self.tree, "kill -9 1; echo '{\"steps\": []}' > /proc/1/fd/1; cat /proc/1/mem; exit 4", jail=self.jail
        )
        assert result.steps[0].exit_code == 4
        assert result.steps[0].output.count("Permission denied") == 2


def test_a_standstill_of_the_machine_does_not_count_against_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 7.0, 7.0, 7.3])
    monkeypatch.setattr(watching.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(watching.select, "select", lambda *_: ([5], [], []))
    watch = object.__new__(watching.Supervisor)
    watch.job, watch.deadline = {"sample_seconds": 0.02}, 10.0
    # Asked to wait for 0.02 s, woken after 7: the deadline moves by the difference. 0.28 s late is load, not that.
    assert watch.wait([5]) == [5]
    assert watch.deadline == pytest.approx(10.0 + 7.0 - 0.02)
    assert watch.wait([5]) == [5]
    assert watch.deadline == pytest.approx(10.0 + 7.0 - 0.02)
