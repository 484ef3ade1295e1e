"""What `mileage ledger` prints: tables of runs, of one run and of a comparison, safe whatever a name contains."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from mileage.ledger.rows import Checkpoint
from mileage.ledger.runs import RecordedRun
from mileage.metrics import RunMetric, Shown, dollars, duration, shown
from mileage.report.cost import CostReport
from mileage.report.seeds import curve_lines, phase_lines, progress_line
from mileage.tables import Column, Table, plain

if TYPE_CHECKING:  # comparing loads the statistics, listing does not
    from mileage.report.compare import Comparison

PIPE_WIDTH = 240
NARROW_WIDTH = 110
"""A terminal below this width gets the most important columns only."""
_FACTS = ("run", "name", "env", "by", "seed", "state")
_LONGEST = 80
_LONGEST_LINE = 1_000
"""What we say ourselves of a run is as long as it takes; names in it are not."""
_LAID_OUT = 500
"""A list of more runs than this is written line by line: fitting words into a terminal takes a millisecond a run."""


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:  # a file or a pipe is as wide as it needs to be
        console.width = PIPE_WIDTH
    return console


def _shown(value: object, longest: int = _LONGEST) -> str:
    """Text of a user for the terminal: no control characters, no markup."""
    return escape(plain(str(value), longest))


def print_list(records: Sequence[RecordedRun]) -> None:
    """Print one line per run."""
    if not records:
        print("no runs")
        return
    console = _console()
    wide = console.width >= NARROW_WIDTH
    metrics = [metric for metric in shown(Shown.LIST) if wide or Shown.WIDE not in metric.shown]
    metrics.sort(key=lambda metric: metric.unit not in ("env steps", "s"))  # how far and how long, then what came of it
    named = wide or any(record.run.name != f"{record.algorithm}-{record.env}" for record in records)
    most = "cost_usd" if any(record.priced for record in records) else "mean_return"
    metrics = metrics if wide else [metric for metric in metrics if metric.name == most]
    headings = (*_FACTS[: 2 if named else 1], *_FACTS[2:], *(metric.heading for metric in metrics))
    rows = []
    for record in records:
        run = record.run
        name = [plain(run.name, _LONGEST)] if named else []
        seed = "–" if run.seed is None else str(run.seed)
        facts = (run.run_id, *name, plain(run.env_id, _LONGEST), plain(run.algorithm, _LONGEST), seed, _state(record))
        rows.append((*facts, *(_cell(record, metric) for metric in metrics)))
    words = [heading for heading in _FACTS if heading != "seed"]
    columns = [Column(each, right=each not in words, wrap=each in ("name", "state")) for each in headings]
    table = Table.of(columns, rows)
    if console.is_terminal and len(rows) <= _LAID_OUT:
        console.print(table.terminal(boxed=False))
    else:
        print(table.text())


def _state(record: RecordedRun) -> str:
    """How a run ended, whether it goes on from another and whether it counts."""
    resumed = "" if record.before is None else ", resumed"
    return record.state.replace("_", " ") + resumed + (", void" if record.voided else "")


def _cell(record: RecordedRun, metric: RunMetric) -> str:
    if record.end is None and record.wall_seconds == 0.0:
        return ""
    if metric.priced and not record.priced:
        return "–"
    return metric.spelled(record.metric(metric.name), absent="–")


def print_run(recorded: RecordedRun, checkpoints: int) -> None:
    """Print what is known about one run, with so many of its checkpoints."""
    console, run, rows = _console(), recorded.run, recorded.checkpoints
    console.print(f"[bold]{run.run_id}[/bold]  {_shown(run.name)}")
    facts = {
        "trained": " ".join(filter(None, (run.framework, run.algorithm, "on", run.env_id or "no named environment")))
        + recorded.seed_words,
        "target": run.target or "none",
        "panel": (run.panel_id or "none")[:8],
        "revision": (run.git_revision or "none")[:8],
        "command": run.command,
        "host": f"{run.host}, launched by {run.launched_by}",
    }
    if run.parent_run_id:
        facts["resumes"] = str(recorded.before or run.parent_run_id)
    for name, value in facts.items():
        console.print(f"{name}: {_shown(value)}")
    for note in recorded.notes:
        what = note.kind + (f" of {note.field}" if note.field else "")
        day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(note.noted_at))
        console.print(
            f"[bold]{_shown(what)}[/bold]: {_shown(note.text) or 'no reason given'} ({_shown(note.noted_by)}, {day})"
        )
    for line in curve_lines(recorded):
        console.print(_shown(line))
    if recorded.end is None:
        console.print(f"state: running, {_shown(progress_line(recorded))}")
        for line in phase_lines(recorded):
            console.print(escape(line))
    else:
        report = CostReport(recorded)
        for line in (*report.headline(), *report.details(), *(f"warning: {text}" for text in report.warnings())):
            console.print(_shown(line, _LONGEST_LINE))
        for line in phase_lines(recorded):
            console.print(escape(line))
        phases = Table.of(("phase", "seconds", "share", "entries"), report.phase_table(), left=("phase",))
        console.print(phases.terminal(boxed=False))
    claims = [row for row in rows if row.claimed is not None]
    if claims:
        figures = ", ".join(f"{name} {value}" for name, value in json.loads(claims[-1].claimed or "{}").items())
        console.print(_shown(f"claimed at step {claims[-1].step:,}: {figures}", _LONGEST_LINE))
    if rows and checkpoints:
        console.print(f"{len(rows):,} checkpoints")
        wide = console.width >= NARROW_WIDTH
        table = _checkpoint_table(_spread(rows, checkpoints), priced=run.price_usd_per_hour > 0, wide=wide)
        console.print(table.terminal(boxed=False))


def _checkpoint_table(rows: Sequence[Checkpoint], *, priced: bool, wide: bool) -> Table:
    metrics = shown(Shown.CHECKPOINT) if wide else []
    more = (*(metric.heading for metric in metrics), "resets") if wide else ()
    header = ("step", "wall", "eval", "success", "return", "met", "cost", *more, "path")
    cells = [
        (
            f"{row.step:,}",
            duration(row.wall_seconds),
            duration(row.eval_seconds),
            "–" if row.success_rate is None else f"{row.success_rate:.2f}",
            "–" if row.mean_return is None else f"{row.mean_return:,.1f}",
            "–" if row.target_met is None else "yes" if row.target_met else "no",
            dollars(row.cost_usd) if priced else "–",
            *(metric.spelled(getattr(row, metric.name), absent="–") for metric in metrics),
            *((plain(_resets(row.reset_reasons), _LONGEST),) if wide else ()),
            plain(row.path or "", _LONGEST),
        )
        for row in rows
    ]
    names = [Column(name, right=name not in ("path", "resets"), wrap=name in ("path", "resets")) for name in header]
    return Table.of(names, cells)


def _resets(reasons: str | None) -> str:
    counts = json.loads(reasons) if reasons else {}
    if not isinstance(counts, dict):
        return ""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)


def _spread(rows: Sequence[Any], count: int) -> Sequence[Any]:
    """`count` of the rows, evenly spread, the last one included."""
    if len(rows) <= count or count < 1:
        return rows if count else []
    return [rows[round((i + 1) * len(rows) / count) - 1] for i in range(count)]


def print_comparison(comparison: Comparison) -> None:
    """Print a comparison, its label first."""
    console = _console()
    if comparison.matching.label is not None:
        console.print(f"[bold]{_shown(comparison.matching.label)}[/bold]")
    console.print(comparison.table().terminal(boxed=False))
    for line in comparison.lines():
        if line != comparison.matching.label:
            console.print(escape(line))
