"""`mileage envs`: what can be trained on."""

from __future__ import annotations

from typing import Annotated

import typer

from mileage._records import Record, strict_json


def envs(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    all_envs: Annotated[bool, typer.Option("--all", help="Also list what Gymnasium offers.")] = False,
) -> None:
    """List the environments that run natively (any other Gymnasium id works too, just slower)."""
    from mileage.envs import native, registered

    rows: list[Record] = []
    for name in registered():
        spec = native(name)
        actions = f"{spec.n_actions} choices" if spec.n_actions else f"{spec.action_size} numbers"
        rows.append(
            {
                "id": name,
                "observation": spec.obs_size,
                "actions": actions,
                "max_steps": spec.max_steps,
                "solved_at": spec.reward_threshold,
                "native": True,
            }
        )
    others = _gymnasium_ids({row["id"] for row in rows}) if all_envs else []
    if json_output:
        print(strict_json(rows + [{"id": name, "native": False} for name in others], indent=2))
        return
    from rich.console import Console

    from mileage.tables import Table

    header = ("environment", "observation", "actions", "time limit", "solved at")
    cells = [
        (row["id"], row["observation"], row["actions"], row["max_steps"], _solved(row["solved_at"])) for row in rows
    ]
    console = Console()
    console.print(Table.of(header, cells, left=header, title="Native environments").terminal())
    if others:
        console.print("Through Gymnasium: " + ", ".join(others), highlight=False)
    else:
        console.print("Any other Gymnasium id works too (see --all), as does your own: path/to/file.py:Name")


def _solved(threshold: float | None) -> str:
    return "" if threshold is None else f"{threshold:g}"


def _gymnasium_ids(known: set[str]) -> list[str]:
    import gymnasium

    return sorted(name for name in gymnasium.registry if name not in known)
