"""Binds training to the ledger: every evaluation becomes a checkpoint row, and the end of the run its end row."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mileage.ledger.panels import Panel
from mileage.ledger.targets import Target
from mileage.meter import PhaseClock, ResourceSampler
from mileage.recording.recorder import Ledger, RunRecorder, RunResult
from mileage.training.records import EvalPoint, RunRecord

if TYPE_CHECKING:
    from mileage.training.agent import Agent


class AgentRecorder:
    """A run of an agent being recorded."""

    def __init__(self, recorder: RunRecorder, steps_before: int) -> None:
        self._recorder = recorder
        self._steps_before = steps_before
        self.run_id = recorder.run_id

    def on_evaluation(self, point: EvalPoint) -> None:
        """Record an evaluation; for `Agent.learn`."""
        self._recorder.checkpoint(
            point.steps - self._steps_before, point.evaluation, reset_reasons=point.resets or None
        )

    def finish(self, record: RunRecord) -> RunResult:
        """Record the last checkpoint and how the run ended."""
        if record.checkpoint is not None:
            self._recorder.checkpoint(record.steps - self._steps_before, path=record.checkpoint)
        if record.summary:
            self._recorder.profile(record.summary)
        return self._recorder.end(record.end, record.reason)


@contextlib.contextmanager
def recorded(
    agent: Agent,
    panel: Panel,
    target: Target | None,
    clock: PhaseClock,
    *,
    horizon: int,
    eval_every: int | None = None,
    name: str | None = None,
    price: float | str | None = None,
    instance: str | None = None,
    spot: bool = False,
    db: str | Literal[False] | None = None,
    sampler: ResourceSampler | None = None,
) -> Iterator[AgentRecorder]:
    """Launch a run in the ledger `db` (None: the default one, False: none) and close it whatever happens.

    A resumed agent's run counts its own steps, and names the run it continues as its parent. `sampler` is who reads
    memory and GPUs, if not one of the ledger's.
    """
    ledger = Ledger(enabled=False) if db is False else Ledger(db)
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
        eval_every_steps=agent.run_defaults.get("eval_every") if eval_every is None else eval_every,
        batch_size=agent.batch_size,
        step_budget=horizon - agent.steps,
        parent_run_id=agent.run_id,
        clock=clock,
        resources=True if sampler is None else sampler,
    ) as recorder:
        agent.run_id = recorder.run_id
        yield AgentRecorder(recorder, agent.steps)
