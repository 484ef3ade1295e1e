"""The agents by name, and reading a checkpoint of any of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mileage._errors import CheckpointError, UnknownNameError
from mileage.training import checkpoints
from mileage.training.agent import Agent


class PPO(Agent):
    """Proximal policy optimisation; hyperparameters are the fields of `mileage.algorithms.ppo.PPOConfig`."""

    name = "ppo"
    _home = ("mileage.algorithms.ppo", "PPO")


class A2C(Agent):
    """Advantage actor-critic; hyperparameters are the fields of `mileage.algorithms.a2c.A2CConfig`."""

    name = "a2c"
    _home = ("mileage.algorithms.a2c", "A2C")


class IMPALA(Agent):
    """Actor-learner with V-trace; hyperparameters are the fields of `mileage.algorithms.impala.IMPALAConfig`."""

    name = "impala"
    _home = ("mileage.algorithms.impala", "IMPALA")


class SAC(Agent):
    """Soft actor-critic; hyperparameters are the fields of `mileage.algorithms.sac.SACConfig`."""

    name = "sac"
    _home = ("mileage.algorithms.sac", "SAC")


class TD3(Agent):
    """Twin delayed policy gradient; hyperparameters are the fields of `mileage.algorithms.td3.TD3Config`."""

    name = "td3"
    _home = ("mileage.algorithms.td3", "TD3")


class DQN(Agent):
    """Deep Q-learning; hyperparameters are the fields of `mileage.algorithms.dqn.DQNConfig`."""

    name = "dqn"
    _home = ("mileage.algorithms.dqn", "DQN")


ALGORITHMS: dict[str, type[Agent]] = {cls.name: cls for cls in (PPO, A2C, IMPALA, SAC, TD3, DQN)}


def agent_class(name: str) -> type[Agent]:
    """The agent class of the algorithm called `name`."""
    try:
        return ALGORITHMS[name.lower()]
    except KeyError:
        raise UnknownNameError("algorithm", name, ALGORITHMS) from None


def load(path: str | os.PathLike[str], *, threads: int | None = None, env: Any = None) -> Agent:
    """Read a checkpoint of any algorithm."""
    _, metadata = checkpoints.read(Path(path))
    name = metadata.get("algorithm")
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise CheckpointError(f"checkpoint {path} is of algorithm {name!r}, which this version does not have")
    return ALGORITHMS[name].load(path, threads=threads, env=env)
