from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.buffers import PrioritizedReplay
from mileage.errors import UsageError


def filled(n: int = 8, **kwargs: Any) -> PrioritizedReplay:
    buffer = PrioritizedReplay(**({"capacity": n, "obs_shape": 1, "alpha": 1.0} | kwargs))
    extra = buffer.layout.next_obs == "derived"
    for i in range(n + extra):
        obs = np.array([i], np.float32)
        buffer.push(obs, 0.0, float(i), False, False, obs + 1)
    return buffer


def test_sampling_is_in_proportion_to_priorities() -> None:
    buffer = filled(4, alpha=0.5)
    buffer.update_priorities(np.arange(4), np.array([0.0, 1.0, 4.0, 9.0]))
    drawn = np.bincount(np.concatenate([buffer.sample(4).indices for _ in range(20_000)]), minlength=4)
    weights = np.sqrt(np.array([0.0, 1.0, 4.0, 9.0]) + 1e-6)
    np.testing.assert_allclose(drawn / drawn.sum(), weights / weights.sum(), atol=0.005)


def test_weights_are_those_of_the_paper() -> None:
    buffer = filled(4, alpha=1.0, beta=(0.5, 0.5))
    priorities = np.array([1.0, 2.0, 4.0, 9.0])
    buffer.update_priorities(np.arange(4), priorities)
    batch = buffer.sample(4)
    # w = (N p / total) ** -beta, over the largest of all held, not only of those drawn.
    probability = priorities / priorities.sum()
    expected = (4 * probability) ** -0.5
    np.testing.assert_allclose(batch.weights, (expected / expected.max())[batch.indices], rtol=1e-5)


def test_beta_rises_linearly_to_its_end() -> None:
    buffer = filled(4, beta=(0.4, 1.0), beta_samples=3)
    betas = []
    for _ in range(5):
        betas.append(buffer.beta)
        buffer.sample(2)
    np.testing.assert_allclose(betas, [0.4, 0.6, 0.8, 1.0, 1.0])


def test_new_transitions_get_the_highest_priority_so_far() -> None:
    buffer = filled(4)
    buffer.update_priorities(np.array([2]), np.array([7.0]))
    obs = np.zeros(1, np.float32)
    buffer.push(obs, 0.0, 0.0, False, False, obs)  # takes the place of transition 0
    np.testing.assert_allclose(buffer.tree.leaves, [7.0, 1.0, 7.0, 1.0], rtol=1e-5)
    assert buffer.max_priority == pytest.approx(7.0)
    assert buffer.tree.minimum == pytest.approx(1.0)


def test_a_transition_without_successor_cannot_be_drawn() -> None:
    buffer = filled(6, next_obs="derived")
    assert np.count_nonzero(buffer.tree.leaves) == 6
    newest = 6  # row of the newest transition in a ring of seven
    assert buffer.tree.leaves[newest] == 0.0
    buffer.update_priorities(np.array([newest]), np.array([100.0]))
    assert buffer.tree.leaves[newest] == 0.0
    assert newest not in {index for _ in range(200) for index in buffer.sample(6).indices}


def test_leaves_are_exactly_the_transitions_that_can_be_sampled() -> None:
    rng = np.random.default_rng(0)
    for next_obs in ("stored", "derived"):
        buffer = PrioritizedReplay(12, 1, n_envs=3, next_obs=next_obs)
        for step in range(30):
            n = 3 * int(rng.integers(1, 4))
            obs, flags = np.zeros((n, 1), np.float32), rng.random(n) < 0.3
            buffer.push_batch(obs, np.zeros(n, np.float32), np.zeros(n, np.float32), flags, flags, obs)
            assert np.count_nonzero(buffer.tree.leaves) == len(buffer), (next_obs, step)
            if len(buffer):
                buffer.at(np.flatnonzero(buffer.tree.leaves))  # refuses what is not held


def test_saved_priorities_and_schedule_come_back(tmp_path: Path) -> None:
    buffer = filled(8, beta_samples=10)
    buffer.update_priorities(np.arange(8), np.arange(1.0, 9.0))
    buffer.sample(4)
    buffer.save(tmp_path / "replay.safetensors")
    loaded = PrioritizedReplay.load(tmp_path / "replay.safetensors")
    assert isinstance(loaded, PrioritizedReplay)
    assert (loaded.beta, loaded.max_priority) == (buffer.beta, buffer.max_priority)
    for _ in range(3):
        a, b = buffer.sample(4), loaded.sample(4)
        np.testing.assert_array_equal(a.indices, b.indices)
        np.testing.assert_array_equal(a.weights, b.weights)


@pytest.mark.parametrize(
    ("indices", "priorities", "message"),
    [
        (np.array([8]), np.array([1.0]), r"indices must lie in \[0, 8\)"),
        (np.array([0]), np.array([np.inf]), "priorities must be finite"),
        (np.array([0, 1]), np.array([1.0]), "priorities must have shape"),
        (np.array([0.5]), np.array([1.0]), "indices must have dtype int64"),
        (np.array([0]), np.array([1]), "priorities must have dtype float32 or float64"),
        ([0], np.array([1.0]), "indices must be a NumPy array"),
    ],
)
def test_bad_priorities_are_refused(indices: Any, priorities: Any, message: str) -> None:
    buffer = filled()
    with pytest.raises(UsageError, match=message):
        buffer.update_priorities(indices, priorities)
    assert (buffer.tree.leaves == 1.0).all()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"alpha": -0.1}, r"alpha must be between 0 and 1, not -0\.1"),
        ({"alpha": 1.1}, r"alpha must be between 0 and 1, not 1\.1"),
        ({"beta": (0.4, 2.0)}, r"beta must be two numbers between 0 and 1, not \(0\.4, 2\.0\)"),
        ({"beta_samples": 0}, "beta_samples must be at least 1, not 0"),
    ],
)
def test_unusable_exponents_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PrioritizedReplay(8, 1, **bad)
