"""Jobs come to their end whatever happens to their attempts, and every attempt is in the ledger once."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.jobs import driver
from mileage.jobs.driver import DriverSettings, batch, drive
from mileage.jobs.job import Job, JobEnd, JobOutcome, Needs, words_without
from mileage.jobs.local import Local
from mileage.ledger import spool, store
from mileage.ledger.address import database_url
from mileage.ledger.recorder import Ledger
from mileage.ledger.rows import Run
from placed_jobs import pids_of, recorded

PPO = ("ppo", "CartPole-v1", "--threads", "1", "--eval-every", "0")
# Far more than a test takes: it ends when it is ended.
LONG = (*PPO, "--steps", "200000000", "--checkpoint-every", "20000")


def job_in(folder: Path, words: tuple[str, ...], seed: int = 0) -> Job:
    again = ("--eval-every", "0", "--checkpoint-every", "20000")
    return Job(f"seed {seed}", (*words, "--seed", str(seed)), again, folder / f"seed-{seed}")


def when(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Act from another thread as soon as `condition` holds."""

    def watch() -> None:
        while not condition():
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_killed_attempt_is_tried_again_and_one_that_saved_goes_on(tmp_path: Path) -> None:
    """Killed first, asked to end second: the third attempt goes on from what the second saved."""
    job, told = job_in(tmp_path, LONG), list[str]()
    saved = job.directory / "runs"

    def end_with(number: signal.Signals) -> None:
        for pid in pids_of(job.directory):
            os.kill(pid, number)

    def after_another(number: signal.Signals) -> None:
        """End the attempt once there is a checkpoint that was not there before."""
        there = set(saved.glob("*/*.safetensors"))
        when(lambda: set(saved.glob("*/*.safetensors")) > there, lambda: end_with(number))

    def tell(text: str) -> None:
        told.append(text)
        if text.endswith("trying again"):
            after_another(signal.SIGTERM if ": lost" in text else signal.SIGKILL)

    after_another(signal.SIGKILL)
    (result,) = drive([job], Local(1), str(tmp_path / "all.db"), DriverSettings(retries=1), tell)
    assert result.ended.outcome is JobOutcome.LOST  # the retry was used up
    assert [word for text in told for word in ("lost", "preempted", "given up") if f": {word}" in text] == [
        "lost", "preempted", "given up"
    ]  # fmt: skip
    assert not pids_of(job.directory)
    runs = {run.run_id: run for run in recorded(tmp_path / "all.db")}
    first, second, third = (runs[run_id] for run_id in result.run_ids)
    assert (first.state, second.state, third.state) == ("crashed", "stopped", "crashed")
    assert len(runs) == 3
    assert (second.run.parent_run_id, third.run.parent_run_id) == (first.run_id, second.run_id)
    assert all(run.wall_seconds > 0 for run in runs.values())


def test_side_by_side_on_cores_of_their_own(tmp_path: Path) -> None:
    jobs = [job_in(tmp_path, (*PPO, "--steps", "2048"), seed) for seed in range(3)]
    place = Local(min(2, len(os.sched_getaffinity(0))))
    results = drive(jobs, place, str(tmp_path / "all.db"))
    assert [result.ended.outcome for result in results] == [JobOutcome.DONE] * 3
    runs = recorded(tmp_path / "all.db")
    assert sorted(run.seed or 0 for run in runs) == [0, 1, 2]
    assert {run.run.pid for run in runs} & {os.getpid()} == set()
    assert {json.loads(run.run.machine)["cores"] for run in runs} == {place.cores_each}


def test_an_error_of_the_training_s_own_is_said_and_not_tried_again(tmp_path: Path) -> None:
    (result,) = drive([job_in(tmp_path, ("ppo", "NoSuchEnv-v0"))], Local(1), str(tmp_path / "all.db"))
    assert (result.ended.outcome, result.attempts) == (JobOutcome.FAILED, 1)
    assert "NoSuchEnv" in result.ended.why


def test_an_interrupt_leaves_nothing_running_and_loses_no_row(tmp_path: Path) -> None:
    job = job_in(tmp_path, LONG)
    main = threading.get_ident()
    saved = job.directory / "runs"
    when(lambda: bool(list(saved.glob("*/*.safetensors"))), lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        drive([job], Local(1), str(tmp_path / "all.db"))
    assert not pids_of(job.directory)
    (run,) = recorded(tmp_path / "all.db")
    assert run.state == "stopped"


def test_what_a_killed_command_left_is_taken_in_by_the_next(tmp_path: Path) -> None:
    place, ledger = tmp_path / "placed", tmp_path / "all.db"
    left = place / "20260101-000000-1" / "seed-0"
    words = [*PPO, "--steps", "2048", "--db", str(left / "ledger.db"), "--out", str(left / "runs"), "--quiet"]
    subprocess.run([sys.executable, "-m", "mileage", "train", *words], check=True, capture_output=True)
    (left.parent / "driver.lock").touch()
    for _ in range(2):
        with batch(place, str(ledger)) as directory:
            assert directory.is_dir()
        assert len(recorded(ledger)) == 1


class _Delivered:
    """A place whose attempt has ended while another process is still bringing its rows into its ledger."""

    def submit(self, job: Job) -> _Delivered:
        return self

    def check(self, needs: Needs) -> None:
        pass

    def close(self) -> None:
        pass

    def ended(self) -> JobEnd | None:
        return JobEnd(JobOutcome.DONE)

    def cancel(self) -> None:
        pass

    def where(self) -> str:
        return "here"

    def waits(self) -> bool:
        return False


@pytest.mark.parametrize("patience", [60.0, 0.0], ids=["waited for", "taken by the next command"])
def test_rows_that_another_process_delivers_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    """Its spool file is locked, as by who delivers it, for longer than one look at the ledger waits."""
    monkeypatch.setattr(store, "OTHERS_SECONDS", 0.01)
    monkeypatch.setattr(driver, "ROWS_SECONDS", patience)
    merged, merge = 0, driver.merge
    ledger = str(tmp_path / "all.db")
    with batch(tmp_path / "placed", ledger) as directory:
        job = job_in(directory, PPO)
        ended_run = Ledger(enabled=False).run("r").end()
        assert ended_run.end is not None
        left = spool.Spool(spool.spool_dir(database_url(str(job.ledger))), ended_run.run_id)
        left.append([ended_run.run, ended_run.end])
        lock = left.path.open("rb")
        fcntl.flock(lock, fcntl.LOCK_EX)

        def merge_and_count(source: Path, into: str | None) -> list[Run]:
            nonlocal merged
            merged += 1
            if merged == 3:
                lock.close()
            return merge(source, into)

        monkeypatch.setattr(driver, "merge", merge_and_count)
        (result,) = drive([job], _Delivered(), ledger)
    lock.close()
    if patience:
        assert result.run_ids == (ended_run.run_id,)
    with batch(tmp_path / "placed", ledger):
        pass
    assert [run.run_id for run in recorded(Path(ledger))] == [ended_run.run_id]


class _Never:
    """A place without a free machine."""

    def submit(self, job: Job) -> _Never:
        self.cancelled = False
        return self

    def check(self, needs: Needs) -> None:
        pass

    def close(self) -> None:
        pass

    def ended(self) -> JobEnd | None:
        return None

    def cancel(self) -> None:
        self.cancelled = True

    def where(self) -> str:
        return "the queue is long"

    def waits(self) -> bool:
        return True


def test_an_attempt_that_never_starts_is_given_up_in_a_sentence(tmp_path: Path) -> None:
    place = _Never()
    with pytest.raises(UsageError, match=r"^seed 0 has not started within 0 s \(the queue is long\)"):
        drive([job_in(tmp_path, PPO)], place, str(tmp_path / "all.db"), DriverSettings(patience_seconds=0.0))
    assert place.cancelled


def test_more_than_this_machine_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^local:100000 needs a core for each"):
        Local(100_000)
    with pytest.raises(UsageError, match="an attempt needs 100000 cores"):
        Local(1).check(Needs(cores=100_000))
    with pytest.raises(UsageError, match="drop --gpus"):
        Local(1).check(Needs(gpus=1))


def test_words_without_options() -> None:
    words = ["ppo", "X", "--seeds", "5", "--on=ray", "--set", "gamma=0.9", "--seed=3"]
    assert words_without(words, "--seeds", "--seed", "--on") == ["ppo", "X", "--set", "gamma=0.9"]
