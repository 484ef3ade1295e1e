"""One run of an agent, recorded in the ledger and shown as it goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mileage.ledger import announce
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.rows import EndState
from mileage.ledger.runs import EvalPoint, RecordedRun
from mileage.ledger.targets import Target
from mileage.measure import PhaseClock, ResourceSampler
from mileage.records import ReadRecord
from mileage.system import told_of_the_end

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


# --- Progress of training: a bar on a terminal and in a notebook, one line per run elsewhere, or nothing ---
# Redrawing more often is not seen and costs time.
_REDRAW_SECONDS = 0.1


class Progress:
    """Shows steps, steps/s, held-out return, dollars so far and time left of one run after the other."""

    def __init__(self, *, shown: bool, price_usd_per_hour: float, says: bool | None = None) -> None:
        """Prepare; `says` is whether it is said what takes long, where nothing is shown."""
        self._price = price_usd_per_hour
        self._says = shown if says is None else says
        self._bar: Any = None
        self._task: Any = None
        self._shown = shown
        self._plain = shown and not on_screen()
        self._last = 0.0
        self._return: float | None = None
        if shown and not self._plain:
            self._bar = _make_bar()

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, label: str, horizon: int, steps: int) -> None:
        """Begin to show a run."""
        self._return, self._last = None, 0.0
        if self._bar is not None:
            self._task = self._bar.add_task(label, total=horizon, completed=steps, speed="", score="", dollars="")

    def compiling(self, names: list[str]) -> None:
        """Say that kernels are compiled, which happens once per installation."""
        self.say(f"compiling {', '.join(names)} (once; kept for later runs) …")

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if not self._says:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def __call__(self, progress: Any) -> None:
        """Take note of an iteration."""
        if progress.evaluation is not None:
            self._return = progress.evaluation.mean_return
        now = time.perf_counter()
        if self._bar is None or now - self._last < _REDRAW_SECONDS:
            return
        self._last = now
        times = progress.clock.times()
        busy = times.wall_seconds - sum(times.phases.get(name, 0.0) for name in ("init", "compile", "eval"))
        dollars = times.wall_seconds / 3600.0 * self._price
        self._bar.update(
            self._task,
            completed=progress.steps,
            speed=f"{progress.steps / busy:,.0f} steps/s" if busy > 0 else "",
            score="" if self._return is None else f"return {self._return:.1f}",
            dollars=f"${dollars:.6f}" if self._price else "",
        )

    def finish(self, run: RecordedRun) -> None:
        """Replace the run's bar by a line."""
        if self._bar is not None:
            self._bar.remove_task(self._task)
        final = run.final
        score = "not evaluated" if final is None else f"mean return {final.mean_return:.1f}"
        when = "" if run.wall_to_target is None else f" in {run.wall_to_target:.2f} s"
        if self._shown:
            self.say(f"seed {run.seed}: {run.state.replace('_', ' ')}{when}, {run.steps:,} steps, {score}")

    @property
    def callbacks(self) -> tuple[Progress, ...]:
        """What is to be called after every iteration."""
        return () if self._bar is None else (self,)


@contextlib.contextmanager
def shown_progress(agent: Agent, price: float, horizon: int, wanted: bool | None) -> Iterator[Progress]:
    """Progress of one run in Python; None shows it on a terminal and in a notebook, and elsewhere what takes long."""
    shown = on_screen() if wanted is None else wanted
    with Progress(shown=shown, price_usd_per_hour=price, says=wanted is not False) as progress:
        progress.start(f"{agent.name} on {agent.env_id}, seed {agent.seed}", horizon, agent.steps)
        yield progress


def on_screen() -> bool:
    """Whether somebody looks who can be shown something that changes: a terminal, or a notebook."""
    shell = sys.modules.get("IPython")
    notebook = shell is not None and type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"
    return notebook or sys.stderr.isatty()


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[score]}"),
        TextColumn("{task.fields[dollars]}"),
        TimeRemainingColumn(),
    ]
    return Bar(*columns, console=Console(stderr=True), transient=True)
