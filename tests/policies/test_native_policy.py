"""The native actor-critic in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mileage.errors import UnknownNameError, UsageError
from mileage.kernels.mlp import RELU, TANH
from mileage.kernels.reference.networks import mlp
from mileage.policies import ActorCritic
from mileage.policies.mlp import ACTIVATIONS


def random_policy(n_actions: int = 3, activation: str = "tanh") -> ActorCritic:
    low, high = ((), ()) if n_actions else ((-2.0, -np.inf), (2.0, np.inf))
    policy = ActorCritic(5, n_actions, low, high, hidden=(7, 3), activation=activation, seed=1)
    rng = np.random.default_rng(2)
    policy.params[:] = rng.normal(scale=0.7, size=policy.params.shape)
    policy.obs_mean[:] = rng.normal(size=5)
    policy.obs_scale[:] = rng.uniform(0.5, 2.0, size=5)
    policy.obs_limit = 1.5
    return policy


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("n_actions", [3, 0])
def test_networks_equal_reference(n_actions: int, activation: str) -> None:
    policy = random_policy(n_actions, activation)
    obs = np.random.default_rng(3).normal(size=(20, 5)).astype(np.float32)
    x = np.clip((obs - policy.obs_mean) * policy.obs_scale, -1.5, 1.5)
    actor = policy.params[: policy.critic_offset]
    critic = policy.params[policy.critic_offset : policy.log_std_offset]
    values = mlp(critic, policy.critic_sizes, x, activation)[-1][:, 0]
    np.testing.assert_allclose(policy.values(obs), values, rtol=1e-4, atol=1e-5)
    head = mlp(actor, policy.actor_sizes, x, activation)[-1]
    want = head.argmax(axis=1) if n_actions else policy.to_env(head.astype(np.float32))
    np.testing.assert_allclose(policy.actions(obs), want, rtol=1e-4, atol=1e-5)


def test_discrete_draws_follow_the_softmax() -> None:
    policy = random_policy()
    obs = np.zeros((60_000, 5), np.float32)
    drawn = np.bincount(policy.actions(obs, np.random.default_rng(0)), minlength=3)
    head = policy.head(obs[:1])[0].astype(np.float64)
    p = np.exp(head) / np.exp(head).sum()
    assert stats.chisquare(drawn, p * len(obs)).pvalue > 1e-3


def test_continuous_draws_are_normal_and_mapped() -> None:
    policy = random_policy(0)
    policy.params[policy.log_std_offset :] = (np.log(0.1), np.log(3.0))
    obs = np.zeros((20_000, 5), np.float32)
    drawn = policy.actions(obs, np.random.default_rng(0))
    head = policy.head(obs[:1])[0]
    assert stats.kstest((drawn[:, 1] - head[1]) / 3.0, "norm").pvalue > 1e-3
    assert drawn[:, 0].min() >= -2.0
    assert drawn[:, 0].max() <= 2.0


def test_actions_are_mapped_to_bounds() -> None:
    # Dimension 0 maps [-1, 1] to [-2, 2], dimension 1 to [0, 1]; dimension 2 has no upper bound and keeps the lower.
    policy = ActorCritic(1, 0, (-2.0, 0.0, -1.0), (2.0, 1.0, np.inf))
    got = policy.to_env(np.array([[0.0, 0.0, 7.0], [1.0, 0.5, -7.0], [-9.0, 9.0, 0.0]], np.float32))
    assert got.tolist() == [[0.0, 0.5, 7.0], [2.0, 0.75, -1.0], [-2.0, 1.0, 0.0]]


def test_one_bound_is_kept_and_what_is_too_wide_is_clipped() -> None:
    low, high = (0.0, -np.inf, -3e38, 5.0), (np.inf, -1.0, 3e38, 5.0)
    policy = ActorCritic(1, 0, low, high)
    got = policy.to_env(np.array([[-2.0, 2.0, 9.0, 0.0], [2.0, -2.0, -9.0, 1.0]], np.float32))
    assert got.tolist() == [[0.0, -1.0, 9.0, 5.0], [2.0, -2.0, -9.0, 5.0]]


def test_names_are_views_of_one_vector() -> None:
    policy = ActorCritic(2, 0, (-1.0,), (1.0,), hidden=(3,))
    views = policy.named()
    assert {name: view.shape for name, view in views.items()} == {
        "actor.0.weight": (2, 3), "actor.0.bias": (3,), "actor.1.weight": (3, 1), "actor.1.bias": (1,),
        "critic.0.weight": (2, 3), "critic.0.bias": (3,), "critic.1.weight": (3, 1), "critic.1.bias": (1,),
        "log_std": (1,),
    }  # fmt: skip
    for number, view in enumerate(views.values()):
        view[...] = number
    sizes = [6, 3, 3, 1, 6, 3, 3, 1, 1]
    assert policy.params.tolist() == np.repeat(np.arange(9), sizes).tolist()
    assert "log_std" not in ActorCritic(2, 4).named()


def test_initial_weights_are_orthogonal() -> None:
    views = ActorCritic(4, 2, hidden=(64, 32), seed=3).named()
    for name, gain in (("actor.0", 2.0), ("actor.1", 2.0), ("actor.2", 1e-4), ("critic.2", 1.0)):
        weight = views[f"{name}.weight"].astype(np.float64)
        small = weight @ weight.T if weight.shape[0] < weight.shape[1] else weight.T @ weight
        np.testing.assert_allclose(small, gain * np.eye(len(small)), atol=1e-5)
        assert not views[f"{name}.bias"].any()


def test_the_seed_decides_the_weights() -> None:
    first, again, other = (ActorCritic(4, 2, seed=seed).params for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_initial_deviation() -> None:
    assert ActorCritic(3, 0, (-1.0, -1.0), (1.0, 1.0), log_std_init=-0.5).named()["log_std"].tolist() == [-0.5, -0.5]


def test_activations_are_those_of_the_kernels() -> None:
    assert ACTIVATIONS == {"tanh": TANH, "relu": RELU}


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown activation 'rleu': did you mean 'relu'\?"):
        ActorCritic(2, 2, activation="rleu")
    for hidden in ((), (64, 0), (-1,)):
        with pytest.raises(UsageError, match=r"^hidden must name at least one layer width above 0"):
            ActorCritic(2, 2, hidden=hidden)
