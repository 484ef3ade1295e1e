"""TensorBoard scalars: one directory per run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mileage._errors import LedgerError, MileageError, MissingExtraError
from mileage.ledger.rows import Checkpoint, check_run_id
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream
from mileage.metrics import METRICS

Write = Callable[[float, int, Mapping[str, float]], None]
"""Writes scalars by tag, at a time in seconds since the epoch and a step."""


class EventFile(Protocol):
    """What TensorBoard's own writer of event files offers."""

    def flush(self) -> None:
        """Let others see what was written."""

    def close(self) -> None:
        """Write what is left."""


def event_writer(directory: str, error: type[MileageError] = LedgerError) -> tuple[Write, EventFile]:
    """A function that writes scalars to a new event file in `directory`, and that file; `error` if it cannot be."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the package announces that it runs without TensorFlow
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingExtraError("TensorBoard export", "tensorboard") from None
    try:
        writer = EventFileWriter(directory)
    except OSError as problem:
        raise error(f"{directory} cannot be written: {problem.strerror}") from None

    def write(wall_time: float, step: int, values: Mapping[str, float]) -> None:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(wall_time=wall_time, step=step, summary=summary))

    return write, writer


def write(runs: Sequence[RecordedRun], directory: Path) -> None:
    """Write one event file per run below `directory`, in a directory named by the run's id."""
    write_streams(map(RunStream.of, runs), directory)


def write_streams(runs: Iterable[RunStream], directory: Path) -> int:
    """The same, a row at a time; return how many runs there were."""
    written = 0
    for stream in runs:
        recorded = stream.recorded
        written += 1
        add, file = event_writer(str(directory / check_run_id(recorded.run.run_id)))
        for checkpoint in stream.rows("checkpoint"):
            add(recorded.run.started_at + checkpoint.wall_seconds, checkpoint.step, dict(scalars(checkpoint)))
        file.close()
    return written


def scalars(checkpoint: Checkpoint) -> list[tuple[str, float]]:
    """Tag and value of everything a checkpoint has."""
    found = [(metric.tag, getattr(checkpoint, metric.name)) for metric in METRICS if metric.tag is not None]
    return [(tag, float(value)) for tag, value in found if value is not None]
