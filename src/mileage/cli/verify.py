"""`mileage verify`: a cost record checked, and our own runs in it repeated."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mileage.cli import options
from mileage.errors import UsageError
from mileage.records import strict_json


def verify(
    record: Annotated[Path, Argument(help="The JSON cost record.")],
    arm: Annotated[str | None, Option(help="Repeat the runs of this arm alone.")] = None,
    seeds: Annotated[str | None, Option(help="Seeds to repeat, such as 0-2; the first of each arm by default.")] = None,
    check: Annotated[bool, Option("--check", help="Check the file and repeat nothing.")] = False,
    price: options.PriceText = None,
    threads: options.Threads = None,
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a cost record; repeat its runs of mileage bit for bit, and say what they cost here.

    Exits with 1 if a run comes out differently, with 2 if the file is no cost record.
    """
    from mileage.cli.race import seed_list
    from mileage.external.race.cost_record import read_record
    from mileage.external.race.verify import repeat, repeated_table
    from mileage.ledger.prices import freeze_price

    found = read_record(record)
    arms = found["arms"]
    runs = sum(each["runs"] for each in arms)
    if check and (arm is not None or seeds is not None):
        raise UsageError("--check repeats nothing: drop --arm and --seeds")
    rate = None if price is None else freeze_price(price).usd_per_hour
    tell = _nothing if json_output else _say
    again = (
        [] if check else repeat(found, arm=arm, seeds=seed_list(seeds), usd_per_hour=rate, threads=threads, tell=tell)
    )
    if json_output:
        print(
            strict_json(
                {"record": str(record), "valid": True, "repeated": [each.as_dict() for each in again]}, indent=2
            )
        )
    else:
        print(
            f"{record}: a valid cost record of {len(arms)} arms and {runs} runs on panel "
            f"{found['panel']['panel_id'][:16]}"
        )
        if again:
            print(repeated_table(again).text())
        elif not check:
            print("no arm is a recipe of mileage: there is nothing that could be repeated from the record alone")
    if not all(each.same for each in again):
        raise typer.Exit(1)


def _say(sentence: str) -> None:
    print(f"mileage: {sentence}", file=sys.stderr, flush=True)


def _nothing(_: str) -> None:
    """Quiet."""
