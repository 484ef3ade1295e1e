from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.buffers import RolloutBuffer
from mileage.errors import UsageError


def step(rollout: RolloutBuffer, t: int, **changes: Any) -> None:
    n = rollout.n_envs
    fields: dict[str, Any] = {
        "obs": np.full((n, 2), t, np.float32),
        "actions": np.full(n, t, np.int64),
        "rewards": np.ones(n),
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
        "values": np.full(n, 0.5, np.float32),
        "log_probs": np.full(n, -float(t), np.float32),
    }
    rollout.add(**(fields | changes))


def test_advantages_by_hand() -> None:
    # gamma 0.5, lambda 1, values 0.5, rewards 1. Environment 0 ends by itself at t = 1; environment 1 is cut off
    # there, where the critic says 4.
    rollout = RolloutBuffer(3, 2, 2, action_dtype=np.int64)
    step(rollout, 0)
    step(
        rollout,
        1,
        terminated=np.array([True, False]),
        truncated=np.array([False, True]),
        truncated_values=np.array([0.0, 4.0], np.float32),
    )
    step(rollout, 2)
    rollout.finish(np.array([2.0, 2.0], np.float32), gamma=0.5, lambda_=1.0)
    # t = 2: 1 + 0.5 * 2. t = 1: 1 + 0, and 1 + 0.5 * 4. t = 0: 1 + 0.5 * what follows.
    np.testing.assert_allclose(rollout.returns, [[1.5, 2.5], [1.0, 3.0], [2.0, 2.0]])
    np.testing.assert_allclose(rollout.advantages, rollout.returns - 0.5)


def test_minibatches_hold_every_transition_once_with_its_own_fields() -> None:
    rollout = RolloutBuffer(5, 2, 2, action_dtype=np.int64, seed=1)
    for t in range(5):
        step(rollout, t)
    rollout.finish(np.zeros(2, np.float32))
    epochs = []
    for _ in range(2):
        seen: list[int] = []
        sizes = []
        for batch in rollout.minibatches(4):
            np.testing.assert_array_equal(batch.obs[:, 0], batch.actions)
            np.testing.assert_array_equal(batch.log_probs, -batch.actions.astype(np.float32))
            np.testing.assert_array_equal(batch.returns, rollout.returns[batch.actions, 0])
            seen += batch.actions.tolist()
            sizes.append(len(batch.obs))
        assert sorted(seen) == sorted([0, 1, 2, 3, 4] * 2)
        assert sizes == [4, 4, 2]
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def test_a_reset_rollout_uses_the_same_memory() -> None:
    rollout = RolloutBuffer(2, 1, 2)
    address = rollout.obs.ctypes.data
    for _ in range(2):
        for t in range(2):
            step(rollout, t, actions=np.zeros(1, np.float32))
        assert rollout.full
        rollout.finish(np.zeros(1, np.float32))
        rollout.reset()
        assert not rollout.full
    assert rollout.obs.ctypes.data == address


def test_misuse_is_refused_with_what_to_do() -> None:
    rollout = RolloutBuffer(1, 2, 2, action_dtype=np.int64)
    with pytest.raises(UsageError, match="0 of 1 steps"):
        rollout.finish(np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="call finish first"):
        next(rollout.minibatches(1))
    with pytest.raises(UsageError, match=r"obs must have shape \(2, 2\), not \(2,\)"):
        step(rollout, 0, obs=np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="actions must have dtype int64, not float32"):
        step(rollout, 0, actions=np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="truncated_values is required"):
        step(rollout, 0, truncated=np.array([True, False]))
    step(rollout, 0)
    with pytest.raises(UsageError, match="all its 1 steps"):
        step(rollout, 1)
    rollout.finish(np.zeros(2, np.float32))
    with pytest.raises(UsageError, match="minibatch size must be at least 1, not 0"):
        next(rollout.minibatches(0))
