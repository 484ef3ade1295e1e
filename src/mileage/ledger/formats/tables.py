"""Flat tables: CSV, Parquet and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.formats.flat import table_rows
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.runs import RecordedRun
from mileage.metrics import RunMetric, Shown, count, shown
from mileage.tables import Table


def csv_text(runs: Sequence[RecordedRun], table: str = "runs") -> str:
    """One line per row of `table`; no cell is taken for a formula by a spreadsheet."""
    rows = table_rows(runs, table)
    return Table.of(rows[0], [tuple(row.values()) for row in rows], left=()).csv() if rows else ""


def write_parquet(runs: Sequence[RecordedRun], path: Path, table: str = "runs") -> None:
    """Write `table` as a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("Parquet export", "parquet") from None
    try:
        pq.write_table(pa.Table.from_pylist(table_rows(runs, table)), path)
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
    if recorded.end is None:
        return "–"
    if metric.priced and not recorded.priced:
        return NO_PRICE
    value = recorded.metric(metric.name)
    if value is None:
        return metric.absent if recorded.target is not None else "–"
    return metric.spell(value) if metric.spell is count else f"{value:.4g}"
