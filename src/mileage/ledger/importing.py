"""Runs of other tools taken into the ledger as claims.

A file is one run, a record in it is one checkpoint. Columns are recognised by the names that common tools write, or
mapped explicitly. All original figures are kept as "claimed". Only figures of an evaluation become success or return:
what a tool logs about its training episodes stays claimed. Without the episodes behind them they reach no target: a run
whose file says so ends as "claimed".

A run is a list of records, one for each step, with the seconds since its first; `mileage.ledger.importing` makes
rows of them. TensorBoard's event files are also those of CleanRL and of the Open RL Benchmark.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mileage.errors import MissingExtraError, UsageError
from mileage.ledger import exporting
from mileage.ledger.panels import Aggregate, Panel
from mileage.ledger.prices import freeze_price
from mileage.ledger.rows import Checkpoint, EndState, Row, Run, check_json, check_run
from mileage.ledger.runs import new_run
from mileage.ledger.scalars import EventFileSource, WandbFile, number_of
from mileage.ledger.summary import Ending, Progress, cost_usd, end_row
from mileage.ledger.targets import Target
from mileage.metrics import METRICS, PEAKS
from mileage.records import ReadRecord, Record
from mileage.tables import from_spreadsheet_cell

ALIASES: dict[str, tuple[str, ...]] = {
    "step": (
        "step", "env_steps", "steps", "global_step", "time/total_timesteps", "timesteps", "num_timesteps",
        "num_env_steps_sampled_lifetime", "timesteps_total", "Step", "num_steps", "frame",
    ),
    "wall_minutes": ("wall_minutes", "total_minutes"),
    "train_minutes": ("train_minutes",),
    "eval_minutes": ("eval_minutes",),
    "path": ("path", "checkpoint_path"),
    "billable_cost_usd": ("billable_cost_usd", "cost_usd", "total_cost_usd"),
} | {
    metric.name: (metric.name, *metric.aliases)
    for metric in METRICS
    if metric.name in Checkpoint._fields and not metric.priced
}  # fmt: skip
"""Our name for a figure and the column names it is recognised by, best first."""


@dataclass(frozen=True)
class ImportSettings:
    """What the file itself does not say."""

    name: str
    framework: str = "unknown"
    algorithm: str = ""
    env_id: str = ""
    seed: int | None = None
    panel: Panel | None = None
    target: Target | None = None
    price: float | str | None = None
    instance: str | None = None
    state: EndState | None = None
    step_rule: str = "env_steps"
    accounting_window: str = "as imported"
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a figure → the file's column."""


def read_rows(path: Path, settings: ImportSettings) -> list[Row]:
    """The rows of the run (or of the exported ledger) in `path`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    if path.suffix.lower() == ".csv":
        records = _csv_records(text, path)
    else:
        document = _json_document(text, path)
        if exporting.is_ours(document):
            return exporting.loads(document)
        records = _json_records(document, path)
    return run_rows(records, settings)


def _csv_records(text: str, path: Path) -> list[Record]:
    lines = text.splitlines(keepends=True)
    while lines and lines[0].startswith("#"):  # Monitor files begin with a comment
        lines.pop(0)
    try:
        records = [
            {name: from_spreadsheet_cell(value) for name, value in row.items() if name and isinstance(value, str)}
            for row in csv.DictReader(lines)
        ]
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {error}") from None
    if not records:
        raise UsageError(f"{path} has no rows: nothing was imported")
    return records


def _json_document(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as whole:
        try:  # JSON lines, as many loggers write
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except (json.JSONDecodeError, RecursionError):
            raise UsageError(f"{path} is not JSON: {whole}") from None


def _json_records(document: Any, path: Path) -> list[Record]:
    if isinstance(document, dict):
        lists = [v for v in document.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        document = lists[0] if len(lists) == 1 else [document]
    if not isinstance(document, list) or not document or not all(isinstance(entry, dict) for entry in document):
        raise UsageError(f"{path} must hold one object or a list of objects, one per checkpoint")
    return document


def run_rows(records: Sequence[ReadRecord], settings: ImportSettings) -> list[Row]:
    """The run, checkpoint and end rows of one foreign run."""
    now = time.time()
    run = _run(_with_price(records, settings), now)
    checkpoints = [_checkpoint(run, i + 1, record, settings) for i, record in enumerate(records)]
    checkpoints.sort(key=lambda checkpoint: (checkpoint.wall_seconds, checkpoint.step))
    checkpoints = [checkpoint._replace(seq=i + 1) for i, checkpoint in enumerate(checkpoints)]
    progress = Progress.of(checkpoints)
    last = checkpoints[-1]
    run = run._replace(started_at=now - last.wall_seconds)
    met = settings.state is EndState.REACHED or any(_claims_target(row, settings.target) for row in checkpoints)
    missed = EndState.FINISHED if settings.target is None else EndState.NOT_REACHED
    state = EndState.CLAIMED if met else settings.state or missed
    ending = Ending(state, "imported", now, last.wall_seconds, phases={"eval": last.eval_seconds})
    return [check_run(run), *checkpoints, end_row(run, progress, ending)]


def _claims_target(row: Checkpoint, target: Target | None) -> bool:
    """Whether the file says that a checkpoint met the target; without its episodes, that is a claim and no more."""
    return target is not None and row.target_value is not None and row.target_value >= target.threshold


def _with_price(records: Sequence[ReadRecord], settings: ImportSettings) -> ImportSettings:
    """Where no price is given, the one that the file's own cost comes from: its last cost over its last time."""
    if settings.price is not None or settings.instance is not None or not records:
        return settings
    figure = _Figures(records[-1], settings.columns)
    cost, wall = figure.number("billable_cost_usd"), figure.wall_seconds()
    return settings if not cost or not wall or cost < 0 else replace(settings, price=cost / (wall / 3600.0))


def _run(settings: ImportSettings, now: float) -> Run:
    price = freeze_price(settings.price, settings.instance, now=now)
    panel = settings.panel
    return new_run(
        settings.name, now, panel, settings.target, price, started_at=now, launched_by="import",
        process_token="import", framework=settings.framework, algorithm=settings.algorithm,
        env_id=settings.env_id or (panel.env_id if panel else ""), config="{}", git_revision=None,
        command="ledger import", seed=settings.seed, eval_every_steps=None, batch_size=None, step_budget=None,
        step_rule=settings.step_rule, accounting_window=settings.accounting_window, machine="{}",
        machine_id="as imported", instances=1, parent_run_id=None, mileage_version="imported",
    )  # fmt: skip


def _checkpoint(run: Run, seq: int, record: ReadRecord, settings: ImportSettings) -> Checkpoint:
    figure = _Figures(record, settings.columns)
    train, evaluated, wall = figure.seconds("train"), figure.seconds("eval"), figure.wall_seconds()
    if wall is None:
        options = "--column wall_seconds=NAME (or train_seconds, train_minutes)"
        raise UsageError(f"the file has no time column: map one with {options}")
    evaluated = evaluated if evaluated is not None else max(wall - train, 0.0) if train is not None else 0.0
    success, mean_return = figure.number("success_rate"), figure.number("mean_return")
    step = figure.number("step")
    if step is None:
        # A row that says what was reached and what it cost is worth having, whatever it took.
        if figure.has("step") or (success is None and mean_return is None):
            raise UsageError("the file has no column with env steps: map one with --column step=NAME")
        step = 0.0
    if step < 0 or wall < 0 or evaluated < 0 or evaluated > wall or step > 2**62:
        raise UsageError(f"record {seq} of the file has a negative or impossible step count or time")
    value = success if settings.target and settings.target.aggregate is Aggregate.SUCCESS_RATE else mean_return
    path = figure.value("path")
    return Checkpoint(
        run_id=run.run_id, seq=seq, step=int(step), wall_seconds=wall, train_seconds=wall - evaluated,
        eval_seconds=evaluated, cost_usd=cost_usd(wall, run), success_rate=success, mean_return=mean_return,
        target_value=value if settings.target else None, target_met=None, reset_reasons=None,
        path=None if path is None else str(path)[:4000], sha256=None,
        claimed=check_json("a record of the file", dict(record)), **{name: figure.number(name) for name in PEAKS},
    )  # fmt: skip


class _Figures:
    """One record of a foreign file, read by our names."""

    def __init__(self, record: ReadRecord, columns: Mapping[str, str]) -> None:
        self.record = record
        self.columns = columns

    def value(self, name: str) -> Any:
        if name in self.columns:
            return self.record.get(self.columns[name])
        return next((self.record[alias] for alias in ALIASES[name] if self.record.get(alias) not in (None, "")), None)

    def has(self, name: str) -> bool:
        """Whether the record has a column for the figure, with or without a value."""
        names = (self.columns[name],) if name in self.columns else ALIASES[name]
        return any(each in self.record for each in names)

    def number(self, name: str) -> float | None:
        value = self.value(name)
        if value is None or value == "":
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise UsageError(f"{name} of the file is {str(value)[:80]!r}, which is not a number") from None
        return number if math.isfinite(number) else None

    def wall_seconds(self) -> float | None:
        """The record's wall-clock, as it says or as training and evaluation add up to."""
        wall, train = self.seconds("wall"), self.seconds("train")
        return wall if wall is not None or train is None else train + (self.seconds("eval") or 0.0)

    def seconds(self, name: str) -> float | None:
        seconds = self.number(f"{name}_seconds")
        if seconds is not None:
            return seconds
        minutes = self.number(f"{name}_minutes")
        return None if minutes is None else minutes * 60.0


# --- Finished runs of other trackers, read from what they left on disk: claims, and nothing that was examined ---
_MOST_FILES = 10_000
# How CleanRL calls what it logs of its training episodes: it stays a claim under its own name.
_PARQUET = ("run_id", "attribute_path", "step", "timestamp", "float_value")


class Figure(NamedTuple):
    """One figure of one run at one step."""

    run: str
    name: str
    value: float
    step: int
    at: float
    """Seconds since the epoch."""


def is_tracker(path: Path) -> bool:
    """Whether `path` is something that this module reads."""
    return path.is_dir() or _reader(path) is not None


def tracker_runs(path: Path) -> dict[str, list[Record]]:
    """The runs below `path` by name, each a list of records in the order of their steps."""
    found: dict[str, list[Figure]] = {}
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    if len(files) > _MOST_FILES:
        raise UsageError(f"{path} has more than {_MOST_FILES:,} files: name the directory of the runs themselves")
    for file in files:
        reader = _reader(file)
        if reader is None:
            continue
        name = str(file.parent.relative_to(path)) if path.is_dir() else file.parent.name
        for figure in reader(file, path.name if name == "." else name):
            found.setdefault(figure.run, []).append(figure)
    if not any(found.values()):
        raise UsageError(f"{path} holds no figures of a tracker that is known: nothing was imported")
    return {run: _records(figures) for run, figures in found.items()}


def _records(figures: Iterable[Figure]) -> list[Record]:
    """A record for every step, with the time at which its last figure came."""
    by_step: dict[int, Record] = {}
    kept = list(figures)
    first = min(figure.at for figure in kept)
    for figure in kept:
        record = by_step.setdefault(figure.step, {"step": figure.step, "wall_seconds": 0.0})
        record["wall_seconds"] = max(record["wall_seconds"], figure.at - first)
        if figure.name not in ("step", "wall_seconds"):
            record[figure.name] = figure.value
    ordered = [by_step[step] for step in sorted(by_step)]
    latest = 0.0
    for record in ordered:  # clocks may have been set meanwhile, and two files may overlap
        latest = record["wall_seconds"] = max(latest, record["wall_seconds"])
    return ordered


Reader = Callable[[Path, str], Iterator[Figure]]


def _reader(path: Path) -> Reader | None:
    """Who reads a file, by its name; MissingExtraError if the library for it is not installed."""
    if ".tfevents." in path.name:
        if find_spec("tensorboard") is None:
            raise MissingExtraError("reading TensorBoard's event files", "tensorboard")
        return _events
    if path.suffix == ".wandb":
        return _wandb
    if path.suffix == ".db":
        return _trackio
    if path.suffix == ".parquet":
        if find_spec("pyarrow") is None:
            raise MissingExtraError("Neptune's export", "parquet")
        return _neptune
    return None


def _events(path: Path, run: str) -> Iterator[Figure]:
    for at, step, name, value in EventFileSource(path).timed():
        yield Figure(run, name, value, step, at)


def _wandb(path: Path, run: str) -> Iterator[Figure]:
    folder = path.parent.name if path.parent.name.startswith(("offline-run-", "run-")) else run
    for row in WandbFile(path).rows():
        at, step = number_of(row.get("_timestamp")), number_of(row.get("global_step", row.get("_step")))
        for name, value in row.items():
            number = number_of(value)
            if number is not None and not name.startswith("_") and name != "global_step":
                yield Figure(folder, name, number, _whole(step), at or 0.0)


def _trackio(path: Path, run: str) -> Iterator[Figure]:
    """Of trackio's database of one project; another one has no such table and no figures."""
    query = "SELECT run_name, step, timestamp, metrics FROM metrics ORDER BY id"
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for name, step, when, text in database.execute(query):
            with suppress(ValueError, RecursionError):
                row = json.loads(text)
                at = datetime.datetime.fromisoformat(str(when)).timestamp()
                for key, value in row.items() if isinstance(row, dict) else ():
                    if (number := number_of(value)) is not None:
                        yield Figure(f"{path.stem}/{name}", str(key), number, _whole(number_of(step)), at)


def _neptune(path: Path, run: str) -> Iterator[Figure]:
    """Of the series in Neptune's Parquet export: a row for each value, its name in `attribute_path`."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException):
        raise UsageError(f"{path} is not a Parquet file") from None
    if not set(_PARQUET) <= set(file.schema_arrow.names):
        raise UsageError(f"{path} is not Neptune's export: it needs the columns {', '.join(_PARQUET)}")
    for batch in file.iter_batches(columns=list(_PARQUET)):
        for row in batch.to_pylist():
            value, step = number_of(row["float_value"]), number_of(_plain(row["step"]))
            if value is not None and step is not None and isinstance(row["timestamp"], datetime.datetime):
                yield Figure(
                    str(row["run_id"]), str(row["attribute_path"]), value, _whole(step), row["timestamp"].timestamp()
                )


def _plain(value: Any) -> Any:
    """A decimal as a float, anything else as it is."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


def _whole(step: float | None) -> int:
    return int(step) if step is not None and math.isfinite(step) and 0 <= step < 2**62 else 0
