"""The agents by name, read from checkpoints, and copied into this process or another."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mileage.algorithms.registry import Algorithm, algorithms, find_algorithm
from mileage.errors import CheckpointError, UsageError
from mileage.training import checkpoints
from mileage.training.agent import Agent

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


# --- Copies of an agent, in this process or in another: what a checkpoint holds, read again ---
def content(agent: Agent) -> bytes:
    """The checkpoint of an agent; UsageError if that is not all that makes it."""
    if agent.policy_name == "module":
        raise UsageError(
            "an agent with a network of your own is not copied: save(path) it, and load(path, policy=...) another"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.safetensors"
        agent.save(path)
        return path.read_bytes()


def restored(kind: type[Agent], data: bytes, env: Any, threads: int) -> Agent:
    """The agent whose checkpoint is `data`, in environment `env` if the checkpoint does not name it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.safetensors"
        path.write_bytes(data)
        return kind.load(path, env=env, threads=threads)


def portable(agent: Agent) -> Any:
    """What another process makes the environment of: the name it was given by, or the environment itself."""
    if isinstance(agent.given_env, str):
        return agent.given_env
    try:
        pickle.dumps(agent.spec)
    except Exception as error:
        raise UsageError(
            f"environment {agent.env_id!r} cannot be pickled ({error}): save(path) the agent, and load(path, env=...)"
        ) from error
    return agent.spec


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
    return restored(type(agent), content(agent), agent.spec, agent.threads)


def _reduced(agent: Agent) -> tuple[Callable[..., Agent], tuple[Any, ...]]:
    return _restored, (agent.name, content(agent), portable(agent), agent.threads)


def _restored(name: str, data: bytes, env: Any, threads: int) -> Agent:
    """The agent of another process."""
    return restored(agent_class(name), data, env, threads)


if TYPE_CHECKING:

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
