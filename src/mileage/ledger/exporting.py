"""Runs as JSON, flat rows, tables and MLPerf logs.

The lines carry what the common rules of MLPerf Training ask for, but for the name of a benchmark: a run is not a
submission, and does not pretend to be one.
"""

from __future__ import annotations

import itertools
import json
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

from mileage.errors import LedgerError, MissingExtraError, UsageError
from mileage.ledger.admission import checked
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.queries import RunStream
from mileage.ledger.rows import FORMAT_VERSION, ROW_TYPES, Checkpoint, End, Row, check_run, check_types, field_types
from mileage.ledger.runs import RecordedRun
from mileage.metrics import METRICS, RunMetric, Shown, count, shown, startup_seconds
from mileage.records import Record, strict_json
from mileage.tables import Table, csv_line

# --- Runs as flat rows: one per run, checkpoint, phase or episode ---
JSON_FIELDS = ("config", "machine", "panel", "price", "reset_reasons", "claimed", "gpus", "summary")
TABLES: dict[str, str] = {
    "runs": "run",
    "checkpoints": "checkpoint",
    "phases": "phase",
    "episodes": "episode",
    "notes": "note",
}
"""The tables, and the kind of row that each has."""
_SAVED = {"policy_path": "path", "policy_sha256": "sha256", "policy_step": "step"}
"""Of the last checkpoint that was written to a file."""
_JUDGED = {"policy_success_rate": "success_rate", "policy_mean_return": "mean_return"}
"""Of the evaluation of that very policy: the last one at the same step."""


def stream_rows(runs: Iterable[RunStream], table: str) -> Iterator[Record]:
    """One flat row per run, checkpoint, phase or episode; each carries its run's id and name."""
    kind = table_kind(table)
    for stream in runs:
        recorded = stream.recorded
        if kind == "run":
            yield run_row(recorded) | policy_row(stream.rows("checkpoint"))
            continue
        for row in stream.rows(kind):
            yield {"run_id": recorded.run_id, "name": recorded.run.name, **row._asdict()}


def table_kind(table: str) -> str:
    """The kind of row that `table` has."""
    if table not in TABLES:
        raise UsageError(f"table {table!r} is not known: use one of {', '.join(TABLES)}")
    return TABLES[table]


def columns(table: str) -> dict[str, type]:
    """The names of a table's columns and what they hold: `str`, `int`, `float` or `bool`."""
    kind = table_kind(table)
    if kind != "run":
        return {"run_id": str, "name": str} | _plain_types(kind)
    derived = {metric.name: float for metric in METRICS if metric.name not in End._fields}
    policy = {ours: _plain_types("checkpoint")[theirs] for ours, theirs in (_SAVED | _JUDGED).items()}
    return {**_plain_types("run"), **_plain_types("end"), **derived, "voided": bool, **policy}


def _plain_types(kind: str) -> dict[str, type]:
    found = {}
    for name, hint in typing.get_type_hints(ROW_TYPES[kind]).items():
        allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[name] = next(each for each in allowed if each is not types.NoneType)
    return found


def run_row(recorded: RecordedRun) -> Record:
    """A run, its end and its metrics as one flat row; of a run that goes on, what it has used so far."""
    end = recorded.end._asdict() if recorded.end else dict.fromkeys(End._fields)
    known = recorded.end is not None or recorded.wall_seconds > 0
    derived = {
        metric.name: recorded.metric(metric.name) if known else None
        for metric in METRICS
        if end.get(metric.name) is None
    }
    return {
        **recorded.run._asdict(),
        **end,
        **derived,
        "run_id": recorded.run_id,
        "state": str(recorded.state),
        "voided": recorded.voided,
    }


def policy_row(checkpoints: Iterable[Checkpoint]) -> Record:
    """Where a run's policy is, the hash of the file, and what that policy scored on the panel."""
    saved: Checkpoint | None = None
    judged: Checkpoint | None = None
    for row in checkpoints:
        saved = row if row.path is not None else saved
        judged = row if row.mean_return is not None or row.success_rate is not None else judged
    same = judged if saved is not None and judged is not None and judged.step == saved.step else None
    return {name: None if saved is None else getattr(saved, field) for name, field in _SAVED.items()} | {
        name: None if same is None else getattr(same, field) for name, field in _JUDGED.items()
    }


def unpacked(row: Record) -> Record:
    """`row` with its JSON texts as values."""
    texts = {name: json.loads(row[name]) for name in JSON_FIELDS if isinstance(row.get(name), str)}
    return row | texts


# --- JSON: everything, and back again ---
FORMAT = "mileage-ledger"
_PARTS = {f"{kind}s": kind for kind in ("checkpoint", "phase", "episode", "profile", "sample", "kpi", "note")}


def dumps(runs: Sequence[RecordedRun]) -> str:
    """The runs as one JSON document."""
    return "".join(chunks(map(RunStream.of, runs)))


def chunks(runs: Iterable[RunStream]) -> Iterator[str]:
    """The same in parts, a row at a time."""
    yield f'{{"format": "{FORMAT}", "format_version": {FORMAT_VERSION}, "runs": ['
    for i, stream in enumerate(runs):
        recorded = stream.recorded
        end = unpacked(recorded.end._asdict()) if recorded.end else None
        head = {"state": str(recorded.state), "run": unpacked(recorded.run._asdict()), "end": end}
        yield (",\n" if i else "\n") + strict_json(head)[:-1]
        for part, kind in _PARTS.items():
            yield f',\n "{part}": ['
            for j, row in enumerate(stream.rows(kind)):
                yield (",\n  " if j else "\n  ") + strict_json(unpacked(row._asdict()))
            yield "]"
        yield "}"
    yield "]}"


def as_dict(recorded: RecordedRun) -> Record:
    """One run as plain JSON values."""
    end = unpacked(recorded.end._asdict()) if recorded.end else None
    found: Record = {"state": str(recorded.state), "run": unpacked(recorded.run._asdict()), "end": end}
    for part in _PARTS:
        rows = getattr(recorded, "phase_rows" if part == "phases" else part)
        found[part] = [unpacked(row._asdict()) for row in rows]
    return found


def is_ours(document: object) -> bool:
    """Whether a parsed JSON document was written by `dumps`."""
    return isinstance(document, dict) and document.get("format") == FORMAT


def loads(document: Record) -> list[Row]:
    """The rows of a document written by `dumps`; delivering them twice changes nothing."""
    version = document.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        known = f"this mileage reads up to {FORMAT_VERSION}"
        raise UsageError(f"the file has format version {version}, {known}: upgrade it")
    rows: list[Row] = []
    try:
        for entry in document["runs"]:
            run = check_run(_row("run", entry["run"]))
            found: list[Row] = [run]
            for part, kind in _PARTS.items():
                found += [_row(kind, values) for values in entry.get(part, ())]
            if entry.get("end"):
                found.append(_row("end", entry["end"]))
            if any(row.run_id != run.run_id for row in found):
                raise UsageError("the file has rows that belong to another run than the one they are under")
            rows += checked(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the file is not a ledger export: {type(error).__name__} {error}") from None
    return rows


def _row(kind: str, values: Record) -> Any:
    row_type = ROW_TYPES[kind]
    packed = {
        name: strict_json(value, sort_keys=True, separators=(",", ":"))
        if name in JSON_FIELDS and value is not None and not isinstance(value, str)
        else value
        for name, value in values.items()
        if name in row_type._fields
    }
    allowed = field_types(kind)
    missing = [name for name in row_type._fields if name not in packed and NoneType not in allowed[name]]
    if missing:
        raise UsageError(f"a {kind} row of the file has no {missing[0]!r}")
    # What an earlier version did not know is absent.
    return check_types(row_type(**(dict.fromkeys(row_type._fields) | packed)))


# --- Flat tables: CSV, Parquet and Markdown ---
_ROWS_OF_A_GROUP = 10_000


def csv_chunks(runs: Iterable[RunStream], table: str = "runs") -> Iterator[str]:
    """One line per row of `table`, a line at a time; no cell is taken for a formula by a spreadsheet."""
    names = list(columns(table))
    yield csv_line(names)
    for row in stream_rows(runs, table):
        yield csv_line([row[name] for name in names])


def write_parquet_streams(runs: Iterable[RunStream], path: Path, table: str = "runs") -> None:
    """Write `table` as Parquet, some thousand rows at a time; a column has its type with or without values."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("Parquet export", "parquet") from None
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    layout = pa.schema([(name, kinds[kind]) for name, kind in columns(table).items()])
    try:
        with pq.ParquetWriter(path, layout) as writer:
            rows = stream_rows(runs, table)
            while batch := list(itertools.islice(rows, _ROWS_OF_A_GROUP)):
                writer.write_table(pa.Table.from_pylist(batch, layout))
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from None


_FACTS = ("run", "name", "env", "algorithm", "seed", "state")


def markdown_text(runs: Sequence[RecordedRun]) -> str:
    """A table with one line per run."""
    metrics = shown(Shown.MARKDOWN)
    rows = []
    for recorded in runs:
        run = recorded.run
        seed = "–" if run.seed is None else str(run.seed)
        facts = (run.run_id, run.name, run.env_id, run.algorithm, seed, str(recorded.state))
        rows.append((*facts, *(_cell(recorded, metric) for metric in metrics)))
    words = [fact for fact in _FACTS if fact != "seed"]
    return Table.of((*_FACTS, *(_column(metric) for metric in metrics)), rows, left=words).markdown() + "\n"


def _column(metric: RunMetric) -> str:
    """A heading with the unit of its numbers."""
    return f"{metric.heading} {metric.unit}" if metric.unit in ("s", "$", "GB") else metric.heading


def _cell(recorded: RecordedRun, metric: RunMetric) -> str:
    if metric.priced and not recorded.priced:
        return NO_PRICE
    value = recorded.metric(metric.name)
    if value is None:
        return metric.absent if recorded.target is not None else "–"
    return metric.spell(value) if metric.spell is count else f"{value:.4g}"


# --- MLLOG lines, so that MLPerf tooling can read a run ---
NAMESPACE = "mileage"


def lines(recorded: RecordedRun) -> list[str]:
    """The lines of one run in order of time."""
    return list(stream_lines(RunStream.of(recorded)))


def stream_lines(stream: RunStream) -> Iterator[str]:
    """The same, one at a time."""
    recorded = stream.recorded
    run, end = recorded.run, recorded.end
    init_seconds = startup_seconds(recorded.totals) if end else 0.0
    for key, value in (
        ("submission_org", "mileage"),
        ("submission_platform", run.instance or run.host),
        ("submission_division", "open"),
        ("submission_status", "research"),
        ("cache_clear", False),
        ("mileage_env", run.env_id),
    ):
        yield _line(recorded, 0.0, "POINT_IN_TIME", key, value)
    yield _line(recorded, 0.0, "INTERVAL_START", "init_start", None)
    for key, value in _settings(recorded).items():
        yield _line(recorded, 0.0, "POINT_IN_TIME", key, value)
    yield _line(recorded, init_seconds, "INTERVAL_END", "init_stop", None)
    yield _line(recorded, init_seconds, "INTERVAL_START", "run_start", None)
    yield from _progress(stream, init_seconds)
    if end is not None:
        status = "success" if end.wall_to_target is not None else "aborted"
        meta = {"status": status, "state": end.state, "samples_count": end.env_steps}
        yield _line(recorded, end.wall_seconds, "INTERVAL_END", "run_stop", None, meta)
        for name in (metric.name for metric in shown(Shown.MLLOG)):
            yield _line(recorded, end.wall_seconds, "POINT_IN_TIME", f"mileage_{name}", recorded.metric(name))


def _settings(recorded: RecordedRun) -> Record:
    run = recorded.run
    panel = json.loads(run.panel) if run.panel else {}
    return {
        "seed": run.seed,
        "global_batch_size": run.batch_size,
        "train_samples": run.step_budget or (recorded.end.env_steps if recorded.end else 0),
        "eval_samples": len(panel.get("seeds", ())),
        "target_accuracy": float(run.target.split(">=")[1]) if run.target else None,
        "mileage_run_id": run.run_id,
        "mileage_panel_id": run.panel_id,
        "mileage_price_usd_per_hour": run.price_usd_per_hour,
    }


def _progress(stream: RunStream, init_seconds: float) -> Iterator[str]:
    recorded = stream.recorded
    before: Checkpoint | None = None
    for checkpoint in stream.rows("checkpoint"):
        started = max(before.wall_seconds if before else init_seconds, init_seconds)
        stopped = max(checkpoint.wall_seconds, started)
        steps_before = before.step if before else 0
        meta = {"samples_count": steps_before, "first_epoch_num": steps_before}
        done = {"samples_count": checkpoint.step, "first_epoch_num": checkpoint.step}
        evaluated = checkpoint.eval_seconds - (before.eval_seconds if before else 0.0)
        eval_start = max(stopped - evaluated, started)
        yield _line(recorded, started, "INTERVAL_START", "block_start", None, meta)
        yield _line(recorded, eval_start, "INTERVAL_END", "block_stop", None, done)
        value = checkpoint.target_value
        value = checkpoint.mean_return if value is None else value
        if value is not None:
            yield _line(recorded, eval_start, "INTERVAL_START", "eval_start", None, done)
            yield _line(recorded, stopped, "POINT_IN_TIME", "eval_accuracy", value, done)
            yield _line(recorded, stopped, "INTERVAL_END", "eval_stop", None, done)
        before = checkpoint


def _line(
    recorded: RecordedRun, wall_seconds: float, event: str, key: str, value: object, metadata: Record | None = None
) -> str:
    record = {
        "namespace": NAMESPACE,
        "time_ms": int((recorded.run.started_at + wall_seconds) * 1000),
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": metadata or {},
    }
    return ":::MLLOG " + strict_json(record)
