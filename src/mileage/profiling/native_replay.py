"""Calibrated replays on the native back end: parts of the rollout, stages of the update, products alone, threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from mileage.kernels.learners import actor_critic, dqn, rollout_parts, sac, td3
from mileage.kernels.learners import rollout as fused
from mileage.kernels.machine.pointers import Frame
from mileage.kernels.machine.team import Team
from mileage.profiling.limits import STREAM, best, medians, nothing, product_frame, products
from mileage.profiling.work import Work, works
from mileage.training.agent import Agent

_UPDATES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "ppo": (actor_critic.update, actor_critic.STAGES),
    "a2c": (actor_critic.update, actor_critic.STAGES),
    "impala": (actor_critic.update, actor_critic.STAGES),
    "sac": (sac.sac_update, sac.STAGES),
    "td3": (td3.td3_update, td3.STAGES),
    "dqn": (dqn.dqn_update, dqn.STAGES),
}

ON_POLICY = ("ppo", "a2c", "impala")
SIDE_BY_SIDE = ("impala",)
"""Algorithms that collect on other threads while they learn."""


@dataclass(frozen=True)
class RolloutParts:
    """Seconds of one fused rollout, and of its parts replayed alone."""

    fused: float
    environments: float
    inference: float
    storage: float
    blas: float
    """The part of inference that is matrix products."""
    call: float = 0.0
    """Entering the kernel and meeting at its end; the other parts are without it."""

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.environments + self.inference + self.storage + self.call

    @property
    def difference(self) -> float:
        """By how much the sum of the parts differs from the fused whole, as a share of it."""
        return self.total / self.fused - 1.0 if self.fused else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of layers in the fused kernel, adding up to 1."""
        if self.total <= 0.0:
            return {"native": 1.0}
        blas = min(self.blas, self.inference) / self.total
        environments = self.environments / self.total
        return {"environment": environments, "BLAS": blas, "native": 1.0 - environments - blas}


@dataclass(frozen=True)
class UpdateStages:
    """Seconds of one update, and of its stages."""

    whole: float
    """The real kernel."""
    stages: Mapping[str, float]
    blas: float
    """All matrix products alone."""

    @property
    def difference(self) -> float:
        """By how much the sum of the stages differs from the real kernel, as a share of it."""
        return sum(self.stages.values()) / self.whole - 1.0 if self.whole else 0.0

    @property
    def shares(self) -> dict[str, float]:
        """Shares of layers in the update kernel, adding up to 1."""
        share = min(1.0, self.blas / self.whole) if self.whole else 0.0
        return {"BLAS": share, "native": 1.0 - share}


class NativeReplay:
    """A native agent whose kernels can be run again, in whole and in parts, without it learning anything."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.engine = cast(Any, agent.learner)
        self.on_policy = agent.name in ON_POLICY
        # Collectors of their own collect while others learn: no rollout of the learner's is there to be replayed.
        self.fused = self.on_policy and self.engine.fused and agent.name not in SIDE_BY_SIDE
        # What the update's threads share out: both networks on every chunk, chunks, or units of a network.
        self._pieces: int = self.engine.pieces
        if agent.name in SIDE_BY_SIDE:
            self._pieces = min(self._pieces, self.engine.ranks)
        self._update_frame: Frame = self.engine.update_frame
        self._saved = [(array, array.copy()) for array in self.engine.state_arrays().values()]
        self._rates = {
            name: self._update_frame.value(name)
            for name in ("rate", "actor_rate", "critic_rate", "temperature_rate")
            if name in self._update_frame.names
        }
        # With a step of length 0 the parameters stay what they are, whatever is replayed.
        self._update_frame.set(**dict.fromkeys(self._rates, 0.0), steps=self._learned_steps())
        self.work = works(agent)
        if self.fused:
            self._collect_once()

    def _learned_steps(self) -> int:
        return int(self.engine.adam_steps if self.on_policy else self.engine.updates)

    def close(self) -> None:
        """Put everything back as it was."""
        for array, saved in self._saved:
            array[...] = saved
        self._update_frame.set(**self._rates, stage=self.last_stage)

    # The rollout

    def _collect_once(self) -> None:
        engine = self.engine
        moving = (engine.env.state, engine.env.elapsed, engine.env.rng, engine.action_rng, engine.episode)
        self._moving = [(array, array.copy()) for array in moving]
        self._obs_before = engine.env.obs.copy()
        self._run_rollout()
        self._obs_after = engine.env.obs.copy()

    def _run_rollout(self) -> None:
        engine = self.engine
        engine.team.run(fused.rollout, engine.rollout_frame.record, len(engine.episode_sums))

    def rewind(self, arm: str = "fused") -> None:
        """Put environments and random streams back to where the stored rollout began."""
        for array, start in self._moving:
            array[...] = start
        self.engine.env.obs[...] = self._obs_after if arm == "inference" else self._obs_before
        self.engine.episode_sums[:] = 0.0

    def part(self, kernel: Any) -> Callable[[], object]:
        """A function that replays one part of the rollout."""
        engine = self.engine
        return lambda: engine.team.run(kernel, engine.rollout_frame.record, len(engine.episode_sums))

    def rollout_parts(self, seconds: float) -> RolloutParts:
        """Time the fused rollout and its parts in alternation."""
        arms = {
            "fused": self._run_rollout,
            "environments": self.part(rollout_parts.environments),
            "inference": self.part(rollout_parts.inference),
            "storage": self.part(rollout_parts.storage),
            "products": self.products(self.work["rollout"]),
            "call": self.empty_call(len(self.engine.episode_sums)),
        }
        found = medians(arms, seconds=seconds, prepare=self.rewind)
        net = {name: max(0.0, seconds - found["call"]) for name, seconds in found.items()}
        return RolloutParts(
            found["fused"], net["environments"], net["inference"], net["storage"], net["products"], found["call"]
        )

    # The update

    @property
    def last_stage(self) -> int:
        """The stage that ordinary training goes to."""
        return len(_UPDATES[self.agent.name][1]) - 1

    def run_update(self, stage: int | None = None) -> None:
        """The update up to a stage, by default the last."""
        frame = self._update_frame.set(stage=self.last_stage if stage is None else stage)
        self.engine.team.run(_UPDATES[self.agent.name][0], frame.record, self._pieces)

    def products(self, work: Work) -> Callable[[], object]:
        """A function that does the products of `work` and nothing else."""
        team = self.engine.team
        # Networks that are pieces of their own are alike: the products of the first stand for those of each.
        each, pieces = work.products[: len(work.products) // work.networks], work.pieces * work.networks
        frame = product_frame(each, pieces, max(1, round(work.repeats)), team.n_ranks)
        return lambda: team.run(products, frame.record, pieces)

    def empty_call(self, pieces: int) -> Callable[[], object]:
        """A function that enters a kernel which does nothing, on as many threads as `pieces` of work would."""
        empty, team = np.zeros(1, np.float32), self.engine.team
        frame = Frame(STREAM, a=empty, b=empty, c=empty, size=0)
        return lambda: team.run(nothing, frame.record, pieces)

    def update_stages(self, seconds: float) -> UpdateStages:
        """Time the update and its stages in alternation."""
        names = _UPDATES[self.agent.name][1]
        period, last_only = self._period()
        turns = 1 if last_only else period
        steps = self._learned_steps() // period * period + (period - 1 if last_only else 0)

        def run(stage: int | None) -> Callable[[], object]:
            def several() -> None:
                for turn in range(turns):
                    self._update_frame.set(steps=steps + turn)
                    self.run_update(stage)

            return several

        arms: dict[str, Callable[[], object]] = {name: run(stage) for stage, name in enumerate(names)}
        arms |= {
            "whole": run(None),
            "products": self.products(self.work["learn"]),
            "call": self.empty_call(self._pieces),
        }
        # Differences of the shortest times: those of medians drown in what else the machine does.
        found = best(arms, seconds=seconds)
        cumulative = [found[name] / turns for name in names]
        stages = dict(zip(names, np.diff([0.0, *cumulative]).tolist(), strict=True))
        if "shuffle" in stages:
            # One of a few microseconds: by itself it would drown in the meetings of threads around it.
            stages = {"loop, barriers and shuffle": stages.pop("loop and barriers") + stages.pop("shuffle"), **stages}
        whole_seconds = found["whole"] / turns
        if last_only:
            rare = stages[names[-1]] * (1.0 - 1.0 / period)
            stages[names[-1]] -= rare
            whole_seconds -= rare
        return UpdateStages(whole_seconds, stages, max(0.0, found["products"] - found["call"]))

    def _period(self) -> tuple[int, bool]:
        """After how many updates all stages have had their turn; whether only the last stage waits for it."""
        config: Any = self.agent.config
        if self.agent.name == "td3":
            return config.policy_delay, False
        return (config.target_every, True) if self.agent.name == "dqn" else (1, False)

    # Threads

    @contextlib.contextmanager
    def on_team(self, team: Team) -> Iterator[None]:
        """Let the engine's kernels run on another team."""
        frames = [self._update_frame, *([self.engine.rollout_frame] if self.on_policy else [])]
        kept, own = [frame.array("works") for frame in frames], self.engine.team
        width = self._update_frame.value("work_floats")
        works = np.zeros((team.n_ranks, width), np.float32)
        self.engine.team = team
        for frame in frames:
            frame.set(works=works)
        try:
            yield
        finally:
            self.engine.team = own
            for frame, array in zip(frames, kept, strict=True):
                frame.set(works=array)

    def scaling(self, counts: Sequence[int], seconds: float) -> dict[int, dict[str, float]]:
        """Best seconds of rollout and update for each number of threads, by phase."""
        teams = {count: Team(count) for count in counts}

        def arm(count: int, action: Callable[[], object]) -> Callable[[], object]:
            def run() -> None:
                with self.on_team(teams[count]):
                    action()

            return run

        try:
            arms = {f"learn {count}": arm(count, self.run_update) for count in counts}
            found = best(arms, seconds=seconds)
            if self.fused:
                arms = {f"rollout {count}": arm(count, self._run_rollout) for count in counts}
                found |= best(arms, seconds=seconds, prepare=lambda _: self.rewind())
        finally:
            for team in teams.values():
                team.close()
        phases = ("learn", "rollout") if self.fused else ("learn",)
        return {count: {phase: found[f"{phase} {count}"] for phase in phases} for count in counts}
