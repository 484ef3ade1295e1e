"""How `--help` reads: options in groups, an example for every command, no word for the type of a switch."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

EXAMPLES = {
    "train": 'mileage train ppo CartPole-v1 --target "mean_return>=475" --seeds 5 --price 2.20',
    "eval": "mileage eval ppo-CartPole-v1 --episodes 100",
    "envs": "mileage envs --all",
    "check": "mileage env check CartPole-v1",
    "profile": "mileage profile ppo CartPole-v1 --try",
    "record": "mileage record --name mine -- python train.py",
    "race": "mileage race race.toml",
    "verify": "mileage verify record.json",
    "warmup": "mileage warmup CartPole-v1",
    "bench": "mileage bench gae rollout",
    "doctor": "mileage doctor",
    "report": "mileage report ppo-CartPole-v1 --open",
    "serve": "mileage serve --open",
    "watch": "mileage watch ppo-CartPole-v1",
    "rl-bench": "mileage rl-bench --project path/to/project",
    "ledger list": "mileage ledger list algorithm=ppo,state=reached",
    "ledger show": "mileage ledger show 20260901-142200",
    "ledger compare": "mileage ledger compare name=fast name=slow",
    "ledger export": "mileage ledger export name=fast --format csv --out runs.csv",
    "ledger import": "mileage ledger import progress.csv --env CartPole-v1 --seed 0",
    "ledger doctor": "mileage ledger doctor",
    "ledger backup": "mileage ledger backup copy.db",
    "ledger void": 'mileage ledger void 20260901-142200 --reason "wrong environment"',
    "ledger annotate": 'mileage ledger annotate 20260901-142200 "new machine"',
    "ledger redact": "mileage ledger redact 20260901-142200 command",
    "ledger reconcile": "mileage ledger reconcile bill.csv",
}
GROUPS = {
    "Training": "steps seeds seed preset set_ resume threads processes env_kwargs backend policy device compile_",
    "Target": "target success episodes eval_every",
    "Recording and price": "name price instance spot db ledger",
    "Output": "out checkpoint_every keep_best tensorboard json_output quiet",
    "Where it runs": "on cores memory gpus retries patience emit",
}
"""The options of `train`, by heading."""


class _Switches:
    """What has options, of which switches show no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, that for help among them."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            each.metavar = "" if getattr(each, "is_flag", False) else each.metavar
        return found


class Group(_Switches, TyperGroup):
    """Commands below a word."""


class Command(_Switches, TyperCommand):
    """A command whose options are in groups where there are many."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        grouped = {name: heading for heading, names in GROUPS.items() for name in names.split()}
        for each in self.params if self.name == "train" else ():
            option: Any = each
            if option.param_type_name == "option":
                option.rich_help_panel = grouped.get(option.name)


def explain(app: typer.Typer, prefix: str = "") -> None:
    """Give every command of `app` its example, and help that is easy to read."""
    app.info.cls = Group
    for info in app.registered_commands:
        name = info.name or str(getattr(info.callback, "__name__", ""))
        info.epilog = f"Example: {EXAMPLES[prefix + name]}"
        info.cls = info.cls if issubclass(info.cls or TyperCommand, Command) else Command
