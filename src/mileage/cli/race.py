"""`mileage race`: recipes, programs and revisions trained to one held-out target, and what that cost each."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage.errors import UsageError
from mileage.records import strict_json
from mileage.tables import write_text

if TYPE_CHECKING:
    from mileage.external.race import Race

_WHAT = "SPEC.toml to run or go on with a race; or report DIR; or merge DIR DIR …."


def race(
    what: Annotated[list[str], Argument(help=_WHAT, metavar="SPEC.toml | report DIR | merge DIR…")],
    out: Annotated[Path | None, Option(help="The race's directory (runs/race-NAME); of a merge, a new one.")] = None,
    seeds: Annotated[str | None, Option(help="Of the planned seeds, those to run here: 0-2 or 0,3,4.")] = None,
    report: Annotated[Path | None, Option(help="Write the report here: .md or .html.")] = None,
    record: Annotated[Path | None, Option(help="Write the JSON cost record here.")] = None,
    session: Annotated[float | None, Option("--for", help="Seconds after which no attempt is begun this time.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Race arms to one target. If it is stopped or killed, or runs out of budget, run the same command again.

    Exits with 1 if planned attempts are missing at the end.
    """
    from mileage.external.race import RaceSpec, read_race, run_race

    _check_files(report)
    if session is not None and not session > 0:
        raise UsageError(f"--for must be above 0 seconds, not {session:g}")
    if what[0] == "merge":
        from mileage.external.race.result import merge

        if out is None or len(what) < 3:
            raise UsageError("name what to merge and where to: mileage race merge DIR DIR --out NEW")
        place = out
        found = merge([Path(each) for each in what[1:]], place)
    elif what[0] == "report":
        if len(what) != 2:
            raise UsageError("name one race: mileage race report DIR")
        place = Path(what[1])
        found = read_race(place)
    else:
        if len(what) != 1:
            raise UsageError("name one race: mileage race SPEC.toml")
        spec = RaceSpec.read(Path(what[0]))
        place = out or Path("runs") / f"race-{spec.name}"
        tell = _say if not (quiet or json_output) else _nothing
        found = run_race(spec, place, seeds=seed_list(seeds), session_seconds=session or math.inf, tell=tell)
    _write(found, place, report, record)
    _show(found, json_output)
    if found.missing and seeds is None:
        raise typer.Exit(1)


def _show(found: Race, json_output: bool) -> None:
    if json_output:
        print(strict_json(found.as_dict(), indent=2))
        return
    from rich.console import Console

    for line in found.about_lines():
        print(line)
    Console().print(found.standings().terminal())
    for line in found.lines():
        print(line)


def _write(found: Race, place: Path, report: Path | None, record: Path | None) -> None:
    from mileage.external.race.cost_record import cost_record

    if report is not None:
        write_text(report, found.html() if report.suffix == ".html" else found.markdown(), "--report")
    if record is not None:
        write_text(record, strict_json(cost_record(found, place), indent=1) + "\n", "--record")


def _check_files(report: Path | None) -> None:
    if report is not None and report.suffix not in (".md", ".html"):
        raise UsageError(f"--report must end in .md or .html, not {report.name!r}")


def seed_list(text: str | None) -> list[int] | None:
    """Seeds written as 0-2 or 0,3,4 or both."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(part) > 20:
            raise UsageError(f"--seeds {text!r} cannot be read: write 0-2 or 0,3,4")
        found += range(int(first), min(int(last or first), int(first) + 1000) + 1)
    return found


def _say(sentence: str) -> None:
    print(f"mileage: {sentence}", file=sys.stderr, flush=True)


def _nothing(_: str) -> None:
    """Quiet."""
