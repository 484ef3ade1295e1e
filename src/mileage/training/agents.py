"""The agents by name, made from the registry of algorithms, and reading a checkpoint of any of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mileage._errors import CheckpointError
from mileage.algorithms.registry import Algorithm, algorithms, find_algorithm
from mileage.training import checkpoints, copies
from mileage.training.agent import Agent

_classes: dict[Algorithm, type[Agent]] = {}


def agent_class(name: str) -> type[Agent]:
    """The agent class of the algorithm called `name`, or of the learner at "package.module:Class"."""
    algorithm = find_algorithm(name)
    if algorithm not in _classes:
        configuration = f"`{algorithm.module}.{algorithm.class_name}Config`"
        members = {
            "name": algorithm.name,
            "algorithm": algorithm,
            "__doc__": f"{algorithm.title}; hyperparameters are the fields of {configuration}.",
            "__module__": __name__,
            "__deepcopy__": _copied,
            "__reduce__": _reduced,
        }
        _classes[algorithm] = type(algorithm.class_name, (Agent,), members)
    return _classes[algorithm]


def _copied(agent: Agent, memo: object) -> Agent:
    return copies.restored(type(agent), copies.content(agent), agent.spec, agent.threads)


def _reduced(agent: Agent) -> tuple[Callable[..., Agent], tuple[Any, ...]]:
    return _restored, (agent.name, copies.content(agent), copies.portable(agent), agent.threads)


def _restored(name: str, data: bytes, env: Any, threads: int) -> Agent:
    """The agent of another process."""
    return copies.restored(agent_class(name), data, env, threads)


if TYPE_CHECKING:
    from typing import Unpack

    from mileage.training.signatures import (
        A2COptions,
        DQNOptions,
        IMPALAOptions,
        PPOOptions,
        RPOOptions,
        SACOptions,
        TD3Options,
    )

    class PPO(Agent):
        """Proximal policy optimisation."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[PPOOptions]) -> None: ...

    class RPO(Agent):
        """Robust policy optimisation."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[RPOOptions]) -> None: ...

    class A2C(Agent):
        """Advantage actor-critic."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[A2COptions]) -> None: ...

    class IMPALA(Agent):
        """Actor-learner with V-trace."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[IMPALAOptions]) -> None: ...

    class SAC(Agent):
        """Soft actor-critic."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[SACOptions]) -> None: ...

    class TD3(Agent):
        """Twin delayed policy gradient."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[TD3Options]) -> None: ...

    class DQN(Agent):
        """Deep Q-learning."""

        def __init__(self, first: Any = None, second: Any = None, /, **options: Unpack[DQNOptions]) -> None: ...
else:

    def __getattr__(name: str) -> type[Agent]:
        for algorithm in algorithms():
            if algorithm.class_name == name:
                return agent_class(algorithm.name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(path: str | os.PathLike[str], *, threads: int | None = None, env: Any = None, **hyperparameters: Any) -> Agent:
    """Read a checkpoint of any algorithm; `env` and `hyperparameters` replace those that it names."""
    name = checkpoints.read(checkpoints.checked_path(path))[1].get("algorithm")
    # A name with a colon would import whatever the checkpoint says.
    if not isinstance(name, str) or name not in {each.name for each in algorithms()}:
        raise CheckpointError(f"checkpoint {path} is of algorithm {name!r}, which this version does not have")
    return agent_class(name).load(path, threads=threads, env=env, **hyperparameters)
