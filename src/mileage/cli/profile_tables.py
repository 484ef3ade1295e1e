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


def print_profile(profile: Profile) -> None:
    """Print the verdict and all findings, then what they stand on: nothing wider than a terminal."""
    from mileage.profiling.export import machine_line, title
    from mileage.profiling.tables import tables

    console = _console()
    # Names come from the ledger and from users: text, never markup.
    console.print(Text(profile.verdict, style="bold"))
    console.print(Text(f"{title(profile)}; {machine_line(profile)}", style="dim"))
    for number, finding in enumerate(profile.findings, start=1):
        console.print()
        _print_finding(console, number, finding)
    for each in tables(profile):
        if each.key == "findings":
            continue
        console.print()
        console.print(Text(each.title, style="bold"))
        console.print(each.terminal(boxed=False))
        if each.note:
            console.print(Text(each.note, style="dim"))
    if profile.run.run_id is not None:
        console.print(Text(f"\nsaved in the ledger under {profile.run.run_id}"))


def _print_finding(console: Console, number: int, finding: Finding) -> None:
    """A finding in its own lines: what it is, what was seen, what to try and what that would bring."""
    load = "  (seen under load)" if finding.under_load else ""
    console.print(Text(f"{number}. {finding.bottleneck.label}{load}", style="bold"))
    console.print(Text(f"   {finding.evidence}"))
    estimate = f"  ({finding.estimate})" if finding.estimate else ""
    console.print(Text(f"   try {finding.suggestion}{estimate}"))
