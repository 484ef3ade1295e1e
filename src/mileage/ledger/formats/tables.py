"""Flat tables: CSV, Parquet and Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.formats.flat import columns, stream_rows
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream
from mileage.metrics import RunMetric, Shown, count, shown
from mileage.tables import Table, csv_line

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
