"""`mileage eval`: a held-out panel on a checkpoint, or on anybody's policy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage.cli import options
from mileage.errors import UsageError
from mileage.records import Record, strict_json

if TYPE_CHECKING:
    from mileage.ledger.panels import Panel
    from mileage.ledger.targets import Evaluation, Target


def evaluate(
    checkpoint: Annotated[
        Path | None, Argument(help="Checkpoint file, directory of a run, or a run of the ledger by id or name.")
    ] = None,
    policy: Annotated[
        str | None,
        Option(help='Anybody\'s policy: FILE.onnx, FILE.pt (TorchScript), "file.py:function", "program: COMMAND".'),
    ] = None,
    panel: Annotated[str | None, Option(help="The exam: an environment's id, or a panel's FILE.json.")] = None,
    adapter: options.Adapter = None,
    unit_actions: options.UnitActions = False,
    episodes: Annotated[int | None, Option(help="Held-out episodes (100 by default).")] = None,
    target: Annotated[str | None, Option(help='What to reach, such as "mean_return>=475".')] = None,
    success: Annotated[str | None, Option(help='What makes an episode a success, such as "return>=475".')] = None,
    sample: Annotated[bool, Option("--sample", help="Sample actions instead of taking the best.")] = False,
    env: Annotated[str | None, Option(help='Environment, if the checkpoint names code: "file.py:Name".')] = None,
    threads: Annotated[int | None, Option(help="Threads to use at most.")] = None,
    db: options.Database = None,
    json_output: options.AsJson = False,
) -> None:
    """Play held-out episodes with a saved policy. Exits with 1 if a given target is not met."""
    from mileage.ledger.targets import Target

    goal = None if target is None else Target.parse(target)
    if (checkpoint is None) == (policy is None):
        raise UsageError("give a checkpoint, or a policy of somebody else's with --policy and --panel")
    if checkpoint is not None:
        for name, value in (("--panel", panel), ("--adapter", adapter), ("--unit-actions", unit_actions)):
            if value:
                raise UsageError(f"{name} goes with --policy: a checkpoint knows its environment")
        exam, result, about, title = _own(checkpoint, episodes, goal, success, sample, env, threads, db)
    else:
        if panel is None:
            raise UsageError("--policy needs --panel: an environment's id, or a panel's FILE.json")
        assert policy is not None
        exam, result = _foreign(policy, panel, adapter, unit_actions, episodes, goal, success, sample)
        about = {"policy": policy, "env": exam.env_id}
        title = f"{exam.env_id}: {len(result)} held-out episodes, policy {policy}"
    met = None if goal is None else goal.met(result)
    if json_output:
        summary = about | {
            "panel_id": exam.panel_id, "episodes": len(result), "mean_return": result.mean_return,
            "iqm_return": result.iqm_return, "success_rate": result.success_rate, "returns": result.returns.tolist(),
            "lengths": result.lengths.tolist(), "target": None if goal is None else str(goal), "met": met,
        }  # fmt: skip
        print(strict_json(summary, indent=2))
    else:
        print(title)
        print(f"mean return {result.mean_return:.1f} (IQM {result.iqm_return:.1f}, median {result.median_return:.1f}, "
              f"lowest {result.returns.min():.1f}, highest {result.returns.max():.1f})")  # fmt: skip
        if result.success_rate is not None:
            print(f"success rate {result.success_rate:.2f}")
        if goal is not None:
            print(f"target {goal}: {'met' if met else 'not met'}")
    if met is False:
        raise typer.Exit(1)


def _own(
    checkpoint: Path, episodes: int | None, goal: Target | None, success: str | None, sample: bool,
    env: str | None, threads: int | None, db: str | None,
) -> tuple[Panel, Evaluation, Record, str]:  # fmt: skip
    import dataclasses

    from mileage.training.agents import load

    checkpoint = checkpoint if checkpoint.exists() else _recorded(str(checkpoint), db) or checkpoint
    agent = load(checkpoint, threads=threads, env=env)
    usual = agent.default_panel(goal, 100 if episodes is None else episodes, success)
    panel = dataclasses.replace(usual, deterministic=not sample)
    result = agent.evaluate(panel)
    title = f"{agent.env_id}: {len(result)} held-out episodes, policy after {agent.steps:,} steps"
    return panel, result, {"checkpoint": str(checkpoint), "env": agent.env_id, "steps": agent.steps}, title


def _recorded(words: str, db: str | None) -> Path | None:
    """The last checkpoint of the newest run of the ledger that `words` name."""
    from mileage.errors import LedgerError
    from mileage.ledger.recorder import Ledger

    try:
        runs = Ledger(db).records(words)
    except (UsageError, LedgerError):  # no such ledger, and no such file
        return None
    return next((Path(run.checkpoint) for run in runs if run.checkpoint is not None), None)


def _foreign(
    policy: str, panel: str, adapter: str | None, unit_actions: bool, episodes: int | None, goal: Target | None,
    success: str | None, sample: bool,
) -> tuple[Panel, Evaluation]:  # fmt: skip
    from mileage.external.adapters import loader_of
    from mileage.external.exam import examine, find_panel

    exam = find_panel(panel, episodes, target=goal, success=success, deterministic=not sample)
    loader = None if adapter is None else loader_of(adapter)
    return exam, examine(policy, exam, unit_actions=unit_actions, loader=loader)
