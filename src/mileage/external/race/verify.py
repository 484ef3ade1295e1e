"""Checking a cost record by repeating it: our own runs, seed by seed, on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from mileage.errors import UsageError
from mileage.external.race.cost_record import episodes_digest
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Target
from mileage.measure import PhaseClock
from mileage.records import ReadRecord, Record
from mileage.tables import Table
from mileage.training.agents import agent_class


@dataclass(frozen=True)
class Repeated:
    """A seed that was trained again here."""

    arm: str
    seed: int
    there_seconds: float
    """To the target, or to the end without one, as the record has it."""
    here_seconds: float
    usd_here: float
    """At the price given here, or else the record's."""
    evaluations: int
    """How many were compared."""
    differs_at: int | None
    """The first step whose episodes are not the same bit for bit; None if all are."""

    @property
    def same(self) -> bool:
        """Whether every evaluation came out bit for bit."""
        return self.differs_at is None and self.evaluations > 0

    def as_dict(self) -> Record:
        """Plain data."""
        return vars(self) | {"same": self.same}


def repeat(
    record: ReadRecord, *, arm: str | None = None, seeds: Sequence[int] | None = None,
    usd_per_hour: float | None = None, threads: int | None = None, tell: Callable[[str], None] = lambda _: None,
) -> list[Repeated]:  # fmt: skip
    """Train again what a checked record says that our recipes came to.

    Args:
        record: as `read_record` gives it.
        arm: of one arm alone; all recipes of ours by default.
        seeds: which; the first of each arm by default.
        usd_per_hour: what this machine costs; the record's price by default.
        threads: to use at most; as many as were used there by default.
        tell: gets a sentence for every seed.
    """
    ours = [each for each in record["arms"] if each["recipe"] is not None and each["revision"] is None]
    if arm is not None:
        ours = [each for each in ours if each["name"] == arm]
        if not ours:
            raise UsageError(f"arm {arm!r} is no recipe of ours in the record: only those can be repeated")
    found = []
    for each in ours:
        runs = {run["seed"]: run for run in each["runs_detail"]}
        for seed in [min(runs)] if seeds is None else seeds:
            if seed not in runs:
                raise UsageError(f"seed {seed} is not among those of arm {each['name']!r}: {', '.join(map(str, runs))}")
            tell(f"{each['name']}, seed {seed}: training again")
            rate = record["price"]["usd_per_hour"] if usd_per_hour is None else usd_per_hour
            found.append(_repeated(each, runs[seed], record, rate, threads or each["threads"]))
    return found


class _Again(NamedTuple):
    """What a run came to here."""

    digests: dict[int, str]
    """Of the episodes of every evaluation, by its step."""
    steps_to_target: int | None
    seconds: float


def _repeated(arm: ReadRecord, there: ReadRecord, record: ReadRecord, rate: float, threads: int | None) -> Repeated:
    recipe = arm["recipe"]
    if ":" in recipe["env"] or ":" in recipe["algorithm"]:
        code = f"{recipe['algorithm']} on {recipe['env']}"
        raise UsageError(f"arm {arm['name']!r} names code ({code}): a record's word is no reason to run it")
    # A process of its own, whose start is on the clock as it was there.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        here = process.submit(_trained, recipe, there, record, threads).result()
    both = [each for each in there["evaluations"] if each["step"] in here.digests]
    differs = next((each["step"] for each in both if each["episodes_sha256"] != here.digests[each["step"]]), None)
    if there["steps_to_target"] != here.steps_to_target and differs is None:
        differs = there["steps_to_target"] or here.steps_to_target
    told = there["wall_to_target"] if there["wall_to_target"] is not None else there["wall_seconds"]
    return Repeated(arm["name"], there["seed"], told, here.seconds, here.seconds / 3600.0 * rate, len(both), differs)


def _trained(recipe: ReadRecord, there: ReadRecord, record: ReadRecord, threads: int | None) -> _Again:
    """The same training, from the start of this process."""
    clock = PhaseClock.for_run()
    panel = Panel.from_dict(record["panel"]["definition"])
    config: dict[str, Any] = {name: _tuples(value) for name, value in recipe["config"].items()}
    make = agent_class(recipe["algorithm"])
    with make(
        recipe["env"], seed=there["seed"], preset="none", threads=threads, env_kwargs=dict(panel.env_kwargs), **config
    ) as agent:
        run = agent.learn(
            recipe["step_budget"], target=Target.parse(record["target"]), panel=panel, resources=False, clock=clock,
            eval_every=recipe["eval_every_steps"],
        )  # fmt: skip
    digests = {point.steps: episodes_digest(point.evaluation) for point in run.evaluations}
    return _Again(digests, run.steps_to_target, run.cost("s"))


def _tuples(value: object) -> object:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def repeated_table(found: Sequence[Repeated]) -> Table:
    """A row per seed: the same or not, and what it costs here."""
    header = (
        "arm",
        "seed",
        "bit for bit",
        "evaluations",
        "seconds there",
        "seconds here",
        "here / there",
        "dollars here",
    )
    rows = [
        (each.arm, each.seed, "the same" if each.same else f"differs from step {each.differs_at}", each.evaluations,
         f"{each.there_seconds:.2f}", f"{each.here_seconds:.2f}", f"{each.here_seconds / each.there_seconds:.2f}",
         f"{each.usd_here:.4g}")
        for each in found
    ]  # fmt: skip
    return Table.of(header, rows, left=("arm", "bit for bit"), key="repeated")
