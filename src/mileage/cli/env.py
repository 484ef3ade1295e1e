"""`mileage env check`: whether an environment keeps its word."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mileage.cli.options import AsJson

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
    from mileage._errors import require
    from mileage.envs.check import check as look
    from mileage.envs.registry import resolve

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
