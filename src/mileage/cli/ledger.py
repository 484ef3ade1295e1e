"""`mileage ledger`: list, show, compare, export, import, reconcile."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage.cli.options import AsJson, Database, Words, pairs
from mileage.errors import UsageError
from mileage.records import strict_json

if TYPE_CHECKING:
    from mileage.ledger.queries import RunStream
    from mileage.ledger.rows import NoteKind, Row
    from mileage.ledger.store import Store


app = typer.Typer(help="Recorded runs: what they reached and what they cost.", no_args_is_help=True)

FORMATS = ("json", "csv", "parquet", "markdown", "mllog", "tensorboard")

JudgedBy = Annotated[
    str | None, Option(help="Judge by this target and not by the runs' own, from the episodes that were played.")
]
Run = Annotated[str, Argument(help="Run id or its beginning, or a name that only one run has.")]
Why = Annotated[str, Option("--reason", "-r", help="Why, in a few words; kept with the run.")]
Selection = Annotated[
    str | None,
    Argument(help="Run id or its beginning, a name, or field=value with commas; all runs if left out."),
]


@app.command("list")
def list_runs(
    selection: Selection = None,
    limit: Annotated[int, Option(help="How many runs to show, newest first; 0 shows all.")] = 50,
    state: Annotated[str | None, Option(help="Only runs in this state, such as reached or crashed.")] = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """List runs, newest first."""
    from mileage.report import answers

    answers.check_listing(state, limit)
    with open_ledger(db) as store:
        records = answers.listed(store, selection, state=state, limit=limit)
    if json_output:
        print(strict_json(answers.list_answer(records)))
        return
    from mileage.cli.ledger_tables import print_list

    print_list(records)


@app.command()
def show(
    run: Run,
    checkpoints: Annotated[int, Option(help="How many checkpoints to show, spread over the run.")] = 10,
    target: JudgedBy = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Show one run: what it reached, what it cost, where the time went."""
    from mileage.report import answers

    with open_ledger(db) as store:
        recorded = answers.shown_run(store, run, target=target)
    if json_output:
        print(strict_json(answers.run_answer(recorded)))
        return
    from mileage.cli.ledger_tables import print_run

    print_run(recorded, max(checkpoints, 0))


@app.command()
def compare(
    a: Annotated[str, Argument(help="The first set of runs: ids, a name, or field=value with commas.")],
    b: Annotated[str, Argument(help="The second set of runs.")],
    allow_unmatched: Annotated[
        list[str] | None, Option(help="A field of the matching rules that may differ; labels the output.")
    ] = None,
    sequential: Annotated[
        bool,
        Option("--sequential", help="Judge at the planned looks (5, 10, 20, 30 runs): look as often as you like."),
    ] = False,
    target: JudgedBy = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Compare two sets of runs evaluated on the same held-out episodes: expected cost to target, with a verdict."""
    from mileage.report.compare import compare_selections

    with open_ledger(db) as store:
        allowed = allow_unmatched or ()
        comparison = compare_selections(store, a, b, allow=allowed, sequential=sequential, target=target)
    if json_output:
        print(strict_json(comparison.as_dict()))
        return
    from mileage.cli.ledger_tables import print_comparison

    print_comparison(comparison)


@app.command()
def export(
    selection: Selection = None,
    format_: Annotated[str, Option("--format", "-f", help=f"One of {', '.join(FORMATS)}.")] = "json",
    table: Annotated[
        str, Option(help="Rows of CSV and Parquet: runs, checkpoints, phases, episodes or notes.")
    ] = "runs",
    out: Annotated[Path | None, Option("--out", "-o", help="File (TensorBoard: directory) to write.")] = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Write runs for other tools."""
    from mileage.ledger.exporting import table_kind
    from mileage.ledger.queries import streams

    if format_ not in FORMATS:
        raise UsageError(f"--format {format_!r} is not known: use one of {', '.join(FORMATS)}")
    if out is None and (json_output or format_ in ("parquet", "tensorboard")):
        raise UsageError(f"--format {format_} with these options needs --out PATH")
    table_kind(table)
    with open_ledger(db) as store:
        runs = store.read(lambda connection: _export(streams(connection, selection), format_, table, out))
    if json_output:
        print(strict_json({"runs": runs, "format": format_, "out": str(out)}))


_FILES = "JSON or CSV files, a ledger's export among them; event files, W&B's and trackio's logs, Parquet, directories."


@app.command("import")
def import_runs(
    files: Annotated[list[Path], Argument(help=_FILES)],
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
    column: Annotated[Words, Option(help="OURS=THEIRS: which column holds a figure, such as step=frames.")] = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Take in runs of other tools, as claims, or an exported ledger."""
    from mileage.ledger.admission import take_in
    from mileage.ledger.importing import ImportSettings, is_tracker, read_rows, run_rows, tracker_runs
    from mileage.ledger.panels import Panel
    from mileage.ledger.rows import MAX_NAME, EndState
    from mileage.ledger.targets import Target

    if state is not None and state not in set(EndState):
        raise UsageError(f"--state {state!r} is not an end state: use one of {', '.join(EndState)}")
    with open_ledger(db, create=True) as store:
        rows: list[Row] = []
        for file in files:
            settings = ImportSettings(
                name or file.stem, framework, algorithm, env, seed,
                Panel.from_json(_read_text(panel)) if panel else None, Target.parse(target) if target else None,
                price, instance, EndState(state) if state else None, accounting_window=accounting_window,
                columns=_columns(column),
            )  # fmt: skip
            if not is_tracker(file):
                rows += read_rows(file, settings)
                continue
            for run, records in tracker_runs(file).items():
                rows += run_rows(records, replace(settings, name=name or run[:MAX_NAME]))
        done = take_in(store, rows)
    if json_output:
        found = {"runs": done.run_ids, "added": done.added, "there": done.there, "claimed": done.claimed}
        print(strict_json(found))
    else:
        print(done.sentence())


@app.command()
def doctor(db: Database = None, json_output: AsJson = False) -> None:
    """Check the ledger: schema, integrity, waiting rows, runs without an end."""
    from mileage.ledger.checks import check_store
    from mileage.tables import plain

    with open_ledger(db) as store:
        checks = check_store(store)
    healthy = all(check.ok for check in checks)
    if json_output:
        print(strict_json({"ok": healthy, "checks": [check._asdict() for check in checks]}))
    else:
        for check in checks:
            print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {plain(check.found)}")
    if not healthy:
        raise typer.Exit(1)


@app.command()
def backup(
    file: Annotated[Path, Argument(help="New file: an SQLite ledger, or what pg_restore takes.")],
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Copy the whole ledger, consistent while runs go on."""
    from mileage.ledger.maintenance import back_up

    with open_ledger(db) as store:
        size = back_up(store.engine, store.url, file)
    print(strict_json({"file": str(file), "bytes": size}) if json_output else f"wrote {file} ({size / 1e6:,.1f} MB)")


@app.command()
def void(run: Run, reason: Why = "", db: Database = None, json_output: AsJson = False) -> None:
    """Say that a run does not count: it stays, and is labelled wherever it is shown."""
    from mileage.ledger.rows import NoteKind

    _note(db, run, NoteKind.VOID, reason, json_output)


@app.command()
def annotate(
    run: Run,
    text: Annotated[str, Argument(help="What is worth knowing about the run.")],
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Add a remark to a run."""
    from mileage.ledger.rows import NoteKind

    _note(db, run, NoteKind.ANNOTATION, text, json_output)


@app.command()
def redact(
    run: Run,
    field: Annotated[str, Argument(help="Such as command, config, config.KEY, reason or claimed.")],
    reason: Why = "",
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Empty a field of a run's record for good, and keep a note of who did it and when."""
    with open_ledger(db, create=True) as store:
        note = store.redact(_run_id(store, run), field, reason)
    print(strict_json(note._asdict()) if json_output else f"redacted {field} of run {note.run_id}")


def _note(db: str | None, run: str, kind: NoteKind, text: str, json_output: bool) -> None:
    from mileage.ledger.redaction import new_note

    with open_ledger(db, create=True) as store:
        note = new_note(_run_id(store, run), kind, text)
        store.deliver_together([note])
    print(strict_json(note._asdict()) if json_output else f"{kind.value} noted on run {note.run_id}")


def _run_id(store: Store, run: str) -> str:
    from mileage.ledger import queries

    return store.read(queries.only_record, run).run_id


def open_ledger(db: str | None, *, create: bool = False) -> Store:
    """The ledger; one that is only read need not be writable, and says on standard error why it is not."""
    from mileage.ledger.store import Store
    from mileage.tables import plain

    if create:
        return Store(db)
    store = Store.reader(db)
    if store.trouble is not None:
        print(f"mileage: {plain(store.trouble)}: shown as far as it can be read", file=sys.stderr)
    return store


def _export(runs: Iterator[RunStream], format_: str, table: str, out: Path | None) -> int:
    """Write `runs` and return how many there were."""
    from mileage.ledger import exporting, trackers

    counted = _Counted(runs)
    if format_ == "parquet" and out is not None:
        exporting.write_parquet_streams(counted, out, table)
    elif format_ == "tensorboard" and out is not None:
        trackers.write_streams(counted, out)
    elif format_ == "csv":
        _write_or_print(exporting.csv_chunks(counted, table), out)
    elif format_ == "markdown":
        _write_or_print([exporting.markdown_text([stream.recorded for stream in counted])], out)
    elif format_ == "mllog":
        _write_or_print((line + "\n" for stream in counted for line in exporting.stream_lines(stream)), out)
    else:
        _write_or_print(itertools.chain(exporting.chunks(counted), ["\n"]), out)
    return counted.count


class _Counted:
    """An iterator that knows how many there were."""

    def __init__(self, runs: Iterator[RunStream]) -> None:
        self._runs = runs
        self.count = 0

    def __iter__(self) -> Iterator[RunStream]:
        for run in self._runs:
            self.count += 1
            yield run


def _write_or_print(chunks: Iterable[str], out: Path | None) -> None:
    from mileage.tables import plain, written_to

    if out is None:
        # A file or a pipe gets what was stored; a terminal must not act on it.
        careful = sys.stdout.isatty()
        for chunk in chunks:
            if careful:
                chunk = "".join(plain(line, len(line)) + "\n" * line.endswith("\n") for line in chunk.splitlines(True))
            sys.stdout.write(chunk)
        return
    part = out.with_name(f".{out.name}.part")
    try:
        with written_to(out, "--out"):
            with part.open("w", encoding="utf-8", newline="") as file:
                file.writelines(chunks)
            part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _columns(given: Words) -> dict[str, str]:
    from mileage.errors import looked_up
    from mileage.ledger.importing import ALIASES

    found = pairs("--column", given, "OURS=THEIRS, such as step=frames")
    for ours in found:
        looked_up("figure", ours, ALIASES)
    return found


# --- `mileage ledger reconcile`: billed dollars beside the dollars that runs say they cost ---
def reconcile(
    bill: Annotated[Path, Argument(help="CSV file with FOCUS columns: BilledCost, ChargePeriodStart, ResourceId, …")],
    selection: Selection = None,
    resource: Annotated[
        Words, Option(help="HOST=RESOURCE: what the bill calls a host, where no name or tag says so.")
    ] = None,
    db: Database = None,
    json_output: AsJson = False,
) -> None:
    """Put what a cloud billed beside what runs cost by their frozen prices."""
    from mileage.ledger import queries
    from mileage.ledger.queries import Selector
    from mileage.report.cost import read_bill
    from mileage.report.cost import reconcile as reconciled

    charges = read_bill(bill)
    known = pairs("--resource", resource, "HOST=RESOURCE")
    with open_ledger(db) as store:
        if selection is None:
            runs = store.read(queries.records, Selector(), limit=None)
        else:
            runs = store.read(queries.select_records, selection)
    found = reconciled([run for run in runs if run.end is not None], charges, known)
    if json_output:
        print(strict_json(found.as_dict()))
        return
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    table = found.table()
    console.print(table.terminal())
    console.print(table.note, markup=False)
