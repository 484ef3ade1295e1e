"""Setups under trial, ours and those of programs, with their runs, and how they are judged against the baseline.

Arms take turns: the program as it is, and with one variable of its environment or one argument changed.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from mileage.errors import UsageError
from mileage.measure import (
    FEWEST_RUNS,
    Arm,
    Budget,
    Estimate,
    ExpectedCost,
    Interval,
    Outcome,
    RunCosts,
    Sample,
    Turn,
    Verdict,
    compare_costs,
    median_ratio_estimate,
    run,
    schedule,
    verdict_of_ratio,
)
from mileage.measure.cost import DEFAULT_DRAWS, expected_cost, posterior_draws
from mileage.profiling.tuning.runs import Setup, Trial
from mileage.records import Record
from mileage.tables import Table

BASELINE = "baseline"
# Differences below this are not called a gain, in wall-clock or in steps per second.
NOTABLE = 0.05


class Effect(StrEnum):
    """What a fix did, as far as the runs with it show."""

    CHEAPER = "cheaper"
    """The interval of the ratio excludes 1."""
    SEEMS_CHEAPER = "seems cheaper"
    """It was cheaper in too few runs to be sure."""
    FASTER_ONLY = "faster, not cheaper"
    """More steps per second, and yet no less wall-clock to the target."""
    NO_GAIN = "no gain"
    SEEMS_DEARER = "seems dearer"
    """It was dearer in too few runs to be sure."""
    DEARER = "dearer"
    TARGET_MISSED = "missed the target"
    """Not reached in the time that the baseline took."""
    STOPPED_EARLY = "stopped early"
    """Another fix was so much cheaper that this one was not given the baseline's time."""
    ERROR = "error"
    """It could not be trained."""
    UNTRIED = "not tried"
    """The budget was used up before."""


@dataclass
class Candidate:
    """A setup under trial, with its runs so far."""

    name: str
    setup: Setup
    fixes: tuple[str, ...] = ()
    """Names of the fixes that lead from the baseline to it."""
    title: str = ""
    estimated_gain: float | None = None
    """Share of the wall-clock that was expected to be saved; None where nothing was expected."""
    same_learning: bool = False
    """Whether it learns as the baseline does, step for step, so that runs can be compared seed by seed."""
    adopted: bool = False
    """Whether it became the best arm when it was tried."""
    prior: float = 0.0
    """What decides when it is tried, where nothing was estimated."""
    trials: list[Trial] = field(default_factory=list)
    """In the order in which they ran."""

    @property
    def arm(self) -> Arm[Setup]:
        """What an executor gets of it."""
        return Arm(self.name, self.setup, self.title)

    def on(self, seeds: Iterable[int]) -> list[Trial]:
        """Its runs with these seeds."""
        wanted = set(seeds)
        return [trial for trial in self.trials if trial.seed in wanted]

    def has(self, seed: int) -> bool:
        """Whether it ran with this seed."""
        return any(trial.seed == seed for trial in self.trials)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds it ran with."""
        return tuple(trial.seed for trial in self.trials)

    @property
    def cost(self) -> float:
        """Expected seconds to target; infinite if no run reached it."""
        return cost_of(self.trials)

    @property
    def mean_seconds(self) -> float:
        """What one run takes, reached or not; 0 without runs."""
        return statistics.fmean(trial.seconds for trial in self.trials) if self.trials else 0.0


def cost_of(trials: Sequence[Trial]) -> float:
    """Seconds of all runs over the number that reached the target; infinite if none did."""
    reached = sum(trial.reached for trial in trials)
    return sum(trial.seconds for trial in trials) / reached if reached else float("inf")


def standing(trials: Sequence[Trial]) -> tuple[float, float]:
    """Smaller is better: expected seconds to target, and where no run reached it, how far from it they stopped."""
    values = [trial.value for trial in trials if trial.value is not None]
    return cost_of(trials), -statistics.fmean(values) if values else float("inf")


def run_costs(trials: Sequence[Trial], setup: Setup) -> RunCosts:
    """The runs as the statistics want them, with what a run costs that never reaches the target."""
    seconds = [max(trial.seconds, 1e-9) for trial in trials]
    cap = max(trial.cap_seconds for trial in trials)
    per_step = [trial.seconds / trial.steps for trial in trials if trial.steps > 0]
    whole = statistics.median(per_step) * setup.total_steps if per_step else cap
    return RunCosts.of(seconds, [trial.reached for trial in trials], max(min(cap, whole), *seconds, 1e-9))


def median_speed(trials: Sequence[Trial], *, steady: bool) -> float | None:
    """Median steps per second, with or without start-up and compilation; None without runs."""
    speeds = [trial.steady_steps_per_second if steady else trial.steps_per_second for trial in trials if trial.steps]
    return statistics.median(speeds) if speeds else None


@dataclass(frozen=True)
class ArmComparison:
    """Two arms on the same seeds."""

    baseline: ExpectedCost
    arm: ExpectedCost
    ratio: float | None
    """The baseline's expected cost to target over the arm's; None if one of them never reached it."""
    interval: Interval | None
    """Of the ratio; None with fewer than 3 runs in an arm."""
    at_least: float | None
    """Lower end of the ratio where the baseline never reached the target and the ratio itself is unknown."""
    cheaper: bool
    """Whether the arm is cheaper beyond doubt."""
    dearer: bool
    statement: str
    seed_by_seed: bool
    """Whether the interval is of the mean ratio of runs with the same seed."""
    speed: float | None
    """The arm's steady steps per second over the baseline's."""

    @property
    def gain(self) -> float | None:
        """Share of the baseline's cost that is saved; None where the ratio is unknown."""
        return None if self.ratio is None else 1.0 - 1.0 / self.ratio

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """The interval of `gain`; None where one of its ends is unknown."""
        if self.interval is None or self.interval.low <= 0:
            return None
        return 1.0 - 1.0 / self.interval.low, 1.0 - 1.0 / self.interval.high

    def as_dict(self) -> Record:
        """Plain data."""
        interval = None if self.interval is None else self.interval.as_list()
        plain = {name: getattr(self, name) for name in ("cheaper", "dearer", "statement", "seed_by_seed", "speed")}
        found = {"baseline": _cost_dict(self.baseline), "arm": _cost_dict(self.arm), "ratio": self.ratio}
        return found | {"ratio_interval": interval, "ratio_at_least": self.at_least} | plain


def compare(baseline: Sequence[Trial], before: Setup, arm: Sequence[Trial], after: Setup) -> ArmComparison:
    """Hold an arm's runs against the baseline's: expected cost to target, failures counted."""
    a, b = run_costs(baseline, before), run_costs(arm, after)
    verdict = compare_costs(a, b)
    speeds = median_speed(arm, steady=True), median_speed(baseline, steady=True)
    few = (a.spent / a.successes) / (b.spent / b.successes) if a.successes and b.successes else None
    enough = min(len(a), len(b)) >= FEWEST_RUNS
    return ArmComparison(
        baseline=expected_cost(a),
        arm=expected_cost(b),
        ratio=few if verdict.ratio is None else verdict.ratio,
        interval=verdict.interval,
        at_least=_at_least(a, b) if enough and b.successes and not a.successes else None,
        cheaper=verdict.verdict is Verdict.B_CHEAPER,
        dearer=verdict.verdict is Verdict.A_CHEAPER,
        statement=verdict.statement,
        seed_by_seed=False,
        speed=speeds[0] / speeds[1] if speeds[0] and speeds[1] else None,
    )


def paired(found: ArmComparison, baseline: Sequence[Trial], arm: Sequence[Trial]) -> ArmComparison:
    """The same comparison with the interval of the mean ratio seed by seed, where all of at least 3 pairs arrived.

    For arms that learn the same: how long learning takes then differs from seed to seed in both alike, and cancels.
    """
    theirs = {trial.seed: trial for trial in baseline}
    pairs = [(theirs[trial.seed], trial) for trial in arm if trial.seed in theirs]
    if len(pairs) < FEWEST_RUNS or not all(a.reached and b.reached for a, b in pairs):
        return found
    from scipy.stats import t

    logs = np.log([a.seconds / b.seconds for a, b in pairs])
    half = float(t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    middle = float(logs.mean())
    interval = Interval(float(np.exp(middle - half)), float(np.exp(middle + half)), 0.95)
    ratio = float(np.exp(middle))
    verdict = verdict_of_ratio(Estimate(ratio, interval))
    cheaper, dearer = verdict is Verdict.B_CHEAPER, verdict is Verdict.A_CHEAPER
    return replace(found, ratio=ratio, interval=interval, cheaper=cheaper, dearer=dearer, seed_by_seed=True)


def _at_least(a: RunCosts, b: RunCosts) -> float:
    """Lower 2.5 % of the ratio, where the draws of A are a lower bound because it never reached the target."""
    rng = np.random.default_rng(0)
    with np.errstate(divide="ignore"):
        logs = np.log(posterior_draws(a, DEFAULT_DRAWS, rng)) - np.log(posterior_draws(b, DEFAULT_DRAWS, rng))
    return float(np.exp(np.quantile(logs, 0.025)))


def judge(arm: Candidate, baseline: Candidate) -> tuple[Effect, ArmComparison | None]:
    """What the experiment says about an arm, from the seeds that both ran with."""
    mine = arm.trials
    theirs = baseline.on(arm.seeds)
    if not mine or not theirs:
        return Effect.UNTRIED, None
    if all(trial.steps == 0 for trial in mine):
        return Effect.ERROR, None
    found = compare(theirs, baseline.setup, mine, arm.setup)
    if arm.same_learning:
        found = paired(found, theirs, mine)
    faster = found.speed is not None and found.speed >= 1.0 + NOTABLE
    if not any(trial.reached for trial in mine):
        allowed = max(trial.cap_seconds for trial in mine) >= min(trial.seconds for trial in theirs)
        if not allowed:
            return Effect.STOPPED_EARLY, found
        return (Effect.FASTER_ONLY if faster else Effect.TARGET_MISSED), found
    if found.cheaper:
        return Effect.CHEAPER, found
    # A baseline that never got there has no ratio; what its arm did, it did for less than was spent on the baseline.
    gain = found.gain if found.gain is not None else 1.0 - cost_of(mine) / sum(trial.seconds for trial in theirs)
    if gain >= NOTABLE:
        return Effect.SEEMS_CHEAPER, found
    if faster:
        return Effect.FASTER_ONLY, found
    if found.dearer:
        return Effect.DEARER, found
    return (Effect.SEEMS_DEARER if gain <= -NOTABLE else Effect.NO_GAIN), found


def _cost_dict(cost: ExpectedCost) -> Record:
    interval = None if cost.interval is None else cost.interval.as_list()
    found = {"seconds": cost.value, "interval": interval, "runs": cost.runs, "reached": cost.successes}
    return found | {"spent_seconds": cost.spent, "statement": cost.statement}


# --- `mileage profile --try -- python train.py`: what can be changed from outside, measured by running the program ---
AS_IT_IS = "as it is"
_TEMPLATE = re.compile(r"\{([^{}]*)\}")
_MOST_ARMS = 24
_MOST_ROUNDS = 30
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_XLA = "XLA_FLAGS"


@dataclass(frozen=True)
class Start:
    """How a program is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attempted:
    """What the arms took."""

    samples: tuple[Sample, ...]
    arms: tuple[Arm[Start], ...]
    interrupted: bool = False

    def seconds(self, arm: str) -> list[float]:
        """Of its good runs."""
        return [each.wall_seconds for each in self.samples if each.arm == arm and each.outcome is Outcome.OK]

    def ratio(self, arm: str) -> Estimate | None:
        """How long it takes, as a multiple of the program as it is; None without good runs of both."""
        mine, theirs = self.seconds(arm), self.seconds(AS_IT_IS)
        return median_ratio_estimate(mine, theirs) if mine and theirs else None

    def words(self, arm: str) -> str:
        """How it compares; nothing is called faster whose interval reaches to no difference."""
        ratio = self.ratio(arm)
        if arm == AS_IT_IS or ratio is None or ratio.value is None:
            failed = [each for each in self.samples if each.arm == arm and each.outcome is not Outcome.OK]
            return f"failed: {failed[0].diagnostic}" if failed and not self.seconds(arm) else ""
        if ratio.interval is None:
            return f"too few rounds to say: at least {FEWEST_RUNS} are needed"
        found = verdict_of_ratio(ratio)
        return {Verdict.A_CHEAPER: "faster", Verdict.B_CHEAPER: "slower"}.get(found, "no difference shown")

    def table(self) -> Table:
        """One row per arm."""
        rows = []
        for arm in self.arms:
            mine, ratio = sorted(self.seconds(arm.name)), self.ratio(arm.name)
            middle = f"{mine[len(mine) // 2]:.2f}" if mine else "–"
            shown = "" if ratio is None or ratio.value is None or arm.name == AS_IT_IS else f"{ratio.value:.2f}"
            if shown and ratio is not None and ratio.interval is not None:
                shown += f" [{ratio.interval.low:.2f}, {ratio.interval.high:.2f}]"
            rows.append((arm.name, len(mine), middle, shown, self.words(arm.name)))
        return Table.of(("start", "runs", "median s", "times as long", "so"), rows,
                        left={"start", "so", "times as long"}, title="Tried",
                        note="Arguments may change what is learned: seconds say nothing of that.",
                        key="tried")  # fmt: skip

    def as_dict(self) -> Record:
        """As plain data, every run included."""
        return {"arms": [{"name": arm.name, "command": list(arm.subject.command),
                          "environment": dict(arm.subject.environment), "seconds": self.seconds(arm.name),
                          "result": self.words(arm.name)} for arm in self.arms],
                "interrupted": self.interrupted}  # fmt: skip


def starts(command: Sequence[str], templates: Sequence[str] = (), *, uses_jax: bool = False) -> tuple[Arm[Start], ...]:
    """The program as it is, with one thread and with as many as there are cores, and with the arguments of `templates`.

    A template is arguments with choices in braces, such as `--num-envs {4,8,16}`: they replace arguments of the same
    name, or are added.
    """
    plain = tuple(command)
    arms = [Arm(AS_IT_IS, Start(plain))]
    cores = len(os.sched_getaffinity(0))
    for number in sorted({1, cores}):
        environment = {name: str(number) for name in _THREADS}
        if uses_jax and number == 1:
            environment[_XLA] = f"{os.environ.get(_XLA, '')} --xla_cpu_multi_thread_eigen=false".strip()
        if any(os.environ.get(name) != value for name, value in environment.items()):
            about = " ".join(f"{name}={value}" for name, value in environment.items())
            arms.append(Arm(f"{number} thread{'s' * (number > 1)}", Start(plain, environment), about))
    for template in templates:
        arms += [Arm(" ".join(words), Start(with_arguments(plain, words))) for words in chosen(template)]
    if len(arms) > _MOST_ARMS:
        raise UsageError(f"--try-arg makes {len(arms)} starts, at most {_MOST_ARMS} can be tried: give fewer choices")
    return tuple({arm.name: arm for arm in arms}.values())


def chosen(template: str) -> list[tuple[str, ...]]:
    """Every choice of a template as words."""
    parts = _TEMPLATE.split(template)
    if len(parts) == 1 or "{" in "".join(parts[::2]) or "}" in "".join(parts[::2]) or not all(parts[1::2]):
        raise UsageError(f'--try-arg {template!r} cannot be read: write choices in braces, as "--num-envs {{4,8,16}}"')
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return [tuple("".join(each).split()) for each in itertools.product(*choices)]


def with_arguments(command: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """`command` with arguments changed: values of options that are there already, or else added at its end."""
    found, new = list(command), list(words)
    while new:
        name, equals, _ = new[0].partition("=")
        size = 1
        while size < len(new) and not (new[size].startswith("-") and not new[size][1:2].isdigit()) and not equals:
            size += 1
        mine, new = new[:size], new[size:]
        at = next((i for i, word in enumerate(found) if name.startswith("-") and word.partition("=")[0] == name), None)
        if at is None:
            found += mine
        elif "=" in found[at]:
            found[at : at + 1] = mine
        else:
            found[at : at + size] = mine
    return tuple(found)


class ProgramExecutor:
    """Runs a program to its end, its output left unread."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def prepare(self, arm: Arm[Start], kind: str) -> None:
        """Nothing: the run that was watched has warmed what can be warm."""

    def attempt(self, arm: Arm[Start], turn: Turn) -> Sample:
        """Start it and wait."""
        before, began = os.times(), time.monotonic()
        done = subprocess.run(
            arm.subject.command, env=os.environ | dict(arm.subject.environment), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        wall, after = time.monotonic() - began, os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        outcome = Outcome.OK if done.returncode == 0 else Outcome.FAILED
        why = "" if outcome is Outcome.OK else f"exit code {done.returncode}" + (f", {said[-1][:200]}" if said else "")
        return Sample(arm.name, wall, cpu, outcome, diagnostic=why)


def attempt(
    arms: Sequence[Arm[Start]], *, budget_seconds: float, say: Callable[[str], None] = lambda _: None,
    executor: ProgramExecutor | None = None,
) -> Attempted:  # fmt: skip
    """Run the arms in turn until the budget is spent, once each at least; Ctrl-C keeps what is known."""
    kept: list[Sample] = []

    def keep(sample: Sample, done: int, of: int) -> None:
        kept.append(sample)
        say(f"{sample.arm}: {sample.wall_seconds:.1f} s" + (f" ({sample.diagnostic})" if sample.diagnostic else ""))

    budget = Budget(budget_seconds, least_rounds=1)
    turns = schedule([arm.name for arm in arms], _MOST_ROUNDS, seed=0)
    try:
        run(arms, executor or ProgramExecutor(), turns, budget=budget, on_sample=keep)
    except KeyboardInterrupt:
        return Attempted(tuple(kept), tuple(arms), interrupted=True)
    return Attempted(tuple(kept), tuple(arms))
