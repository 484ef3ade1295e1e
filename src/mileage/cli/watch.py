"""`mileage watch`: a run in the terminal while it goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mileage.cli import options
from mileage.errors import UsageError

if TYPE_CHECKING:
    from mileage.ledger.runs import RecordedRun
    from mileage.ledger.store import Store


def watch(
    run: Annotated[
        str | None, Argument(help="Run id or its beginning, or a name; default: the newest running run.")
    ] = None,
    every: Annotated[float, Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, Option("--once", help="Look once and end.")] = False,
    db: options.Database = None,
) -> None:
    """Follow a run until it ends: how far it is, its curve, its phases, dollars so far, time left."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from mileage.ledger.store import Store
    from mileage.report.seeds import watch_lines
    from mileage.tables import plain

    if not 0.1 <= every <= 3600:
        raise UsageError(f"--every must be 0.1 to 3600 seconds, not {every:g}")
    console = Console(highlight=False)

    def shown(found: RecordedRun) -> Text:
        return Text("\n".join(plain(line, 400) for line in watch_lines(found, console.width)))

    with Store.viewer(db) as store:
        run_id = _chosen(store, run)
        found = _read(store, run_id)
        if once or found.end is not None or not console.is_terminal:
            _lines(store, found, every, once)
            return
        with Live(shown(found), console=console, auto_refresh=False) as live:
            while found.end is None:
                time.sleep(every)
                found = _read(store, run_id)
                live.update(shown(found), refresh=True)


def _chosen(store: Store, run: str | None) -> str:
    """The run that is meant."""
    from mileage.ledger import queries

    if run is not None:
        found = store.read(queries.select_records, run)
        return next((each for each in reversed(found) if each.end is None), found[-1]).run_id
    going_on = store.read(queries.open_runs)
    if going_on:
        return max(going_on, key=lambda each: each.launched_at).run_id
    newest = store.read(queries.records, limit=1)
    if not newest:
        raise UsageError("there is no run to watch: train something first, or name another ledger with --db")
    return newest[0].run_id


def _read(store: Store, run_id: str) -> RecordedRun:
    from mileage.ledger import queries

    (found,) = store.read(queries.with_parents, [store.read(queries.only_record, run_id)])
    return store.read(queries.complete, found, episodes_too=False)


def _lines(store: Store, found: RecordedRun, every: float, once: bool) -> None:
    """Without a terminal: everything once, and then a line whenever something is new."""
    from mileage.report.seeds import progress_line, watch_lines
    from mileage.tables import plain

    for line in watch_lines(found):
        print(plain(line, 400), flush=True)
    while not once and found.end is None:
        time.sleep(every)
        after = _read(store, found.run_id)
        if (len(after.checkpoints), after.end) != (len(found.checkpoints), found.end):
            print(plain(f"{after.state}: {progress_line(after)}", 400), flush=True)
        found = after
