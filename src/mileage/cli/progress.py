"""Progress of training: a bar on a terminal, one line per run elsewhere, nothing with `--json` or `--quiet`."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

# Redrawing more often is not seen and costs time.
_REDRAW_SECONDS = 0.1


class Progress:
    """Shows steps, steps/s, held-out return, dollars so far and time left of one run after the other."""

    def __init__(self, *, shown: bool, price_usd_per_hour: float) -> None:
        self._price = price_usd_per_hour
        self._bar: Any = None
        self._task: Any = None
        self._shown = shown
        self._plain = shown and not sys.stderr.isatty()
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
        if not self._shown:
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

    def finish(self, text: str) -> None:
        """Replace the run's bar by a line."""
        if self._bar is not None:
            self._bar.remove_task(self._task)
        self.say(text)


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
