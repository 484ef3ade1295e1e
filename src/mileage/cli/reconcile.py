"""`mileage ledger reconcile`: billed dollars beside the dollars that runs say they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mileage._records import strict_json
from mileage.cli.ledger import Selection, open_ledger
from mileage.cli.options import AsJson, Database, Words, pairs


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
    from mileage.ledger.selectors import Selector
    from mileage.report.bills import read_bill
    from mileage.report.bills import reconcile as reconciled

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
