"""Mirrors to other trackers, and event files of TensorBoard.

The ledger stays what counts. A mirror has a thread of its own and a queue with an end: training never waits for it,
what does not fit is left out, and a tracker that fails is told about once and left alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from mileage.errors import LedgerError, MileageError, MissingExtraError, UnknownNameError
from mileage.ledger.queries import RunStream
from mileage.ledger.rows import Checkpoint, End, Run, check_run_id
from mileage.ledger.runs import RecordedRun
from mileage.metrics import METRICS

# --- TensorBoard scalars: one directory per run ---
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


VARIABLE = "MILEAGE_MIRROR"
"""Environment variable with the names of mirrors, with commas between them."""
QUEUE_LENGTH = 10_000
CLOSE_SECONDS = 15.0
"""How long the end of a run waits for its mirrors, of which none may then be waited for any longer."""


class Mirror(Protocol):
    """One tracker, told of one run; called from one thread alone."""

    def begin(self, run: Run) -> None:
        """A run was launched."""

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        """Scalars by tag at a time, in seconds since the epoch, and a step."""

    def end(self, end: End) -> None:
        """It has ended; everything must be written when this returns."""


class _Mlflow:
    """MLflow, where `MLFLOW_TRACKING_URI` says."""

    def begin(self, run: Run) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "mileage")
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(name)
        made = self._client.create_run(
            experiment, start_time=int(run.started_at * 1000), run_name=run.name, tags=_tags(run)
        )
        self._run_id = made.info.run_id
        for key, value in _settings(run).items():
            self._client.log_param(self._run_id, key, value)

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(tag, value, int(at * 1000), step) for tag, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def end(self, end: End) -> None:
        self._client.set_tag(self._run_id, "mileage.state", end.state)
        ended = "FAILED" if end.state in ("failed", "crashed") else "KILLED" if end.state == "stopped" else "FINISHED"
        self._client.set_terminated(self._run_id, ended, int(end.ended_at * 1000))


class _Wandb:
    """Weights & Biases, offline or not as `WANDB_MODE` says."""

    def begin(self, run: Run) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", "mileage")
        config = _settings(run) | _tags(run)
        self._run = wandb.init(project=project, name=run.name, config=config, settings=wandb.Settings(silent=True))

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "global_step": step, "mileage/time": at})

    def end(self, end: End) -> None:
        self._run.summary["mileage/state"] = end.state
        self._run.finish(exit_code=int(end.state in ("failed", "crashed")), quiet=True)


class _Trackio:
    """trackio's database, in `TRACKIO_DIR` or where it always is."""

    def begin(self, run: Run) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", "mileage")
        self._run = trackio.init(project=project, name=f"{run.name}-{run.run_id}", config=_settings(run) | _tags(run))

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "mileage/time": at}, step=step)

    def end(self, end: End) -> None:
        self._run.finish()


class _TensorBoard:
    """Event files below `MILEAGE_TENSORBOARD`, or `runs/tensorboard`."""

    def begin(self, run: Run) -> None:
        folder = os.environ.get("MILEAGE_TENSORBOARD", os.path.join("runs", "tensorboard"))
        self._write, self._file = event_writer(os.path.join(folder, run.run_id))

    def log(self, at: float, step: int, values: Mapping[str, float]) -> None:
        self._write(at, step, values)
        self._file.flush()

    def end(self, end: End) -> None:
        self._file.close()


MIRRORS: dict[str, Callable[[], Mirror]] = {
    "mlflow": _Mlflow, "wandb": _Wandb, "trackio": _Trackio, "tensorboard": _TensorBoard,
}  # fmt: skip
"""By name, which is also that of the module it needs and of the extra that installs it."""


def mirror_names(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The mirrors that are `wanted`, or else those that the environment names; an error if one is not there."""
    given = os.environ.get(VARIABLE, "").split(",") if wanted is None else wanted
    names = tuple(dict.fromkeys(name.strip() for name in given if name.strip()))
    for name in names:
        if name not in MIRRORS:
            raise UnknownNameError("mirror", name, MIRRORS)
        if find_spec(name) is None:
            raise MissingExtraError(f"mirroring to {name}", name)
    return names


def mirrored(run: Run, names: Sequence[str]) -> list[Mirroring]:
    """A mirror for each of `names`, told of `run`."""
    return [Mirroring(name, MIRRORS[name](), run) for name in names]


class Mirroring:
    """A mirror at work: calls return at once, and a thread does what they ask for."""

    def __init__(self, name: str, mirror: Mirror, run: Run) -> None:
        self.name = name
        self.left_out = 0
        """Rows that did not fit, because the tracker is slower than the run."""
        self.problem: str | None = None
        """What the tracker failed with, after which it is left alone."""
        self._mirror, self._run = mirror, run
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_LENGTH)
        self._queue.put(lambda: mirror.begin(run))
        self._thread = threading.Thread(target=self._work, name=f"mileage-{name}", daemon=True)
        self._thread.start()

    def checkpoint(self, row: Checkpoint) -> None:
        """Mirror a checkpoint, with what is claimed beside it."""
        values = dict(scalars(row)) | _claims(row)
        at = self._run.started_at + row.wall_seconds
        if values:
            self._put(lambda: self._mirror.log(at, row.step, values))

    def end(self, end: End) -> None:
        """Mirror the end; wait for the thread, but not for long."""
        self._put(lambda: self._mirror.end(end))
        try:
            self._queue.put(None, timeout=CLOSE_SECONDS)
        except queue.Full:
            self.problem = self.problem or "it is too slow"
        started = time.monotonic()
        self._thread.join(max(0.0, CLOSE_SECONDS - (time.monotonic() - started)))
        if self._thread.is_alive():
            self.problem = self.problem or f"it has not finished within {CLOSE_SECONDS:g} s"
        if self.problem is not None or self.left_out:
            said = self.problem or f"{self.left_out:,} rows were left out"
            warnings.warn(f"the mirror in {self.name} is not complete: {said}; the ledger is", stacklevel=2)

    def _put(self, call: Callable[[], None]) -> None:
        if self.problem is not None:
            return
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            self.left_out += 1

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            if self.problem is None:
                try:
                    call()
                except Exception as error:  # a tracker may raise whatever it likes
                    self.problem = f"{type(error).__name__}: {str(error)[:200]}"


def _settings(run: Run) -> dict[str, str]:
    found = json.loads(run.config)
    return {str(key): str(value)[:250] for key, value in found.items() if key not in ("environment", "packages")}


def _tags(run: Run) -> dict[str, str]:
    facts = {
        "run_id": run.run_id, "panel_id": run.panel_id, "target": run.target, "seed": run.seed, "env": run.env_id,
        "price_usd_per_hour": run.price_usd_per_hour, "machine_id": run.machine_id, "framework": run.framework,
    }  # fmt: skip
    return {f"mileage.{name}": str(value) for name, value in facts.items() if value is not None}


def _claims(row: Checkpoint) -> dict[str, float]:
    found = json.loads(row.claimed) if row.claimed else {}
    numbers = found.items() if isinstance(found, dict) else ()
    return {f"claimed/{k}": float(v) for k, v in numbers if isinstance(v, int | float) and not isinstance(v, bool)}
