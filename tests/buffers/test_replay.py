from __future__ import annotations

import gc
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mileage.buffers import PrioritizedReplay, ReplayBuffer
from mileage.errors import CheckpointError, UsageError

CAPACITY, N_ENVS = 5, 2


class RingMachine(RuleBasedStateMachine):
    """A ring of two environments beside a plain list of what was pushed; observations count up."""

    next_obs = "stored"

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ReplayBuffer(CAPACITY * N_ENVS, 1, n_envs=N_ENVS, next_obs=self.next_obs)
        self.rows: deque[list[tuple[float, float, bool, bool]]] = deque()
        self.obs = np.arange(N_ENVS, dtype=np.float32)[:, None] * 1000

    @rule(ends=st.lists(st.sampled_from(["no", "terminated", "truncated"]), min_size=N_ENVS, max_size=N_ENVS))
    def push(self, ends: list[str]) -> None:
        terminated, truncated = (np.array([end == kind for end in ends]) for kind in ("terminated", "truncated"))
        after = self.obs + 1
        flat = np.zeros(N_ENVS, np.float32)
        self.buffer.push_batch(self.obs, flat, flat, terminated, truncated, after)
        self.rows.append(
            [
                (float(self.obs[i, 0]), float(after[i, 0]), bool(terminated[i]), bool(truncated[i]))
                for i in range(N_ENVS)
            ]
        )
        # After an episode a fresh observation, not the final one.
        self.obs = np.where((terminated | truncated)[:, None], after + 10, after)

    @precondition(lambda self: bool(self.rows))
    @rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.rows.clear()

    def held(self) -> list[list[tuple[float, float, bool, bool]]]:
        rows = list(self.rows)
        if self.next_obs == "derived":
            rows = rows[:-1]
        return rows[-CAPACITY:]

    @invariant()
    def holds_the_newest_transitions(self) -> None:
        expected = {item for row in self.held() for item in row}
        assert len(self.buffer) == len(self.held()) * N_ENVS
        if not expected:
            return
        layout, count = self.buffer.layout, len(self.held())
        first = len(self.rows) - (self.next_obs == "derived") - count
        rows = (first + np.arange(count)) % layout.rows
        batch = self.buffer.at((rows[:, None] * N_ENVS + np.arange(N_ENVS)).reshape(-1))
        found = {
            (float(batch.obs[b, 0]), float(batch.next_obs[b, 0]), bool(batch.terminated[b]), bool(batch.truncated[b]))
            for b in range(len(batch))
        }
        assert found == expected


class DerivedRingMachine(RingMachine):
    next_obs = "derived"


TestStoredRing = RingMachine.TestCase
TestDerivedRing = DerivedRingMachine.TestCase
for case in (TestStoredRing, TestDerivedRing):
    case.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def push_some(buffer: Any, n: int, every: int = 4) -> None:
    for i in range(n):
        obs = np.full(3, i, np.float32)
        buffer.push(obs, i, float(i), i % every == every - 1, False, obs + 0.5)


def test_draws_are_uniform() -> None:
    buffer = ReplayBuffer(50, 3)
    push_some(buffer, 77)
    counts = np.bincount(np.concatenate([buffer.sample(50).indices for _ in range(4000)]), minlength=50)
    # Chi-square with 49 degrees of freedom: above 85 has probability 0.1 %.
    assert ((counts - 4000) ** 2 / 4000).sum() < 85


def test_more_episode_ends_than_foreseen_make_room_for_themselves() -> None:
    buffer = ReplayBuffer(1000, 3, next_obs="derived")
    push_some(buffer, 2500, every=1)  # every step ends an episode
    batch = buffer.sample(500)
    np.testing.assert_array_equal(batch.next_obs, batch.obs + 0.5)
    assert batch.terminated.all()
    used = len(buffer._finals) // buffer.layout.obs_bytes - buffer._counters[2]
    assert used == 1001  # none lost, none left behind


def test_derived_next_observations_take_half_the_memory() -> None:
    sizes = [
        ReplayBuffer(100, (84, 84), obs_dtype=np.uint8, next_obs=kind)._records.nbytes for kind in ("stored", "derived")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(0.505, abs=0.002)  # one row more than a hundred


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
@pytest.mark.parametrize("next_obs", ["stored", "derived"])
@pytest.mark.parametrize("pushed", [7, 50])
def test_a_loaded_buffer_goes_on_as_the_saved_one(kind: Any, next_obs: str, pushed: int, tmp_path: Path) -> None:
    buffer = kind(20, 3, next_obs=next_obs, n_step=2, seed=3)
    push_some(buffer, pushed)
    buffer.sample(4)
    buffer.save(tmp_path / "deep" / "replay.safetensors")
    loaded = kind.load(tmp_path / "deep" / "replay.safetensors")
    for _ in range(2):
        push_some(buffer, 9)
        push_some(loaded, 9)
        a, b = buffer.sample(6), loaded.sample(6)
        for field in ("obs", "next_obs", "actions", "rewards", "discounts", "terminated", "truncated", "indices"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)


def test_a_file_holds_no_more_than_what_was_written(tmp_path: Path) -> None:
    buffer = ReplayBuffer(1_000_000, 3)
    push_some(buffer, 10)
    buffer.save(tmp_path / "few")
    assert (tmp_path / "few").stat().st_size < 5_000


def test_files_that_are_not_buffers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    with pytest.raises(CheckpointError, match="does not exist"):
        ReplayBuffer.load(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(CheckpointError, match="damaged"):
        ReplayBuffer.load(path)
    buffer = ReplayBuffer(20, 3)
    push_some(buffer, 9)
    buffer.save(path)
    with pytest.raises(CheckpointError, match="holds a replay buffer, not a prioritized one"):
        PrioritizedReplay.load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="damaged"):
        ReplayBuffer.load(path)


def test_saving_to_an_impossible_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        ReplayBuffer(4, 1).save(tmp_path / "file" / "replay")


def test_a_buffer_is_freed_when_its_last_user_lets_go() -> None:
    buffer = ReplayBuffer(10, 3)
    push_some(buffer, 5)
    gone = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is None
    finally:
        gc.enable()


def test_large_batches_are_the_same_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    draws = []
    for cores in (1, 4):
        monkeypatch.setattr("mileage.kernels.machine.team._cores", lambda cores=cores: cores)
        buffer = ReplayBuffer(40, 60_000, obs_dtype=np.uint8, seed=1)
        rng = np.random.default_rng(0)
        for _ in range(40):
            obs = rng.integers(0, 255, 60_000, np.uint8)
            buffer.push(obs, 0.0, 0.0, False, False, obs[::-1].copy())
        draws.append(buffer.sample(40))
    np.testing.assert_array_equal(draws[0].obs, draws[1].obs)
    np.testing.assert_array_equal(draws[0].next_obs, draws[0].obs[:, ::-1])
    np.testing.assert_array_equal(draws[0].next_obs, draws[1].next_obs)


@pytest.mark.parametrize("next_obs", ["stored", "derived"])
def test_observations_too_large_for_any_cache_arrive_unchanged(next_obs: str) -> None:
    # An odd size: neither rows nor their ends fall on the borders that wide copies need.
    size, rows = 300_001, 66
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (rows + 1, size), np.uint8)
    buffer = ReplayBuffer(rows, size, obs_dtype=np.uint8, next_obs=next_obs)
    zero, flag = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    for t in range(rows):
        reward = np.array([t], np.float32)
        buffer.push_batch(frames[t][None].copy(), zero, reward, flag, flag, frames[t + 1][None].copy())
    batch = buffer.sample(60)  # 18 MB each of obs and next_obs
    number = batch.rewards.astype(int)
    assert (batch.obs == frames[number]).all()
    assert (batch.next_obs == frames[number + 1]).all()


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplay])
@pytest.mark.parametrize("next_obs", ["stored", "derived"])
def test_a_damaged_file_is_refused_or_usable(kind: Any, next_obs: str, tmp_path: Path) -> None:
    buffer = kind(20, 3, next_obs=next_obs, n_step=2)
    push_some(buffer, 33)
    path = tmp_path / "replay"
    buffer.save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    outcomes = []
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.choice([1, 1, 4])):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            loaded = kind.load(path)
        except CheckpointError:
            outcomes.append("refused")
            continue
        push_some(loaded, 50, every=2)
        loaded.sample(len(loaded))
        outcomes.append("usable")
    assert {"refused", "usable"} == set(outcomes)


def test_a_final_observation_that_two_transitions_claim_is_damage(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20, 3, next_obs="derived")
    push_some(buffer, 15, every=3)
    state = buffer._records.view(np.int64)[buffer.layout.state_at // 8 :: buffer.layout.record // 8]
    ends = np.flatnonzero(state > 3)
    state[ends[1]] = state[ends[0]]
    buffer.save(tmp_path / "replay")
    with pytest.raises(CheckpointError, match="damaged"):
        ReplayBuffer.load(tmp_path / "replay")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("counters", 0, -3), ("counters", 1, 99), ("priorities", 0, np.nan), ("priorities", 0, 0.0), ("schedule", 0, 7.0)],
)
def test_numbers_that_cannot_be_are_damage(name: str, place: int, value: float) -> None:
    buffer, other = (PrioritizedReplay(20, 3) for _ in range(2))
    push_some(buffer, 9)
    arrays = {key: array.copy() for key, array in buffer.saved_arrays().items()}
    other.restore(arrays)
    arrays[name][place] = value
    with pytest.raises(CheckpointError, match="damaged"):
        other.restore(arrays)


def test_more_than_there_is_memory_for_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"no memory for .* GB of records: lower capacity"):
        ReplayBuffer(10**16, 3)
