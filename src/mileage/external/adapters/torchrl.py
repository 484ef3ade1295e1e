"""TorchRL's `Trainer`.

    with torchrl.recorded(trainer, panel="Pendulum-v1", target="mean_return>=-200"):
        trainer.train()

Phases: `rollout` (a collector's batch), `learn`, `log`, `checkpoint`, `eval`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from torchrl.trainers import Trainer as Foreign

NOT_SEPARATED = "stepping and choosing are rollout together; sampling from a replay buffer is part of learn"


@contextlib.contextmanager
def recorded(
    trainer: Foreign, *, policy: Callable[[Observation], Array] | None = None, observation_key: str = "observation",
    action_key: str = "action", **settings: Unpack[SessionSettings],
) -> Iterator[Session]:  # fmt: skip
    """Record `trainer.train()`; `policy` is what is examined, the collector's by default."""
    framework_module("torchrl", "torchrl")
    session = Session("torchrl", settings, algorithm=type(trainer.loss_module).__name__, not_separated=NOT_SEPARATED)
    module = trainer.collector.policy
    act = policy or _policy(module, observation_key, action_key)

    def batch(found: Foreign) -> Foreign:
        session.steps += int(np.prod(found.batch_size))
        session.switch("learn")
        return found

    def after() -> None:
        session.claim({}, steps=trainer.collected_frames)
        if session.due():
            session.examine(act, modules=module)
        session.switch("rollout")

    trainer.register_op("batch_process", batch)
    trainer.register_op("post_steps", after)
    session.wrap(trainer, "save_trainer", "checkpoint")
    session.switch("rollout")
    with closing(session, lambda: session.examine_last(act, modules=module)):
        yield session


def _policy(module: Foreign, observation_key: str, action_key: str) -> Callable[[Observation], Array]:
    import torch
    from tensordict import TensorDict
    from torchrl.envs import ExplorationType, set_exploration_type

    def act(observations: Observation) -> Array:
        rows = torch.as_tensor(np.asarray(observations), dtype=torch.float32)
        with torch.inference_mode(), set_exploration_type(ExplorationType.DETERMINISTIC):
            found = module(TensorDict({observation_key: rows}, batch_size=[len(rows)]))[action_key]
        return np.asarray(found.argmax(-1) if found.dtype in (torch.int64, torch.bool) and found.ndim > 1 else found)

    return act
