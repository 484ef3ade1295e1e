"""`mileage ledger`: list, show, compare, export and import recorded runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage._errors import UsageError

if TYPE_CHECKING:
    from mileage.ledger.runs import RecordedRun
    from mileage.ledger.store import Store

app = typer.Typer(help="Recorded runs: what they reached and what they cost.", no_args_is_help=True)

FORMATS = ("json", "csv", "parquet", "markdown", "mllog", "tensorboard")

Db = Annotated[str | None, Option(help="Ledger file or address (MILEAGE_DB, or runs/mileage.db).")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Selection = Annotated[
    str | None,
    Argument(help="Run id or its beginning, a name, or field=value with commas; all runs if left out."),
]


@app.command("list")
def list_runs(
    selection: Selection = None,
    limit: Annotated[int, Option(help="How many runs to show, newest first; 0 shows all.")] = 50,
    state: Annotated[str | None, Option(help="Only runs in this state, such as reached or crashed.")] = None,
    db: Db = None,
    json_output: AsJson = False,
) -> None:
    """List runs, newest first."""
    from mileage.ledger import queries
    from mileage.ledger.runs import STATES
    from mileage.ledger.selectors import Selector

    if limit < 0:
        raise UsageError(f"--limit must be 0 or more, not {limit}")
    if state is not None and state not in STATES:
        raise UsageError(f"--state {state!r} is not known: use one of {', '.join(STATES)}")
    with _open(db) as store:
        if selection is None:
            selector = Selector(fields=() if state is None else (("state", state),))
            records = store.read(queries.records, selector, limit=limit or None)
        else:
            found = store.read(queries.select_records, selection)
            records = [record for record in reversed(found) if state in (None, record.state)][: limit or None]
    if json_output:
        from mileage.ledger.formats.flat import run_row, unpacked

        print(json.dumps([unpacked(run_row(record)) for record in records]))
        return
    from mileage.cli.ledger_tables import print_list

    print_list(records)


@app.command()
def show(
    run: Annotated[str, Argument(help="Run id or its beginning, or a name that only one run has.")],
    checkpoints: Annotated[int, Option(help="How many checkpoints to show, spread over the run.")] = 10,
    db: Db = None,
    json_output: AsJson = False,
) -> None:
    """Show one run: what it reached, what it cost, where the time went."""
    from mileage.ledger import queries
    from mileage.ledger.formats import json_format
    from mileage.report.cost import CostReport

    with _open(db) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, run), episodes_too=False)
    if json_output:
        content = json_format.as_dict(recorded)
        content["report"] = CostReport(recorded).as_dict() if recorded.end else None
        print(json.dumps(content))
        return
    from mileage.cli.ledger_tables import print_run

    print_run(recorded, max(checkpoints, 0))


@app.command()
def compare(
    a: Annotated[str, Argument(help="The first set of runs: ids, a name, or field=value with commas.")],
    b: Annotated[str, Argument(help="The second set of runs.")],
    allow_unmatched: Annotated[
        list[str] | None, Option(help="A field of the matching contract that may differ; labels the output.")
    ] = None,
    sequential: Annotated[
        bool,
        Option("--sequential", help="Judge at the planned looks (5, 10, 20, 30 runs): look as often as you like."),
    ] = False,
    db: Db = None,
    json_output: AsJson = False,
) -> None:
    """Compare two sets of runs that sat the same exam: expected cost to target, with a verdict."""
    from mileage.report.compare import compare_selections

    with _open(db) as store:
        comparison = compare_selections(store, a, b, allow=allow_unmatched or (), sequential=sequential)
    if json_output:
        print(json.dumps(comparison.as_dict()))
        return
    from mileage.cli.ledger_tables import print_comparison

    print_comparison(comparison)


@app.command()
def export(
    selection: Selection = None,
    format_: Annotated[str, Option("--format", "-f", help=f"One of {', '.join(FORMATS)}.")] = "json",
    table: Annotated[str, Option(help="Rows of CSV and Parquet: runs, checkpoints, phases or episodes.")] = "runs",
    out: Annotated[Path | None, Option("--out", "-o", help="File (TensorBoard: directory) to write.")] = None,
    db: Db = None,
    json_output: AsJson = False,
) -> None:
    """Write runs for other tools."""
    from mileage.ledger import queries

    if format_ not in FORMATS:
        raise UsageError(f"--format {format_!r} is not known: use one of {', '.join(FORMATS)}")
    if out is None and (json_output or format_ in ("parquet", "tensorboard")):
        raise UsageError(f"--format {format_} with these options needs --out PATH")
    with _open(db) as store:
        runs = store.read(queries.complete_runs, selection)
    text = _exported(runs, format_, table, out)
    if text is not None:
        _write_or_print(text, out)
    if json_output:
        print(json.dumps({"runs": len(runs), "format": format_, "out": str(out)}))


@app.command("import")
def import_runs(
    files: Annotated[list[Path], Argument(help="JSON or CSV files: a ledger export, or one foreign run each.")],
    name: Annotated[str | None, Option(help="Name of the runs (the file's name by default).")] = None,
    framework: Annotated[str, Option(help="What trained them.")] = "unknown",
    algorithm: Annotated[str, Option(help="Such as ppo.")] = "",
    env: Annotated[str, Option(help="Environment id.")] = "",
    seed: Annotated[int | None, Option(help="Training seed.")] = None,
    panel: Annotated[Path | None, Option(help="JSON file of the held-out panel they were evaluated on.")] = None,
    target: Annotated[str | None, Option(help='Such as "success_rate>=0.9".')] = None,
    price: Annotated[str | None, Option(help="Dollars an hour, such as 2.20 or 0.35+0.19.")] = None,
    instance: Annotated[str | None, Option(help="Instance in the price book.")] = None,
    state: Annotated[str | None, Option(help="How the run ended, where the target does not say.")] = None,
    accounting_window: Annotated[str, Option(help="What the file's time counts.")] = "as imported",
    column: Annotated[
        list[str] | None, Option(help="OURS=THEIRS: which column holds a figure, such as step=frames.")
    ] = None,
    db: Db = None,
    json_output: AsJson = False,
) -> None:
    """Take in runs of other tools, or an exported ledger."""
    from mileage.ledger.formats.foreign import ImportSettings, read_rows
    from mileage.ledger.panels import Panel
    from mileage.ledger.rows import EndState, Run
    from mileage.ledger.targets import Target

    if state is not None and state not in set(EndState):
        raise UsageError(f"--state {state!r} is not an end state: use one of {', '.join(EndState)}")
    imported = []
    with _open(db, create=True) as store:
        for file in files:
            settings = ImportSettings(
                name or file.stem, framework, algorithm, env, seed,
                Panel.from_json(_read_text(panel)) if panel else None, Target.parse(target) if target else None,
                price, instance, EndState(state) if state else None, accounting_window=accounting_window,
                columns=_columns(column or []),
            )  # fmt: skip
            rows = read_rows(file, settings)
            refused = store.deliver(rows)
            if refused:
                raise UsageError(f"the ledger refused {len(refused)} rows of {file}: {refused[0][1]}")
            imported += [row.run_id for row in rows if isinstance(row, Run)]
    print(json.dumps({"runs": imported}) if json_output else f"imported {len(imported)} runs")


@app.command()
def doctor(db: Db = None, json_output: AsJson = False) -> None:
    """Check the ledger: schema, integrity, waiting rows, runs without an end."""
    from mileage.ledger.checks import check_store
    from mileage.text import plain

    with _open(db) as store:
        checks = check_store(store)
    healthy = all(check.ok for check in checks)
    if json_output:
        print(json.dumps({"ok": healthy, "checks": [check._asdict() for check in checks]}))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {plain(check.found)}")
    if not healthy:
        raise typer.Exit(1)


def _open(db: str | None, *, create: bool = False) -> Store:
    from mileage.ledger.store import Store

    return Store(db, create=create)


def _exported(runs: list[RecordedRun], format_: str, table: str, out: Path | None) -> str | None:
    """The text of a text format; the file of another is written, and there is none."""
    from mileage.ledger.formats import json_format, mllog, tables, tensorboard

    if format_ == "parquet" and out is not None:
        tables.write_parquet(runs, out, table)
        return None
    if format_ == "tensorboard" and out is not None:
        tensorboard.write(runs, out)
        return None
    if format_ == "csv":
        return tables.csv_text(runs, table)
    if format_ == "markdown":
        return tables.markdown_text(runs)
    if format_ == "mllog":
        return "".join(line + "\n" for recorded in runs for line in mllog.lines(recorded))
    return json_format.dumps(runs) + "\n"


def _write_or_print(text: str, out: Path | None) -> None:
    from mileage.text import plain

    if out is None:
        # A file or a pipe gets what was stored; a terminal must not act on it.
        lines = text.splitlines() if sys.stdout.isatty() else None
        print(text if lines is None else "".join(plain(line, len(line)) + "\n" for line in lines), end="")
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _columns(pairs: list[str]) -> dict[str, str]:
    from mileage._errors import UnknownNameError
    from mileage.ledger.formats.foreign import ALIASES

    found = {}
    for pair in pairs:
        ours, sign, theirs = pair.partition("=")
        if not sign or not theirs:
            raise UsageError(f"--column {pair!r} cannot be read: write OURS=THEIRS, such as step=frames")
        if ours not in ALIASES:
            raise UnknownNameError("figure", ours, ALIASES)
        found[ours] = theirs
    return found
