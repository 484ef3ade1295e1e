"""Profiles a training run: what it did from start to end, what it is made of, and what to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from mileage.meter import Phase, PhaseClock
from mileage.profiling.end_to_end import EndToEnd, RunOptions, train, workload_of
from mileage.profiling.findings import Finding
from mileage.training.agent import agent_class

# 1: first format.
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a profile found. Immutable; `as_dict` is what the ledger and `--json` get."""

    workload: Mapping[str, Any]
    """Algorithm, environment, back end, threads, configuration, machine."""
    run: EndToEnd
    """The profiled run."""
    findings: tuple[Finding, ...] = ()
    """Diagnoses, the one to act on first."""

    @property
    def verdict(self) -> str:
        """The profile in one line."""
        return self.findings[0].line if self.findings else "NO BOTTLENECK: nothing stands out"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "workload": dict(self.workload),
            "run": dataclasses.asdict(self.run),
            "findings": [finding.as_dict() for finding in self.findings],
        }


def profile(
    algorithm: str,
    env: Any,
    *,
    steps: int | None = None,
    target: str | None = None,
    eval_every: int | None = None,
    episodes: int = 100,
    checkpoint: str | None = None,
    checkpoint_every: int = 0,
    callback: Callable[..., bool | None] | None = None,
    on_compile: Callable[[list[str]], None] | None = None,
    db: str | Literal[False] | None = False,
    name: str | None = None,
    price: float | str | None = None,
    clock: PhaseClock | None = None,
    **agent_arguments: Any,
) -> Profile:
    """Train once and say where the time went.

    Args:
        algorithm: `ppo`, `a2c`, `sac`, `td3` or `dqn`.
        env: as for `mileage.PPO`.
        steps, target, eval_every, episodes, checkpoint, checkpoint_every, callback, on_compile: as for `Agent.learn`.
        db: the ledger to record the run and its profile in; None is the default one, False none.
        name: of the run in the ledger.
        price: dollars an hour, for the ledger.
        clock: of the run, if it began earlier.
        agent_arguments: as for `mileage.PPO`: seed, preset, threads, backend, hyperparameters, …
    """
    clock = clock or PhaseClock()
    options = RunOptions(
        steps, target, eval_every, episodes, checkpoint, checkpoint_every, callback, on_compile, db, name, price
    )
    with clock.phase(Phase.INIT):
        agent = agent_class(algorithm)(env, **agent_arguments)
    with agent:
        run = train(agent, clock, options)
        return Profile(workload_of(agent), run)
