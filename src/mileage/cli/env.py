"""`mileage envs`: what can be trained on; `mileage env check`: whether an environment keeps its word."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from typer import Option

from mileage.cli.options import AsJson
from mileage.records import Record, strict_json

app = typer.Typer(help="Look at one environment.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """Commands about one environment."""


@app.command("check")
def check(
    env: Annotated[str, typer.Argument(help="Environment id, or path/to/file.py:Name.")],
    steps: Annotated[int, typer.Option(help="Steps to play.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of actions and episodes.")] = 0,
    json_output: AsJson = False,
) -> None:
    """Play an environment and look at memory, numbers, seeds, spaces and ends. Exits with 1 unless all is well."""
    from mileage.envs.check import check as look
    from mileage.envs.registry import resolve
    from mileage.errors import require

    require(steps >= 1, "--steps", steps, "at least 1")
    points = []
    for point in look(resolve(env), steps=steps, seed=seed):
        points.append(point)
        if not json_output:
            print(
                f"{'ok    ' if point.ok else 'FAILED'} {point.name}{'' if point.ok else ': ' + point.problem}",
                flush=True,
            )
    ok = all(point.ok for point in points)
    if json_output:
        rows = [{"point": point.name, "ok": point.ok, "problem": point.problem or None} for point in points]
        print(json.dumps({"env": env, "ok": ok, "points": rows}, indent=2))
    if not ok:
        raise typer.Exit(1)


# --- `mileage envs`: what can be trained on ---
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
