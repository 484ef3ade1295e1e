"""One run of an agent, recorded: launched in the ledger, a checkpoint row per evaluation, closed whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mileage._interrupts import told_of_the_end
from mileage._records import ReadRecord
from mileage.ledger.panels import Panel
from mileage.ledger.rows import EndState
from mileage.ledger.runs import EvalPoint, RecordedRun
from mileage.ledger.targets import Target
from mileage.meter import PhaseClock, ResourceSampler
from mileage.recording import announce
from mileage.recording.recorder import Ledger, RunRecorder

if TYPE_CHECKING:
    from mileage.training.agent import Agent

STEPS_EVERY_SECONDS, STEPS_EVERY_SHARE = 2.0, 0.02
"""How often the steps of a run are recorded between its evaluations: the longer of so many seconds, and of such a share
of the run so far."""
LedgerChoice = Ledger | str | os.PathLike[str] | bool | None
"""Where a run is recorded: True is the default ledger, None or False none at all."""


def run_clock(ledger: LedgerChoice) -> PhaseClock:
    """The clock of a run: that of the process's first recorded run counts from the start of the process."""
    if ledger is None or ledger is False:
        return PhaseClock()
    announced = announce.pending(as_ledger(ledger).url)
    if announced is not None and announced.start_ns is not None:
        return PhaseClock(start_ns=announced.start_ns)
    return PhaseClock.for_run()


def as_ledger(ledger: LedgerChoice) -> Ledger:
    """The ledger that is meant; one that is not written to where none is."""
    if isinstance(ledger, Ledger):
        return ledger
    place = ledger if isinstance(ledger, str | os.PathLike) else None
    return Ledger(place, enabled=ledger is not None and ledger is not False)


def in_turn(*calls: Callable[[EvalPoint], None] | None) -> Callable[[EvalPoint], None]:
    """One call for all of them; those that are None are left out."""
    wanted = [call for call in calls if call is not None]

    def call_all(point: EvalPoint) -> None:
        for call in wanted:
            call(point)

    return call_all


class Session:
    """A run of an agent being recorded."""

    def __init__(self, recorder: RunRecorder, steps_before: int, ledger: Ledger) -> None:
        self._recorder = recorder
        self._ledger = ledger
        self._steps_before = self._recorded_steps = steps_before
        self._began = self._noted_at = time.monotonic()

    @property
    def price(self) -> float:
        """Dollars an hour, 0 where none is set."""
        return self._recorder.price.usd_per_hour

    @property
    def in_ledger(self) -> bool:
        """Whether rows are written."""
        return self._recorder.writes

    def on_evaluation(self, point: EvalPoint) -> None:
        """Record an evaluation."""
        self._noted_at = time.monotonic()
        self._recorded_steps = point.steps
        self._recorder.checkpoint(
            point.steps - self._steps_before, point.evaluation, reset_reasons=point.resets or None
        )

    def on_steps(self, steps: int) -> None:
        """Record now and then how far the run is, for the case that its process is killed."""
        now = time.monotonic()
        if now - self._noted_at >= max(STEPS_EVERY_SECONDS, STEPS_EVERY_SHARE * (now - self._began)):
            self.note_steps(steps)

    def note_steps(self, steps: int) -> None:
        """Record how far the run is; nothing if it has ended."""
        self._noted_at = time.monotonic()
        if self._recorder.result is None and steps > self._steps_before:
            self._recorder.checkpoint(steps - self._steps_before)

    def killed(self, reason: str) -> None:
        """Close the run in the ledger, from whichever thread, before the process ends."""
        self._recorder.end(EndState.STOPPED, reason)

    def finish(
        self, state: EndState, reason: str, steps: int, checkpoint: Path | None, summary: ReadRecord
    ) -> RecordedRun:
        """Record the last checkpoint, what the algorithm counted, and how the run ended."""
        # A run that was not evaluated at its end has taken these steps all the same.
        if checkpoint is not None or steps > self._recorded_steps:
            self._recorder.checkpoint(steps - self._steps_before, path=checkpoint)
        if summary:
            self._recorder.profile(summary)
        ended = self._ledger.with_parents(self._recorder.end(state, reason))
        return dataclasses.replace(ended, steps_before=self._steps_before)


@contextlib.contextmanager
def recorded(
    agent: Agent, ledger: LedgerChoice, clock: PhaseClock, *, panel: Panel, target: Target | None, horizon: int,
    eval_every: int, name: str | None = None, price_usd_per_hour: float | str | None = None,
    instance: str | None = None, spot: bool = False, resources: bool | ResourceSampler | None = None,
) -> Iterator[Session]:  # fmt: skip
    """Launch a run of `agent` that ends at `horizon` steps, and close it whatever happens.

    A resumed agent's run counts its own steps, and names the run it continues as its parent. Memory and GPUs are
    watched where a ledger was named, unless `resources` says otherwise.
    """
    wanted = ledger is not None and ledger is not False
    book = as_ledger(ledger)
    with book.run(
        name or f"{agent.name}-{agent.env_id}", panel=panel, target=target, price_usd_per_hour=price_usd_per_hour,
        instance=instance, spot=spot, seed=agent.seed, config=dataclasses.asdict(agent.config), algorithm=agent.name,
        env_id=agent.env_id, framework="mileage", eval_every_steps=eval_every, batch_size=agent.batch_size,
        step_budget=horizon - agent.steps, parent_run_id=agent.run_id, threads=agent.threads, clock=clock,
        resources=wanted if resources is None else resources, keep=True,
    ) as recorder:  # fmt: skip
        if book.enabled:
            agent.run_id = recorder.run_id
        session = Session(recorder, agent.steps, book)
        with told_of_the_end(session.killed):
            try:
                yield session
            except BaseException:
                session.note_steps(agent.steps)
                raise
