"""Copies of an agent, in this process or in another: what a checkpoint holds, read again."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mileage._errors import UsageError

if TYPE_CHECKING:
    from mileage.training.agent import Agent


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


def restored_by_name(name: str, data: bytes, env: Any, threads: int) -> Agent:
    """As `restored`, for an agent of another process."""
    from mileage.training.agents import agent_class

    return restored(agent_class(name), data, env, threads)


def portable(agent: Agent, env: Any) -> Any:
    """What another process makes the environment of: the name it was given by, or the environment itself."""
    if isinstance(env, str):
        return env
    try:
        pickle.dumps(agent.spec)
    except Exception as error:
        raise UsageError(
            f"environment {agent.env_id!r} cannot be pickled ({error}): save(path) the agent, and load(path, env=...)"
        ) from error
    return agent.spec
