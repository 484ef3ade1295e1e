"""Finished runs of other trackers, read from what they left on disk: claims, and nothing that was examined.

A run is a list of records, one for each step, with the seconds since its first; `mileage.ledger.formats.foreign` makes
rows of them. TensorBoard's event files are also those of CleanRL and of the Open RL Benchmark.
"""

from __future__ import annotations

import datetime
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mileage._errors import MissingExtraError, UsageError
from mileage._records import Record
from mileage.outside.scalars import EventFile, WandbFile, number_of

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
    for at, step, name, value in EventFile(path).timed():
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
