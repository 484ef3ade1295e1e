"""TensorBoard scalars: one directory per run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.formats.bundle import Bundle
from mileage.ledger.rows import Checkpoint, check_run_id

_SCALARS = (
    ("eval/success_rate", "success_rate"),
    ("eval/mean_return", "mean_return"),
    ("time/train_seconds", "train_seconds"),
    ("time/eval_seconds", "eval_seconds"),
    ("time/wall_seconds", "wall_seconds"),
    ("cost/usd", "cost_usd"),
    ("memory/peak_rss_gb", "peak_rss_gb"),
    ("memory/peak_gpu_gb", "peak_gpu_gb"),
)


def write(bundles: Sequence[Bundle], directory: Path) -> None:
    """Write one event file per run below `directory`, in a directory named by the run's id."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the package announces that it runs without TensorFlow
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise MissingExtraError("TensorBoard export", "tensorboard") from None
    for bundle in bundles:
        try:
            writer = EventFileWriter(str(directory / check_run_id(bundle.run.run_id)))
        except OSError as error:
            raise LedgerError(f"{directory} cannot be written: {error.strerror}") from None
        for checkpoint in bundle.checkpoints:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(checkpoint)]
            wall_time = bundle.run.started_at + checkpoint.wall_seconds
            writer.add_event(Event(wall_time=wall_time, step=checkpoint.step, summary=Summary(value=values)))
        writer.close()


def scalars(checkpoint: Checkpoint) -> list[tuple[str, float]]:
    """Return tag and value of everything a checkpoint has."""
    found = [(tag, getattr(checkpoint, field)) for tag, field in _SCALARS]
    return [(tag, float(value)) for tag, value in found if value is not None]
