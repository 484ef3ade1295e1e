"""tianshou.

    with tianshou.recorded(algorithm, collector, panel="CartPole-v1", target="mean_return>=475"):
        algorithm.run_training(params)

Phases: `rollout` with `env_step` in it, `learn`, `eval`; its own test collector, logging and checkpoints are `other`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from tianshou.algorithm import Algorithm as Foreign

NOT_SEPARATED = "its own test episodes, logging and checkpoints are other; choosing actions and buffers are rollout"


@contextlib.contextmanager
def recorded(algorithm: Foreign, collector: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Session]:
    """Record `algorithm.run_training`, whose training collector is `collector`."""
    framework_module("tianshou", "tianshou")
    session = Session("tianshou", settings, algorithm=type(algorithm).__name__.lower(), not_separated=NOT_SEPARATED)
    env = collector.env
    session.wrap(env, "step", "env_step", lambda found: _count(session, found))
    said = 0

    def collected(stats: Foreign) -> None:
        nonlocal said
        said += int(stats.n_collected_steps)
        session.claim({"collect_speed": stats.collect_speed}, steps=said)

    session.wrap(collector, "collect", "rollout", collected)

    def updated(_: object) -> None:
        if session.due():
            session.examine(_policy(algorithm), modules=algorithm)

    session.wrap(algorithm, "update", "learn", updated)
    with closing(session, lambda: session.examine_last(_policy(algorithm), modules=algorithm)):
        yield session


def _count(session: Session, found: Foreign) -> None:
    """A step of as many environments as there are rewards."""
    session.steps += len(found[1])


def _policy(algorithm: Foreign) -> Foreign:
    import torch
    from tianshou.data import Batch

    policy = algorithm.policy

    def act(observations: Observation) -> Array:
        policy.eval()
        inside, policy.is_within_training_step = policy.is_within_training_step, False
        try:
            with torch.inference_mode():
                found = policy(Batch(obs=np.asarray(observations), info=Batch())).act
        finally:
            policy.is_within_training_step = inside
        mapped = policy.map_action(found.cpu().numpy() if isinstance(found, torch.Tensor) else found)
        return np.asarray(mapped)

    return act
