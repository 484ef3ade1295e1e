"""`mileage envs`: what can be trained on."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from mileage._records import Record, strict_json
from mileage.cli.options import AsJson


def envs(
    json_output: AsJson = False,
    all_envs: Annotated[bool, Option("--all", help="Also list what Gymnasium offers.")] = False,
) -> None:
    """List the environments that run natively (any other Gymnasium id works too, just slower)."""
    from mileage.envs import native, registered

    rows: list[Record] = []
    for name in registered():
        spec = native(name)
        actions = f"{spec.n_actions} choices" if spec.n_actions else f"{spec.action_size} numbers"
        row = {"id": name, "observation": spec.obs_size, "actions": actions, "max_steps": spec.max_steps}
        rows.append(row | {"solved_at": spec.reward_threshold, "native": True})
    others = _gymnasium_ids({row["id"] for row in rows}) if all_envs else []
    if json_output:
        print(strict_json(rows + [{"id": name, "native": False} for name in others], indent=2))
        return
    from rich.console import Console

    from mileage.tables import Table

    header = ("environment", "observation", "actions", "time limit", "solved at")
    shown = [row | {"solved_at": "" if row["solved_at"] is None else f"{row['solved_at']:g}"} for row in rows]
    cells = [tuple(row.values())[:-1] for row in shown]
    console = Console()
    console.print(Table.of(header, cells, left=header, title="Native environments").terminal())
    if others:
        console.print("Through Gymnasium: " + ", ".join(others), highlight=False)
    else:
        console.print("Any other Gymnasium id works too (see --all), as does your own: path/to/file.py:Name")


def _gymnasium_ids(known: set[str]) -> list[str]:
    import gymnasium

    return sorted(name for name in gymnasium.registry if name not in known)
