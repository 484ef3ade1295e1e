"""Live TensorBoard: the scalars of a run while it trains, by an extra that is loaded when it is asked for."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mileage.errors import UsageError
from mileage.ledger.trackers import event_writer

if TYPE_CHECKING:
    from mileage.training.runner import RunProgress

# Events between two looks at the clock are written at once; a browser polls more slowly.
_FLUSH_SECONDS = 2.0


class TensorBoard:
    """A callback of `learn` that writes what every iteration reports below `directory`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._write, self._writer = event_writer(os.fspath(directory), UsageError)
        self._flushed = time.monotonic()

    def __call__(self, progress: RunProgress) -> None:
        """Write one iteration, and the evaluation that followed it."""
        values = {f"train/{name}": value for name, value in _numbers(progress.stats)}
        if progress.evaluation is not None:
            values["eval/mean_return"] = progress.evaluation.mean_return
            if progress.evaluation.success_rate is not None:
                values["eval/success_rate"] = progress.evaluation.success_rate
        times = progress.clock.times()
        busy = times.wall_seconds - times.phases.get("eval", 0.0)
        values["time/steps_per_second"] = progress.steps / busy if busy > 0 else 0.0
        self._write(time.time(), progress.steps, values)
        if progress.evaluation is not None or time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


@contextlib.contextmanager
def live_scalars(directory: str | os.PathLike[str]) -> Iterator[TensorBoard]:
    """A callback that writes below `directory`, closed at the end."""
    board = TensorBoard(directory)
    try:
        yield board
    finally:
        board.close()


def _numbers(stats: object) -> Iterator[tuple[str, float]]:
    """Names and values of the numbers in an iteration's statistics, those in mappings included; no NaN."""
    if not dataclasses.is_dataclass(stats):
        return
    for field in dataclasses.fields(stats):
        found = getattr(stats, field.name)
        for name, value in found.items() if isinstance(found, Mapping) else ((field.name, found),):
            if isinstance(value, int | float) and math.isfinite(value):
                yield name, float(value)
