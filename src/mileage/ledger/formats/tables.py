"""Flat tables: CSV, Parquet and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.formats.flat import table_rows
from mileage.ledger.prices import NO_PRICE
from mileage.ledger.runs import RecordedRun
from mileage.ledger.text import markdown_cell, spreadsheet_cell
from mileage.metrics import RunMetric, Shown, count, shown


def csv_text(runs: Sequence[RecordedRun], table: str = "runs") -> str:
    """Return one line per row of `table`; no cell is taken for a formula by a spreadsheet."""
    rows = table_rows(runs, table)
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: spreadsheet_cell(v) if isinstance(v, str) else v for k, v in row.items()})
    return out.getvalue()


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


def markdown_text(runs: Sequence[RecordedRun]) -> str:
    """A table with one line per run."""
    metrics = shown(Shown.MARKDOWN)
    columns = ["run", "name", "env", "algorithm", "seed", "state", *(_column(metric) for metric in metrics)]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for recorded in runs:
        run = recorded.run
        facts = [run.run_id, run.name, run.env_id, run.algorithm, run.seed, recorded.state]
        cells = [*("–" if fact is None else str(fact) for fact in facts), *(_cell(recorded, each) for each in metrics)]
        lines.append("| " + " | ".join(markdown_cell(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


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
