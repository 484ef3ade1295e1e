"""Progress of training: a bar on a terminal and in a notebook, one line per run elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mileage.ledger.runs import RecordedRun

if TYPE_CHECKING:
    from mileage.training.agent import Agent

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
