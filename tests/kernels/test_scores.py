"""Log-probabilities and values of stored transitions, against the policy's plain NumPy forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.kernels import actor_critic
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.team import Team
from mileage.kernels.reference.networks import parts
from mileage.policies import ActorCritic


def scored(policy: ActorCritic, obs: Any, actions: Any, n_ranks: int = 1, masks: Any = None) -> tuple[Any, Any]:
    n_valued, n_scored = len(obs), len(actions)
    floats = actor_critic.scores_work_floats(policy.actor_sizes, policy.critic_sizes)
    log_probs, values = np.zeros(n_scored, np.float32), np.zeros(n_valued, np.float32)
    kind = actor_critic.SCORE if masks is None else actor_critic.MASKED_SCORE
    frame = Frame(
        kind,
        **{name: value for name, value in policy.frame_fields().items() if name in (kind.names or ())},
        **({} if masks is None else {"masks": masks}),
        obs=obs,
        actions=actions,
        log_probs=log_probs,
        values=values,
        works=np.zeros((n_ranks, floats), np.float32),
        n_scored=n_scored,
        n_valued=n_valued,
        work_floats=floats,
    )
    team = Team(n_ranks)
    team.run(actor_critic.score, frame.record, actor_critic.pieces(n_valued))
    team.close()
    return log_probs, values


def make(n_actions: int, activation: str) -> ActorCritic:
    low, high = ([], []) if n_actions else ([-1.0, -2.0], [1.0, 2.0])
    policy = ActorCritic(5, n_actions, low, high, hidden=(17, 9), activation=activation, seed=3)
    rng = np.random.default_rng(0)
    policy.params[:] += 0.3 * rng.standard_normal(policy.params.size, np.float32)
    return policy


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("n_scored", "n_valued"), [(1, 1), (128, 130), (300, 317), (256, 256)])
def test_categorical_scores_are_log_softmax_and_the_critic(n_scored: int, n_valued: int, activation: str) -> None:
    policy, rng = make(4, activation), np.random.default_rng(1)
    obs = rng.standard_normal((n_valued, 5), np.float32)
    actions = rng.integers(4, size=(n_scored, 1)).astype(np.float32)
    log_probs, values = scored(policy, obs, actions)
    logits = policy.head(obs[:n_scored]).astype(np.float64)
    log_softmax = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = log_softmax[np.arange(n_scored), actions[:, 0].astype(int)]
    np.testing.assert_allclose(log_probs, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(values, policy.values(obs), rtol=1e-5, atol=1e-5)


def test_gaussian_scores_are_those_of_the_density() -> None:
    policy, rng = make(0, "tanh"), np.random.default_rng(2)
    obs = rng.standard_normal((200, 5), np.float32)
    actions = rng.standard_normal((190, 2), np.float32)
    log_probs, values = scored(policy, obs, actions)
    mean = policy.head(obs[:190]).astype(np.float64)
    std = np.exp(policy.named()["log_std"].astype(np.float64))
    density = np.exp(-0.5 * ((actions - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi))
    np.testing.assert_allclose(log_probs, np.log(density).sum(axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, policy.values(obs), rtol=1e-5, atol=1e-5)


def test_ranks_do_not_change_a_bit() -> None:
    policy, rng = make(4, "tanh"), np.random.default_rng(3)
    obs = rng.standard_normal((700, 5), np.float32)
    actions = rng.integers(4, size=(650, 1)).astype(np.float32)
    one, three = (scored(policy, obs, actions, ranks) for ranks in (1, 3))
    assert one[0].tobytes() == three[0].tobytes()
    assert one[1].tobytes() == three[1].tobytes()


def test_scores_of_parts_are_those_of_what_is_possible() -> None:
    rng, infinite = np.random.default_rng(4), np.full(2, np.inf)
    low, high = np.array([*-infinite, -1.0]), np.array([*infinite, 1.0])
    policy = ActorCritic(5, 0, low, high, hidden=(9,), branches=(3, 4), seed=1)
    policy.params[:] += 0.5 * rng.standard_normal(policy.params.size, np.float32)
    obs = rng.standard_normal((200, 5), np.float32)
    masks = (rng.random((190, 7)) < 0.5).astype(np.uint8)
    choices = rng.integers(0, [3, 4], (190, 2))
    masks[np.arange(190), choices[:, 0]] = masks[np.arange(190), 3 + choices[:, 1]] = 1
    actions = np.concatenate([choices, rng.standard_normal((190, 1))], axis=1).astype(np.float32)
    log_probs, values = scored(policy, obs, actions, masks=masks)
    want, _ = parts(policy.head(obs[:190]), policy.branches, policy.log_std, masks, actions)
    np.testing.assert_allclose(log_probs, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, policy.values(obs), rtol=1e-5, atol=1e-5)
