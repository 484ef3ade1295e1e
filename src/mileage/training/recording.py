"""Binds training to the ledger: every evaluation becomes a checkpoint row, and the end of the run its end row."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mileage.ledger.panels import Panel
from mileage.ledger.targets import Target
from mileage.meter import PhaseClock
from mileage.training.recorder import Ledger, RunRecorder, RunResult
from mileage.training.records import EvalPoint, RunRecord

if TYPE_CHECKING:
    from mileage.training.agent import Agent


class AgentRecorder:
    """A run of an agent being recorded."""

    def __init__(self, recorder: RunRecorder) -> None:
        self._recorder = recorder
        self.run_id = recorder.run_id

    def on_evaluation(self, point: EvalPoint) -> None:
        """Record an evaluation; for `Agent.learn`."""
        self._recorder.checkpoint(point.steps, point.evaluation)

    def finish(self, record: RunRecord) -> RunResult:
        """Record the last checkpoint and how the run ended."""
        if record.checkpoint is not None:
            self._recorder.checkpoint(record.steps, path=record.checkpoint)
        return self._recorder.end(record.end, record.reason)


@contextlib.contextmanager
def recorded(
    agent: Agent,
    panel: Panel,
    target: Target | None,
    clock: PhaseClock,
    *,
    horizon: int,
    name: str | None = None,
    price: float | str | None = None,
    instance: str | None = None,
    spot: bool = False,
    db: str | bool | None = None,
) -> Iterator[AgentRecorder]:
    """Launch a run in the ledger `db` (None: the default one, False: none) and close it whatever happens."""
    ledger = Ledger(None if db is False else db) if db is not True else Ledger()
    config = dataclasses.asdict(agent.config)
    with ledger.run(
        name or f"{agent.name}-{agent.env_id}",
        panel=panel,
        target=target,
        price=price,
        instance=instance,
        spot=spot,
        seed=agent.seed,
        config=config,
        algorithm=agent.name,
        env_id=agent.env_id,
        framework="mileage",
        eval_every_steps=agent.run_defaults.get("eval_every"),
        batch_size=agent.batch_size,
        step_budget=horizon,
        clock=clock,
    ) as recorder:
        yield AgentRecorder(recorder)
