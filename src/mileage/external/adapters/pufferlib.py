"""PufferLib 3's `PuffeRL` trainer, and its logs.

    with pufferlib.recorded(trainer):
        while trainer.global_step < trainer.config["total_timesteps"]:
            trainer.evaluate()
            trainer.train()

Phases: `rollout` (its `evaluate` collects), `learn`, `log`, `checkpoint`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from pufferlib.pufferl import PuffeRL as Foreign

NOT_SEPARATED = "stepping, choosing and transfers are rollout together; advantages are part of learn"


@contextlib.contextmanager
def recorded(trainer: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Session]:
    """Record the loop over `trainer.evaluate()` and `trainer.train()`; steps are `trainer.global_step`."""
    framework_module("pufferlib", "pufferlib")
    session = Session("pufferlib", settings, algorithm="ppo", config=dict(trainer.config), not_separated=NOT_SEPARATED)

    def collected(_: object) -> None:
        session.steps = int(trainer.global_step)

    session.wrap(trainer, "evaluate", "rollout", collected)

    def learned(logs: Foreign) -> None:
        session.claim(logs or {}, steps=trainer.global_step)

    session.wrap(trainer, "train", "learn", learned)
    session.wrap(trainer, "mean_and_log", "log")
    session.wrap(trainer, "save_checkpoint", "checkpoint")
    with closing(session, lambda: None):
        yield session
