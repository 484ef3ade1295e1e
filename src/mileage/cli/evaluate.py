"""`mileage eval`: a held-out panel on a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mileage._records import strict_json


def evaluate(
    checkpoint: Annotated[Path, Argument(help="Checkpoint file, or the directory of a run.")],
    episodes: Annotated[int, Option(help="Held-out episodes.")] = 100,
    target: Annotated[str | None, Option(help='What to reach, such as "mean_return>=475".')] = None,
    success: Annotated[str | None, Option(help='What makes an episode a success, such as "return>=475".')] = None,
    sample: Annotated[bool, Option("--sample", help="Sample actions instead of taking the best.")] = False,
    env: Annotated[str | None, Option(help='Environment, if the checkpoint names code: "file.py:Name".')] = None,
    threads: Annotated[int | None, Option(help="Threads to use at most.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Play held-out episodes with a saved policy. Exits with 1 if a given target is not met."""
    import dataclasses

    from mileage.cli.paths import checkpoint_path
    from mileage.ledger.targets import Target
    from mileage.training.agents import load

    goal = None if target is None else Target.parse(target)
    agent = load(checkpoint_path(checkpoint), threads=threads, env=env)
    panel = dataclasses.replace(agent.default_panel(goal, episodes, success), deterministic=not sample)
    result = agent.evaluate(panel)
    met = None if goal is None else goal.met(result)
    if json_output:
        summary = {
            "checkpoint": str(checkpoint), "env": agent.env_id, "steps": agent.steps, "panel_id": panel.panel_id,
            "episodes": len(result), "mean_return": result.mean_return, "iqm_return": result.iqm_return,
            "success_rate": result.success_rate, "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(), "target": None if goal is None else str(goal), "met": met,
        }  # fmt: skip
        print(strict_json(summary, indent=2))
    else:
        print(f"{agent.env_id}: {len(result)} held-out episodes, policy after {agent.steps:,} steps")
        print(f"mean return {result.mean_return:.1f} (IQM {result.iqm_return:.1f}, median {result.median_return:.1f}, "
              f"lowest {result.returns.min():.1f}, highest {result.returns.max():.1f})")  # fmt: skip
        if result.success_rate is not None:
            print(f"success rate {result.success_rate:.2f}")
        if goal is not None:
            print(f"target {goal}: {'met' if met else 'not met'}")
    if met is False:
        raise typer.Exit(1)
