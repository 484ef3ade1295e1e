"""Threads that run kernels together."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.machine.team import _SLEEPERS, Team, _atomic_load, meet
from shims import shim
from waiting import MINUTES


@shim
def relay(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """Ranks add up each other's numbers of the round before, which only works if nobody runs ahead."""
    meeting = pointer_to(barrier)
    rounds = record.shape[0] - 1
    for r in range(rounds):
        total = 0
        for other in range(n_ranks):
            total += record[r, other]
        record[r + 1, rank] = total + rank
        meet(meeting, n_ranks)
    return rank


def plain_relay(n_ranks: int, rounds: int) -> list[int]:
    row = [1] * n_ranks
    for _ in range(rounds):
        row = [(sum(row) + rank) % 2**64 for rank in range(n_ranks)]
    return row


def mileage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("mileage-")]


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
def test_ranks_wait_for_each_other(n_ranks: int) -> None:
    team = Team(n_ranks)
    for _ in range(5):
        record = np.zeros((100, n_ranks), np.uint64)
        record[0] = 1
        assert team.run(relay, record, n_ranks) == 0
        assert record[-1].tolist() == plain_relay(n_ranks, 99)
    team.close()


def test_a_closed_team_goes_on_alone() -> None:
    before = len(mileage_threads())
    team = Team(3)
    assert len(mileage_threads()) == before + 2
    team.close()
    team.close()
    assert len(mileage_threads()) == before
    assert team.n_ranks == 1
    record = np.ones((10, 1), np.uint64)
    team.run(relay, record, 3)
    assert record[-1].tolist() == plain_relay(1, 9)


def test_threads_of_a_forgotten_team_end() -> None:
    team = Team(3)
    threads = [thread for thread in mileage_threads() if thread.is_alive()][-2:]
    del team
    gc.collect()
    for thread in threads:
        thread.join(timeout=MINUTES)
    assert not any(thread.is_alive() for thread in threads)


def test_no_more_ranks_than_pieces_take_part() -> None:
    team = Team(3)
    for pieces, expected in ((1, 1), (2, 2), (3, 3), (8, 3), (1, 1), (3, 3)):
        record = np.ones((20, expected), np.uint64)
        team.run(relay, record, pieces)
        assert record[-1].tolist() == plain_relay(expected, 19)
    team.close()


class InterruptedQueue:
    """A queue to a rank at which an interrupt strikes, before or after the job is in it."""

    def __init__(self, real: Any, *, before: bool) -> None:
        self._real, self._before, self.armed = real, before, True

    def put(self, job: Any) -> None:
        if self.armed and self._before:
            self.armed = False
            raise KeyboardInterrupt
        self._real.put(job)
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_while_work_is_handed_out_leaves_nobody_waiting(rank: int, before: bool) -> None:
    team = Team(3)
    team._jobs[rank] = InterruptedQueue(team._jobs[rank], before=before)  # type: ignore[call-overload]
    record = np.zeros((50, 3), np.uint64)
    record[0] = 1
    with pytest.raises(KeyboardInterrupt):
        team.run(relay, record, 3)
    # The work was done all the same, exactly once, and the team works on.
    assert record[-1].tolist() == plain_relay(3, 49)
    again = np.zeros((50, 3), np.uint64)
    again[0] = 1
    assert team.run(relay, again, 3) == 0
    assert again[-1].tolist() == plain_relay(3, 49)
    team.close()


def test_an_interrupt_after_the_work_does_not_repeat_it() -> None:
    team = Team(2)
    calls = []

    def interrupted(rank: int, n_ranks: int, barrier: Any, record: Any) -> None:
        relay(rank, n_ranks, barrier, record)
        if rank == 0:
            calls.append(rank)
            raise KeyboardInterrupt

    record = np.zeros((50, 2), np.uint64)
    record[0] = 1
    with pytest.raises(KeyboardInterrupt):
        team.run(interrupted, record, 2)
    assert calls == [0]
    assert record[-1].tolist() == plain_relay(2, 49)
    team.close()


@shim
def late(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> Any:
    """Rank 1 comes to every first meeting once rank 0 has gone to sleep, or after some minutes."""
    meeting = pointer_to(barrier)
    for r in range(record.shape[0]):
        if rank == 1:
            for _ in range(5_000_000_000):
                record[r, 1] = _atomic_load(meeting, _SLEEPERS)
                if record[r, 1]:
                    break
        meet(meeting, n_ranks)
        record[r, 0] = record[r, 1]
        meet(meeting, n_ranks)
    return rank


def test_a_rank_that_waits_long_sleeps_and_is_woken() -> None:
    team = Team(2)
    record = np.zeros((50, 2), np.int64)
    team.run(late, record, 2)
    assert (record == 1).all()
    team.close()


def test_an_adaptive_team_gives_a_call_fewer_ranks_than_it_has() -> None:
    """A relay gains nothing from ranks: what it writes shows how many took part, and in the end one does."""
    team = Team(2, adaptive=True)
    seen = []
    for _ in range(3000):
        record = np.zeros((20, 2), np.uint64)
        record[0] = 1
        assert team.run(relay, record, 2) == 0
        seen.append(2 if record[-1, 1] else 1)
    assert seen[0] == 2
    assert seen.count(1) > len(seen) // 2
    team.close()
