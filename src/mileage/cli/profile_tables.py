"""How `mileage profile` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from mileage.profiling.profile import Profile


def print_profile(profile: Profile) -> None:
    """Print the verdict, then all tables."""
    from mileage.profiling.export import machine_line, title
    from mileage.profiling.tables import tables

    console = Console(highlight=False)
    # Names come from the ledger and from users: text, never markup.
    console.print(Text(profile.verdict, style="bold"))
    console.print(Text(f"{title(profile)}; {machine_line(profile)}", style="dim"))
    for each in tables(profile):
        console.print()
        console.print(Text(each.title, style="bold"))
        console.print(each.terminal(boxed=False))
        if each.note:
            console.print(Text(each.note, style="dim"))
    if profile.run.run_id is not None:
        console.print(Text(f"\nsaved in the ledger under {profile.run.run_id}"))
