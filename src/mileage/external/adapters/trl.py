"""TRL, and any trainer of transformers.

    with trl.recorded(trainer):
        trainer.train()

Steps are the trainer's optimiser steps (`step_rule` says so). Phases: `rollout` where the trainer generates, `learn`,
`eval` for its evaluations (claimed), `checkpoint`, `log`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from transformers import Trainer as Foreign

NOT_SEPARATED = "rewards are part of rollout; data loading is other"


@contextlib.contextmanager
def recorded(trainer: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Session]:
    """Record `trainer.train()`; a language model sits no panel of ours, so its figures are claimed."""
    module = framework_module("transformers", "trl")
    session = Session(
        "trl", {"step_rule": "optimiser_steps"} | settings, algorithm=type(trainer).__name__.lower(),
        seed=trainer.args.seed, config=trainer.args.to_dict(), not_separated=NOT_SEPARATED,
    )  # fmt: skip
    callback = _callback_class(module)(session)
    trainer.add_callback(callback)
    session.wrap(trainer, "training_step", "learn")
    session.wrap(trainer, "_prepare_inputs", "rollout")  # foreign: where TRL generates and scores
    session.wrap(trainer, "evaluate", "eval")
    session.wrap(trainer, "_save_checkpoint", "checkpoint")
    session.wrap(trainer, "log", "log")
    try:
        with closing(session, lambda: None):
            yield session
    finally:
        trainer.remove_callback(callback)


def _callback_class(module: Foreign) -> type:
    class Recording(module.TrainerCallback):  # type: ignore[misc]
        """Counts steps and keeps figures."""

        def __init__(self, session: Session) -> None:
            self.session = session

        def on_step_end(self, args: Foreign, state: Foreign, control: Foreign, **kwargs: object) -> None:
            self.session.steps += 1
            self.session.claim({}, steps=state.global_step)

        def on_log(
            self, args: Foreign, state: Foreign, control: Foreign, logs: Foreign = None, **kwargs: object
        ) -> None:
            self.session.claim(logs or {}, steps=state.global_step)

    return Recording
