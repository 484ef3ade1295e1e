"""Calibrated replays of a learner's native calls: parts of the rollout, stages of the update, products alone, threads.

All functions here are for a learner at rest (`Description.at_rest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mileage._types import Team
from mileage.description import Action, Call, Description, Layer, Parts, Stages, Work
from mileage.experiments.timing import every_call
from mileage.kernels.machine import team as threads
from mileage.kernels.machine.gauges import STREAM, nothing, product_frame, products
from mileage.kernels.machine.pointers import Frame
from mileage.profiling.limits import best, medians


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
            return {Layer.NATIVE: 1.0}
        blas = min(self.blas, self.inference) / self.total
        environments = self.environments / self.total
        return {Layer.ENVIRONMENT: environments, Layer.BLAS: blas, Layer.NATIVE: 1.0 - environments - blas}


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
        return {Layer.BLAS: share, Layer.NATIVE: 1.0 - share}


def products_of(work: Work, team: Team) -> Action:
    """A function that does the products of `work` and nothing else."""
    # Networks that are pieces of their own are alike: the products of the first stand for those of each.
    each, pieces = work.products[: len(work.products) // work.networks], work.pieces * work.networks
    frame = product_frame(each, pieces, max(1, round(work.repeats)), team.n_ranks)
    return lambda: team.run(products, frame.record, pieces)


def _empty_call(team: Team, pieces: int) -> Action:
    """A function that enters a kernel which does nothing, on as many threads as `pieces` of work would."""
    empty = np.zeros(1, np.float32)
    frame = Frame(STREAM, a=empty, b=empty, c=empty, size=0)
    return lambda: team.run(nothing, frame.record, pieces)


def rollout_parts(call: Call, parts: Parts, work: Work, team: Team, seconds: float) -> RolloutParts:
    """Time a fused rollout and its parts in alternation."""
    arms = {
        "fused": call.run,
        "environments": parts.environments,
        "inference": parts.inference,
        "storage": parts.storage,
        "products": products_of(work, team),
        "call": _empty_call(team, call.pieces),
    }
    found = medians(arms, seconds=seconds, prepare=parts.rewind)
    net = {name: max(0.0, seconds - found["call"]) for name, seconds in found.items()}
    return RolloutParts(
        found["fused"], net["environments"], net["inference"], net["storage"], net["products"], found["call"]
    )


def update_stages(call: Call, stages: Stages, work: Work, team: Team, seconds: float) -> UpdateStages:
    """Time an update and its stages in alternation."""
    turns = range(stages.period - 1, stages.period) if stages.last_is_rare else range(stages.period)

    def up_to(stage: int | None) -> Action:
        def several() -> None:
            for turn in turns:
                stages.run(stage, turn)

        return several

    arms: dict[str, Action] = {name: up_to(stage) for stage, name in enumerate(stages.names)}
    arms |= {"whole": up_to(None), "products": products_of(work, team), "call": _empty_call(team, call.pieces)}
    # Differences of the shortest times: those of medians drown in what else the machine does.
    found = best(arms, seconds=seconds)
    cumulative = [found[name] / len(turns) for name in stages.names]
    each = dict(zip(stages.names, np.diff([0.0, *cumulative]).tolist(), strict=True))
    whole = found["whole"] / len(turns)
    if stages.last_is_rare:
        rare = each[stages.names[-1]] * (1.0 - 1.0 / stages.period)
        each[stages.names[-1]] -= rare
        whole -= rare
    return UpdateStages(whole, each, max(0.0, found["products"] - found["call"]))


Scaling = Mapping[int, Mapping[str, Sequence[float]]]
"""Seconds of calls by number of threads and phase, round by round: all numbers took turns."""


def scaling(described: Description, counts: Sequence[int], seconds: float) -> dict[int, dict[str, list[float]]]:
    """Seconds of the calls that threads share out, for each number of threads, by phase."""
    on_team = described.on_team
    shared = {phase: call for phase, call in described.calls.items() if call.stages or call.parts}
    if on_team is None or not shared:
        return {}
    # The agent's own number of threads is the most it takes; other numbers are measured as they are.
    now = 0 if described.team is None else described.team.n_ranks
    teams = {count: threads.Team(count, adaptive=count == now) for count in counts}

    def arm(count: int, action: Action) -> Callable[[], None]:
        def run() -> None:
            with on_team(teams[count]):
                action()

        return run

    found: dict[int, dict[str, list[float]]] = {count: {} for count in counts}
    try:
        for phase, call in shared.items():
            arms = {str(count): arm(count, call.run) for count in counts}
            taken = every_call(arms, seconds=seconds, prepare=call.parts.rewind if call.parts else None, least_rounds=7)
            for count in counts:
                found[count][phase] = taken[str(count)]
    finally:
        for team in teams.values():
            team.close()
    return found
