"""An executor that trains nothing: every setup's speed and need are written down, and time is counted, not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sample_rows import make_end, make_phases, make_run

from mileage.ledger.runs import RecordedRun
from mileage.measure import Arm, Outcome, Turn
from mileage.profiling.tuning.runs import Setup, Trial

Script = Callable[[Setup, int], tuple[float, float]]
"""Setup and seed to (steps per second, steps to target); infinitely many steps if it is never reached."""


def plain_setup(**changes: object) -> Setup:
    """A PPO-like setup that no environment stands behind."""
    config = {
        "n_envs": 1,
        "n_steps": 1024,
        "epochs": 10,
        "minibatch": 16,
        "learning_rate": 2.5e-3,
        "gamma": 0.95,
        "hidden": (32, 32),
    }
    setup = Setup("ppo", "Nowhere-v0", config, total_steps=1_000_000, eval_every=1024, env_id="Nowhere-v0")
    return setup.but(**changes)


@dataclass
class Scripted:
    """Plays a script; `seconds` is the time of day."""

    script: Script
    phases: dict[str, float] = field(default_factory=lambda: {"learn": 0.8, "rollout": 0.2})
    prepare_seconds: float = 0.0
    interrupt_at: float = float("inf")
    seconds: float = 0.0
    prepared: list[str] = field(default_factory=list)
    log: list[Trial] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def prepare(self, arm: Arm[Setup], kind: str) -> None:
        setup = arm.subject
        if setup.key not in self.prepared:
            self.prepared.append(setup.key)
            self.seconds += self.prepare_seconds

    def attempt(self, arm: Arm[Setup], turn: Turn) -> Trial:
        setup, cap_seconds = arm.subject, turn.limit_seconds
        speed, need = self.script(setup, turn.round)
        if speed <= 0:
            trial = Trial(
                arm.name, 0.0, outcome=Outcome.FAILED, round=turn.round, cap_seconds=cap_seconds,
                reason="UsageError: it cannot be built",
            )  # fmt: skip
            self.log.append(trial)
            return trial
        whole = min(need, setup.total_steps) / speed
        reached = need <= setup.total_steps and whole <= cap_seconds
        took = min(whole, cap_seconds)
        if self.seconds + took > self.interrupt_at:
            raise KeyboardInterrupt
        self.seconds += took
        trial = Trial(
            arm.name,
            took,
            outcome=Outcome.OK if reached else Outcome.FAILED,
            round=turn.round,
            cap_seconds=cap_seconds,
            steps=max(int(took * speed), 1),
            value=0.0 if reached else -1.0,
            reason="" if reached else "stopped",
            run=self._recorded(took, speed),
        )
        self.log.append(trial)
        return trial

    def _recorded(self, took: float, speed: float) -> RecordedRun:
        """A run of `took` seconds without start-up and evaluation."""
        run = make_run(run_id="scripted", launched_at=0.0)
        end = make_end(
            run, env_steps=round(took * speed), wall_seconds=took, train_seconds=took, eval_seconds=0.0,
            init_seconds=0.0, compile_seconds=0.0,
        )  # fmt: skip
        seconds = {name: share * took for name, share in self.phases.items()}
        return RecordedRun(run, end, phase_rows=tuple(make_phases(run, 1, **seconds)))
