"""Hyperparameters: what is refused, and in which words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from mileage.algorithms.a2c import A2CConfig
from mileage.algorithms.configs import checked, scheduled
from mileage.algorithms.dqn import DQNConfig
from mileage.algorithms.impala import IMPALAConfig
from mileage.algorithms.ppo import PPOConfig
from mileage.algorithms.rpo import RPOConfig
from mileage.algorithms.sac import SACConfig
from mileage.algorithms.td3 import TD3Config
from mileage.errors import UnknownNameError, UsageError

BOTH: list[tuple[str, Any, str]] = [
    ("n_envs", 0, "n_envs must be at least 1, not 0"),
    ("n_steps", -3, "n_steps must be at least 1, not -3"),
    ("gamma", 1.01, "gamma must be between 0 and 1, not 1.01"),
    ("gamma", -0.1, "gamma must be between 0 and 1, not -0.1"),
    ("gamma", math.nan, "gamma must be between 0 and 1, not nan"),
    ("gae_lambda", 2.0, "gae_lambda must be between 0 and 1, not 2.0"),
    ("learning_rate", 0.0, "learning_rate must be above 0 and finite, not 0.0"),
    ("learning_rate", math.inf, "learning_rate must be above 0 and finite, not inf"),
    ("learning_rate", math.nan, "learning_rate must be above 0 and finite, not nan"),
    ("adam_eps", -1e-5, "adam_eps must be above 0 and finite, not -1e-05"),
    ("entropy_coef", -0.1, "entropy_coef must be 0 or more and finite, not -0.1"),
    ("value_coef", math.inf, "value_coef must be 0 or more and finite, not inf"),
    ("max_grad_norm", -1.0, "max_grad_norm must be 0 or more, not -1.0"),
    ("log_std_init", math.nan, "log_std_init must be finite, not nan"),
    ("learning_rate_schedule", "cosine", "learning_rate_schedule must be one of constant, linear, not 'cosine'"),
]
PPO_ONLY: list[tuple[str, Any, str]] = [
    ("epochs", 0, "epochs must be at least 1, not 0"),
    ("minibatch", 0, "minibatch must be at least 1, not 0"),
    ("clip", 0.0, "clip must be above 0, not 0.0"),
    ("value_clip", -0.2, "value_clip must be 0 or more, not -0.2"),
    ("target_kl", -0.01, "target_kl must be 0 or more, not -0.01"),
    ("clip_schedule", "", "clip_schedule must be one of constant, linear, not ''"),
]
OTHERS: list[tuple[Any, str, Any, str]] = [
    # The range is the base class's where a configuration has another default.
    (DQNConfig, "tau", 0.0, "tau must be above 0 and at most 1, not 0.0"),
    (DQNConfig, "train_every", 0, "train_every must be at least 1, not 0"),
    (DQNConfig, "epsilon_end", 1.5, "epsilon_end must be between 0 and 1, not 1.5"),
    (DQNConfig, "capacity", 63, "capacity must be at least the batch, 64, not 63"),
    (TD3Config, "noise_limit", math.inf, "noise_limit must be 0 or more and finite, not inf"),
    (TD3Config, "learning_starts", -1, "learning_starts must be 0 or more, not -1"),
    (SACConfig, "target_entropy", math.nan, "target_entropy must be finite, not nan"),
    (IMPALAConfig, "mode", "later", "mode must be one of async, lockstep, not 'later'"),
    (IMPALAConfig, "lag", -1, "lag must be 0 or more, not -1"),
    (RPOConfig, "perturbation", -0.5, "perturbation must be 0 or more and finite, not -0.5"),
]
CASES = [(kind, *case) for kind in (PPOConfig, A2CConfig) for case in BOTH] + [(PPOConfig, *case) for case in PPO_ONLY]
CASES += OTHERS


@pytest.mark.parametrize(("kind", "name", "value", "message"), CASES)
def test_values_out_of_range_are_named(kind: Any, name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(**{name: value})
    assert str(caught.value) == message


def test_every_number_has_a_bad_value_in_the_table() -> None:
    for kind in (PPOConfig, A2CConfig):
        tested = {name for each, name, *_ in CASES if each is kind}
        free = {"hidden", "activation", "normalise_advantages", "normalise_observations", "normalise_rewards"}
        assert tested | free == {field.name for field in dataclasses.fields(kind)}


def test_a_rollout_of_one_sample_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^n_envs \* n_steps must be at least 2, not 1$"):
        PPOConfig(n_envs=1, n_steps=1)


def test_configurations_are_frozen() -> None:
    for kind in (PPOConfig, A2CConfig):
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind().gamma = 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_envs", 2.5, "n_envs must be of type int, not 2.5"),
        ("n_envs", "8", "n_envs must be of type int, not '8'"),
        ("n_envs", True, "n_envs must be of type int, not True"),
        ("n_steps", None, "n_steps must be of type int, not None"),
        ("learning_rate", "1e-3", "learning_rate must be of type float, not '1e-3'"),
        ("learning_rate", False, "learning_rate must be of type float, not False"),
        ("normalise_rewards", 1, "normalise_rewards must be of type bool, not 1"),
        ("activation", 3, "activation must be of type str, not 3"),
        ("hidden", 64, "hidden must be a list of whole numbers, not 64"),
        ("hidden", "64", "hidden must be a list of whole numbers, not '64'"),
        ("hidden", [64, 1.5], "hidden must be a list of whole numbers, not [64, 1.5]"),
    ],
)
def test_values_of_the_wrong_type_are_named(name: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        checked(PPOConfig, "ppo", {name: value})
    assert str(caught.value) == message


def test_numbers_become_plain_python_numbers() -> None:
    got = checked(
        PPOConfig,
        "ppo",
        {"n_envs": np.int64(4), "gamma": 1, "learning_rate": np.float32(0.5), "hidden": [np.int32(8), 16]},
    )
    assert got == {"n_envs": 4, "gamma": 1.0, "learning_rate": 0.5, "hidden": (8, 16)}
    assert [type(value) for value in got.values()] == [int, float, float, tuple]
    assert type(got["hidden"][0]) is int


def test_an_unknown_hyperparameter_suggests_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown hyperparameter of ppo 'n_env': did you mean 'n_envs'\?"):
        checked(PPOConfig, "ppo", {"n_env": 3})


def test_schedules() -> None:
    assert [scheduled(2.0, "constant", progress) for progress in (0.0, 0.5, 0.75)] == [2.0, 2.0, 2.0]
    assert [scheduled(2.0, "linear", progress) for progress in (0.0, 0.5, 0.75)] == [2.0, 1.0, 0.5]
