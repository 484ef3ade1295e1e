"""TensorBoard scalars: one directory per run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.rows import Checkpoint, check_run_id
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream
from mileage.metrics import METRICS


def write(runs: Sequence[RecordedRun], directory: Path) -> None:
    """Write one event file per run below `directory`, in a directory named by the run's id."""
    write_streams(map(RunStream.of, runs), directory)


def write_streams(runs: Iterable[RunStream], directory: Path) -> int:
    """The same, a row at a time; return how many runs there were."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the package announces that it runs without TensorFlow
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingExtraError("TensorBoard export", "tensorboard") from None
    written = 0
    for stream in runs:
        recorded = stream.recorded
        written += 1
        try:
            writer = EventFileWriter(str(directory / check_run_id(recorded.run.run_id)))
        except OSError as error:
            raise LedgerError(f"{directory} cannot be written: {error.strerror}") from None
        for checkpoint in stream.rows("checkpoint"):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(checkpoint)]
            wall_time = recorded.run.started_at + checkpoint.wall_seconds
            writer.add_event(Event(wall_time=wall_time, step=checkpoint.step, summary=Summary(value=values)))
        writer.close()
    return written


def scalars(checkpoint: Checkpoint) -> list[tuple[str, float]]:
    """Tag and value of everything a checkpoint has."""
    found = [(metric.tag, getattr(checkpoint, metric.name)) for metric in METRICS if metric.tag is not None]
    return [(tag, float(value)) for tag, value in found if value is not None]
