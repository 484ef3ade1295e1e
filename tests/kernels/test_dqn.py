"""The DQN update against plain losses, differentiated numerically, and its parts by known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiny_envs
from mileage.buffers.prioritised import EPSILON
from mileage.kernels import dqn
from mileage.kernels.reference.losses import Transitions, huber, q_values
from mileage.kernels.reference.losses import dqn_targets as dqn_targets
from mileage.kernels.reference.networks import mlp_gradient, numerical_gradient
from off_policy_learners import fill, first_gradient, learner, stepped

CASES: dict[str, dict[str, Any]] = {
    "plain": {"double": False},
    "double": {},
    "dueling": {"dueling": True, "double": False, "activation": "tanh"},
    "double and dueling, two layers": {"dueling": True, "hidden": (4, 3)},
    "an earlier bend": {"huber": 0.5},
    "clipped": {"max_grad_norm": 0.05},
}


def run(parts: Any) -> None:
    parts.totals[:] = 0.0
    parts.updates = parts.team.run(dqn.dqn_update, parts.update_frame.set(steps=parts.updates).record, parts.pieces)


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_one_update(settings: dict[str, Any]) -> None:
    parts = learner("DQN", tiny_envs.Identity, **{"max_grad_norm": 0.0, "tau": 0.3, "target_every": 1} | settings)
    batch, policy = fill(parts), parts.policy
    weights = parts.batch.weights
    weights[:] = np.random.default_rng(2).uniform(0.1, 1.0, weights.shape)
    params, target = policy.params.astype(np.float64), parts.target_params.astype(np.float64)
    limit, max_norm = settings.get("huber", 1.0), settings.get("max_grad_norm", 0.0)
    actions = batch.actions[:, 0].astype(int)
    run(parts)

    def q(p: Any, obs: Any) -> Any:
        return q_values(p, policy.actor_sizes, obs, policy.activation, policy.dueling)

    targets = dqn_targets(batch, q(params, batch.next_obs), q(target, batch.next_obs), settings.get("double", True))

    def errors(p: Any) -> Any:
        return q(p, batch.obs)[np.arange(12), actions] - targets

    def loss(p: Any) -> float:
        return float((weights * huber(errors(p), limit)).mean())

    np.testing.assert_allclose(parts._td_errors, errors(params), rtol=1e-4, atol=1e-5)
    assert (np.abs(errors(params)) > limit).any()
    assert (np.abs(errors(params)) < limit).any()
    slope = numerical_gradient(loss, params)
    if not max_norm:
        np.testing.assert_allclose(first_gradient(parts.adam["adam_mean"]), slope, rtol=1e-3, atol=2e-5)
    new = stepped(params, slope, max_norm)
    np.testing.assert_allclose(policy.params, new, atol=2e-5)
    np.testing.assert_allclose(parts.target_params, target + 0.3 * (new - target), atol=1e-5)
    assert parts.totals[dqn.LOSS] / 12.0 == pytest.approx(loss(params), rel=1e-4)
    assert parts.totals[dqn.Q_VALUE] / 12.0 == pytest.approx((errors(params) + targets).mean(), rel=1e-4)


@pytest.mark.parametrize("double", [True, False])
def test_targets_bootstrap_from_what_is_possible(double: bool) -> None:
    parts = learner("DQN", tiny_envs.Doors, double=double, max_grad_norm=0.0, target_every=10)
    policy, rng = parts.policy, np.random.default_rng(4)
    obs_size, n = policy.obs_size, policy.n_actions
    fill(parts)
    masks = (rng.random((12, n)) < 0.5).astype(np.uint8)
    masks[np.arange(12), rng.integers(0, n, 12)] = 1
    parts.batch.next_obs[:, obs_size : obs_size + n] = masks
    parts._split.take()
    batch = Transitions(
        *(getattr(parts.batch, name).copy() for name in ("obs", "actions", "rewards")),
        *(getattr(parts.batch, name).copy() for name in ("next_obs", "terminated", "discounts")),
    )
    params, target = policy.params.astype(np.float64), parts.target_params.astype(np.float64)

    def q(p: Any, obs: Any) -> Any:
        return q_values(p, policy.actor_sizes, obs[:, :obs_size], policy.activation, policy.dueling)

    following = [q(p, batch.next_obs) for p in (params, target)]
    want = dqn_targets(batch, *following, double, masks)
    assert not np.allclose(want, dqn_targets(batch, *following, double))
    run(parts)
    errors = q(params, batch.obs)[np.arange(12), batch.actions[:, 0].astype(int)] - want
    np.testing.assert_allclose(parts._td_errors, errors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_only_what_is_possible_is_chosen(epsilon: float) -> None:
    parts = learner("DQN", tiny_envs.Doors, n_envs=64, epsilon_start=epsilon, epsilon_end=epsilon)
    seen = np.zeros(5)
    for turn in range(30):
        parts._take_masks()
        chosen = parts._act_randomly() if turn % 2 else parts.act(0.0)
        assert (parts.masks[np.arange(64), chosen] == 1).all()
        assert (parts.masks.sum(axis=1) == 3).all()
        seen += np.bincount(chosen, minlength=5)
        parts._store(*parts.env.step(chosen))
    assert (seen > 0).all()


def test_a_step_that_the_time_limit_cuts_off_keeps_the_mask_of_what_it_led_to() -> None:
    parts = learner("DQN", tiny_envs.Doors, n_envs=3)
    for _ in range(9):
        parts._take_masks()
        parts._store(*parts.env.step(parts._act_randomly()))
    batch = parts.replay.sample(24)
    shown = batch.next_obs[:, :5].argmax(axis=1)
    assert batch.truncated.any()
    for row, number in enumerate(shown):
        locked = {int(number), (int(number) + 1) % 5}
        assert set(np.flatnonzero(batch.next_obs[row, 5:10] == 0)) == locked


def test_double_and_plain_differ_where_the_networks_disagree() -> None:
    """Online prefers action 1, the target network action 0 (worth 5): double bootstraps from 2, plain from 5."""
    batch = Transitions(None, None, [1.0], None, [False], [0.5])
    online, target = np.array([[0.0, 3.0]]), np.array([[5.0, 2.0]])
    assert dqn_targets(batch, online, target, double=True) == [1.0 + 0.5 * 2.0]
    assert dqn_targets(batch, online, target, double=False) == [1.0 + 0.5 * 5.0]
    got = {}
    for double in (True, False):
        parts = learner("DQN", tiny_envs.Identity, hidden=(1,), batch=1, double=double, learning_rate=1e-9)
        for params, biases in ((parts.policy.params, (0, 3, 0, 0)), (parts.target_params, (5, 2, 0, 0))):
            params[:-4] = 0.0
            params[-4:] = biases
        fill(parts)
        parts.batch.rewards[:], parts.batch.terminated[:], parts.batch.discounts[:] = 1.0, 0, 0.5
        parts.batch.actions[:] = 1
        run(parts)
        got[double] = float(parts._td_errors[0])
    # The value of action 1 is 3.
    assert got == {True: 3.0 - 2.0, False: 3.0 - 3.5}


def test_a_dueling_head_by_hand() -> None:
    """Value 10, advantages 1, 2, 3, 6 with mean 3: action values 8, 9, 10, 13."""
    parts = learner("DQN", tiny_envs.Identity, hidden=(1,), batch=1, dueling=True, learning_rate=1e-9)
    params = parts.policy.params
    params[:-5], params[-5:] = 0.0, (10, 1, 2, 3, 6)
    fill(parts)
    parts.batch.terminated[:], parts.batch.rewards[:] = 1, 0.0
    for action, value in enumerate((8.0, 9.0, 10.0, 13.0)):
        parts.batch.actions[:] = action
        run(parts)
        assert parts._td_errors[0] == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(parts.policy.q_values(np.zeros((1, 4), np.float32)), [[8.0, 9.0, 10.0, 13.0]], rtol=1e-5)


def test_the_target_network_moves_every_so_many_updates() -> None:
    parts = learner("DQN", tiny_envs.Identity, target_every=3, tau=1.0)
    fill(parts)
    before = parts.target_params.copy()
    for _ in range(2):
        run(parts)
        np.testing.assert_array_equal(parts.target_params, before)
    run(parts)
    np.testing.assert_allclose(parts.target_params, parts.policy.params, atol=1e-6)


def test_n_step_targets_sum_discounted_rewards() -> None:
    """Rewards 1 at every step of an endless episode: 3 steps at gamma 0.5 are 1.75, then the value at 0.125."""
    parts = learner("DQN", tiny_envs.Spike, n_step=3, gamma=0.5, learning_starts=0, train_every=1, batch=8)
    for _ in range(40):
        parts._store(*parts.env.step(parts._act_randomly()))
    batch = parts.replay.sample(8)
    np.testing.assert_allclose(batch.rewards, 1.0 + 0.5 + 0.25)
    np.testing.assert_allclose(batch.discounts, 0.5**3)
    # The second observation is the clock: three steps lie between the two.
    np.testing.assert_array_equal(batch.next_obs[:, 1] - batch.obs[:, 1], 3.0)


def test_priorities_follow_the_errors() -> None:
    parts = learner("DQN", tiny_envs.Identity, prioritised=True, learning_starts=0, train_every=1, batch=8, n_envs=2)
    for _ in range(20):
        parts._store(*parts.env.step(parts._act_randomly()))
    parts.learn(1)
    indices, errors = parts.batch.indices.copy(), np.abs(parts._td_errors)
    again = parts.replay.tree.leaves[indices]
    # A transition drawn twice has the priority of its last place in the batch.
    last = {int(index): float(error) for index, error in zip(indices, errors, strict=True)}
    want = [(last[int(index)] + EPSILON) ** parts.config.priority_exponent for index in indices]
    np.testing.assert_allclose(again, want, rtol=1e-5)


# Hidden widths, and the pieces that they are cut into at a batch of 300.
SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "one layer": ((1024,), 2),
    "two layers": ((96, 96), 2),
    "uneven pieces of three layers": ((130, 128, 129), 4),
}


@pytest.mark.parametrize(("hidden", "pieces"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
def test_threads_do_not_change_a_bit(max_grad_norm: float, hidden: tuple[int, ...], pieces: int) -> None:
    results = []
    for threads in (1, 2, 3):
        parts = learner(
            "DQN", tiny_envs.Identity, hidden=hidden, batch=300, capacity=400, threads=threads, gradient_steps=4,
            max_grad_norm=max_grad_norm, target_every=2, dueling=True,
        )  # fmt: skip
        assert parts.pieces == pieces
        fill(parts)
        run(parts)
        results.append({name: array.copy() for name, array in parts.state_arrays().items()})
    for name, array in results[0].items():
        for other in results[1:]:
            np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.parametrize(("hidden", "pieces"), SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_of_pieces(activation: str, hidden: tuple[int, ...], pieces: int) -> None:
    """A network of several pieces: the chain rule on the whole of it, from the errors that were written."""
    parts = learner(
        "DQN", tiny_envs.Identity, hidden=hidden, activation=activation, batch=300, capacity=400, max_grad_norm=0.0,
        threads=2,
    )  # fmt: skip
    # Small enough for sums over a thousand inputs to be far from overflow of tanh.
    parts.policy.params *= np.float32(0.1)
    batch, policy = fill(parts), parts.policy
    params = policy.params.copy()
    run(parts)
    assert parts.pieces == pieces
    rows, actions = np.arange(300), batch.actions[:, 0].astype(int)
    online, target = (
        q_values(each.astype(np.float64), policy.actor_sizes, batch.next_obs, activation, False)
        for each in (params, parts.target_params)
    )
    values = q_values(params.astype(np.float64), policy.actor_sizes, batch.obs, activation, False)[rows, actions]
    errors = values - dqn_targets(batch, online, target, double=True)
    np.testing.assert_allclose(parts._td_errors, errors, rtol=1e-4, atol=1e-4)
    slopes = np.zeros((300, 4))
    slopes[rows, actions] = np.clip(parts._td_errors, -1.0, 1.0) / 300.0
    want = mlp_gradient(params, policy.actor_sizes, batch.obs, slopes, activation)
    np.testing.assert_allclose(first_gradient(parts.adam["adam_mean"]), want, rtol=1e-3, atol=1e-5)


def test_what_is_seen_ahead_is_the_network_of_its_time() -> None:
    """Several updates in one call, between which the target network moves, are the same as one after the other."""
    settings = {"target_every": 2, "tau": 0.5, "learning_rate": 1e-2, "batch": 12}
    together = learner("DQN", tiny_envs.Identity, gradient_steps=5, **settings)
    alone = learner("DQN", tiny_envs.Identity, gradient_steps=1, **settings)
    fill(together)
    run(together)
    names = ("obs", "actions", "rewards", "next_obs", "terminated", "discounts")
    for u in range(5):
        for name in names:
            getattr(alone.batch, name)[:] = getattr(together.batch, name)[12 * u : 12 * (u + 1)]
        run(alone)
    assert together.updates == alone.updates == 5
    np.testing.assert_allclose(together.policy.params, alone.policy.params, atol=1e-5)
    np.testing.assert_allclose(together.target_params, alone.target_params, atol=1e-5)
