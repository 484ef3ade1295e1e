"""`mileage profile -- PROGRAM`: where its time goes; and how profiles are printed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from mileage.cli.options import ProgramArguments, script
from mileage.errors import UsageError
from mileage.records import strict_json
from mileage.system import process_start_ns
from mileage.tables import check_writable, write_text

if TYPE_CHECKING:
    from mileage.profiling.compare import ProfileComparison
    from mileage.profiling.model import Finding
    from mileage.profiling.profile import Profile


def profile_program(wanted: ProgramArguments) -> None:
    """Run the program, report on standard error or into a file, and exit as the program did."""

    from mileage.ledger.recorder import Ledger
    from mileage.profiling.programs.page import FORMATS, export
    from mileage.profiling.programs.report import lines, own_cost
    from mileage.profiling.programs.watch import watch
    from mileage.profiling.tuning import arms

    _check(wanted, tuple(FORMATS))
    planned = arms.starts(wanted.program, wanted.try_arg or ()) if wanted.try_ or wanted.try_arg else ()
    ledger = Ledger(wanted.db) if wanted.ledger else None
    found = watch(wanted.program, ledger=ledger, name=wanted.name or Path(script(wanted.program)).stem,
                  limit_seconds=wanted.timeout)  # fmt: skip
    report = [found.verdict] if wanted.quiet else lines(found, None if wanted.full else FIRST)
    report += [] if wanted.quiet else ["", *own_cost(found, process_start_ns(), time.perf_counter_ns())]
    report += [] if wanted.quiet or wanted.full else ["", more(len(found.findings))]
    sys.stdout.flush()
    print("\n".join(["mileage:", *report]), file=sys.stderr)
    tried = None
    if planned and found.ended.code == 0:
        uses_jax = "jax" in found.layers
        planned = arms.starts(wanted.program, wanted.try_arg or (), uses_jax=uses_jax)
        tried = arms.attempt(planned, budget_seconds=wanted.budget, say=lambda text: _say(text, wanted.quiet))
        table = tried.table()
        print("\n".join(["", table.title, table.text(), table.note]), file=sys.stderr)
    if wanted.out is not None:
        kind = "json" if wanted.json_output else wanted.export or "html"
        text = export(found, kind)
        if tried is not None and kind == "json":
            text = strict_json(found.as_dict() | {"tried": tried.as_dict()}, indent=2) + "\n"
        elif tried is not None and kind == "md":
            text += f"\n## {tried.table().title}\n\n{tried.table().markdown()}\n"
        write_text(wanted.out, text, "--out")
        if not wanted.quiet:
            print(f"written to {wanted.out}", file=sys.stderr)
    raise typer.Exit(130 if tried is not None and tried.interrupted else found.ended.code)


def _check(wanted: ProgramArguments, formats: tuple[str, ...]) -> None:
    if not wanted.program[0]:
        raise UsageError("name the program to profile: mileage profile -- python train.py")
    if wanted.timeout is not None and not wanted.timeout > 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {wanted.timeout:g}")
    if wanted.export is not None and wanted.export not in formats:
        raise UsageError(f"--export {wanted.export!r} is not known: use one of {', '.join(formats)}")
    if wanted.out is None and (wanted.export is not None or wanted.json_output):
        raise UsageError("standard output is the program's own: name a file for the report with --out")
    if wanted.out is not None:
        check_writable(wanted.out, "--out")  # before the program runs, not after


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)


# --- How `mileage profile` prints ---
_WIDTH = 80
FIRST = 3
"""Findings that are shown unless all are asked for."""


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal and console.width >= _WIDTH else Console(highlight=False, width=_WIDTH)


def print_comparison(found: ProfileComparison) -> None:
    """Print the verdict, and what it stands on."""
    console = _console()
    console.print(Text(found.verdict, style="bold"))
    console.print(Text(f"A is {found.a.label}, B is {found.b.label}", style="dim"))
    for each in found.tables():
        console.print()
        console.print(Text(each.title, style="bold"))
        console.print(each.terminal(boxed=False))


def print_profile(profile: Profile, full: bool) -> None:
    """Print the verdict and what to act on first, or all that was found: nothing wider than a terminal."""
    from mileage.profiling.export import machine_line, title
    from mileage.profiling.report import tables

    console = _console()
    # Names come from the ledger and from users: text, never markup.
    console.print(Text(profile.verdict, style="bold"))
    console.print(Text(f"{title(profile)}; {machine_line(profile)}", style="dim"))
    for number, finding in enumerate(profile.findings[: None if full else FIRST], start=1):
        console.print()
        _print_finding(console, number, finding)
    for each in tables(profile) if full else ():
        if each.key == "findings":
            continue
        console.print()
        console.print(Text(each.title, style="bold"))
        console.print(each.terminal(boxed=False))
        if each.note:
            console.print(Text(each.note, style="dim"))
    if profile.run.run_id is not None:
        console.print(Text(f"\nsaved in the ledger under {profile.run.run_id}"))
    if not full:
        console.print(Text(f"\n{more(len(profile.findings))}", style="dim"))


def more(findings: int) -> str:
    """Where all else is, after the first of so many findings."""
    left = f"{findings - FIRST} more findings and all tables" if findings > FIRST else "all tables"
    return f"{left}: --full"


def _print_finding(console: Console, number: int, finding: Finding) -> None:
    """A finding in its own lines: what it is, what was seen, what to try and what that would bring."""
    load = "  (seen under load)" if finding.under_load else ""
    console.print(Text(f"{number}. {finding.bottleneck.label}{load}", style="bold"))
    console.print(Text(f"   {finding.evidence}"))
    estimate = f"  ({finding.estimate})" if finding.estimate else ""
    console.print(Text(f"   try {finding.suggestion}{estimate}"))
