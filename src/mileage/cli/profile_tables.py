"""How `mileage profile` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from mileage.profiling.comparing import ProfileComparison
    from mileage.profiling.findings import Finding
    from mileage.profiling.profile import Profile

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
    from mileage.profiling.tables import tables

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
