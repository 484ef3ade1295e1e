"""Runs of other tools from their JSON or CSV files.

A file is one run, a record in it is one checkpoint. Columns are recognised by the names that common tools write, or
mapped explicitly. All original figures are kept as "claimed". Only figures of an evaluation become success or return:
what a tool logs about its training episodes stays claimed. Without the episodes behind them they reach no target: a run
whose file says so ends as "claimed".
"""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mileage._errors import UsageError
from mileage._records import ReadRecord, Record
from mileage.ledger.formats import json_format
from mileage.ledger.panels import Aggregate, Panel
from mileage.ledger.prices import freeze_price
from mileage.ledger.rows import Checkpoint, EndState, Row, Run, check_json, check_run
from mileage.ledger.runs import new_run
from mileage.ledger.summary import Ending, Progress, cost_usd, end_row
from mileage.ledger.targets import Target
from mileage.metrics import METRICS, PEAKS
from mileage.text import from_spreadsheet_cell

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
        if json_format.is_ours(document):
            return json_format.loads(document)
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
