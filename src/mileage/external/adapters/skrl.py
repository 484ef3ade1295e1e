"""skrl.

    with skrl.recorded(trainer, panel="Pendulum-v1", target="mean_return>=-200"):
        trainer.train()

Phases: `inference`, `env_step`, `learn`, `checkpoint`, `log`, `eval`; storing transitions is `other`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module, watch_env
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from skrl.trainers.torch import Trainer as Foreign

NOT_SEPARATED = "storing transitions is other; advantages are part of learn; its timers do not wait for the GPU"

_LATE = 10**9


@contextlib.contextmanager
def recorded(trainer: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Session]:
    """Record `trainer.train()` of a single agent."""
    framework_module("skrl", "skrl")
    agent, env = trainer.agents, trainer.env
    agent = agent[0] if isinstance(agent, list) else agent
    session = Session(
        "skrl", settings, algorithm=type(agent).__name__.lower(), config=_config(agent), not_separated=NOT_SEPARATED
    )
    watch_env(session, env, env.num_envs)
    session.wrap(agent, "act", "inference")
    session.wrap(agent, "update", "learn")
    session.wrap(agent, "write_checkpoint", "checkpoint")
    session.wrap(agent, "write_tracking_data", "log")
    modules = [each for each in agent.models.values() if each is not None]
    calls = 0

    def interacted(_: object) -> None:
        nonlocal calls
        calls += 1
        tracked = {name: float(np.mean(values)) for name, values in dict(agent.tracking_data).items() if len(values)}
        session.claim(tracked, steps=calls * env.num_envs)
        if session.due():
            session.examine(_policy(agent), modules=modules)

    session.wrap(agent, "post_interaction", None, interacted)
    with closing(session, lambda: session.examine_last(_policy(agent), modules=modules)):
        yield session


def _policy(agent: Foreign) -> Foreign:
    import torch

    def act(observations: Observation) -> Array:
        rows = torch.as_tensor(np.asarray(observations), device=agent.device, dtype=torch.float32)
        with torch.inference_mode():
            # As it acts after any time of random actions; its preprocessors learn only where they are told to.
            found, outputs = type(agent).act(agent, rows, rows, timestep=_LATE, timesteps=_LATE)
        # The mean of a Gaussian, the scores of a categorical policy, or what a deterministic one says.
        best = outputs.get("mean_actions", outputs.get("net_output", found))
        return np.asarray((found if best is None else best).cpu())

    return act


def _config(agent: Foreign) -> dict[str, object]:
    config = agent.cfg
    return dict(config) if isinstance(config, dict) else dict(vars(config))
