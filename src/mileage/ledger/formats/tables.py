"""Flat tables: CSV, Parquet and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mileage._errors import LedgerError, MissingExtraError
from mileage.ledger.formats.bundle import Bundle, table_rows
from mileage.tables import Cell, Table


def csv_text(bundles: Sequence[Bundle], table: str = "runs") -> str:
    """One line per row of `table`; no cell is taken for a formula by a spreadsheet."""
    rows = table_rows(bundles, table)
    return Table.of(rows[0], [tuple(row.values()) for row in rows], left=()).csv() if rows else ""


def write_parquet(bundles: Sequence[Bundle], path: Path, table: str = "runs") -> None:
    """Write `table` as a Parquet file."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtraError("Parquet export", "parquet") from None
    try:
        pq.write_table(pa.Table.from_pylist(table_rows(bundles, table)), path)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error}") from None


_COLUMNS = (
    "run", "name", "env", "algorithm", "seed", "state", "steps", "wall s", "eval s", "steps/s", "success", "return",
    "to target s", "cost $", "to target $", "peak GB",
)  # fmt: skip
_WORDS = ("run", "name", "env", "algorithm", "state")


def markdown_text(bundles: Sequence[Bundle]) -> str:
    """A table with one line per run."""
    rows = [[_spelled(cell) for cell in _run_cells(bundle)] for bundle in bundles]
    return Table.of(_COLUMNS, rows, left=_WORDS).markdown() + "\n"


def _run_cells(bundle: Bundle) -> list[Cell]:
    run, end = bundle.run, bundle.end
    first: list[Cell] = [run.run_id, run.name, run.env_id, run.algorithm, run.seed, bundle.state]
    if end is None:
        return first + [None] * (len(_COLUMNS) - len(first))
    priced = run.price_usd_per_hour > 0
    return [
        *first,
        f"{end.env_steps:,}",
        end.wall_seconds,
        end.eval_seconds,
        f"{end.env_steps / end.train_seconds:,.0f}" if end.train_seconds > 0 else None,
        end.success_rate,
        end.mean_return,
        end.wall_to_target if end.wall_to_target is not None else "not reached" if run.target else None,
        end.cost_usd if priced else "no price set",
        end.cost_to_target if priced else None,
        end.peak_rss_gb,
    ]


def _spelled(value: Cell) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
