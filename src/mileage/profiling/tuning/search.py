"""How fixes are searched: stages, each within its share of the budget.

1. *Baseline*: one run, capped, says where the time goes and what to beat.
2. *All at once*: the fixes that seldom do harm, together. Where the baseline is slow, this shortens all further runs.
3. *Each fix alone*: baseline and fixes take turns on the same seeds. Rounds go on while there is time; where a round of
   all would take too long, the dearer half is dropped (successive halving, Jamieson and Talwalkar, 2016).
4. *Combinations*: fixes are stacked on the best arm one by one. A challenger meets the incumbent seed by seed and is
   stopped once it has used up what the incumbent needed (adaptive capping, Hutter et al., 2009).
5. *One left out*: the best arm without each of its changes in turn says what the change is worth, where runs are short.
   A change that is worth nothing is taken back.
6. *Verification*: the winner of a search is partly the luckiest, so it meets the baseline again, in turns, on seeds
   that no earlier stage saw. Only this comparison decides.

A run that is stopped at its cap or at the end of its step budget has failed, and its cost counts. A run that the end of
the search's own budget cut short says nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from mileage.errors import UsageError
from mileage.measure import Executor, Turn
from mileage.profiling.model import Finding
from mileage.profiling.tuning.arms import BASELINE, NOTABLE, ArmComparison, Candidate, compare, cost_of, standing
from mileage.profiling.tuning.changes import Fix, FixEvidence
from mileage.profiling.tuning.runs import Setup, Trial

# A run of the baseline may take this share of the budget: one to begin with, three to verify against, time to search.
BASELINE_CAP_SHARE = 1 / 8
# Verification gets the time of this many baseline runs, within these shares of the budget; fewer of them show a gap as
# large as the one given.
_RESERVED_RUNS, _RESERVED_FOR_A_LARGE_GAP, _LARGE_GAP = 6, 4, 10.0
_LEAST_RESERVED, _MOST_RESERVED = 0.25, 0.5
# Of the rest, fixes alone get this share and combinations what is left. Where that is too short for one run of each,
# they get the smaller share, and each of them only the time in which it would have to be twice as cheap.
_SCREENING_SHARE, _SHORT_SHARE = 0.6, 0.4
_SHORT_SLACK = 0.5
_ROUNDS = 8
# A fix alone is stopped at this many times the baseline's cost, or the best arm's where time is short.
_SLACK, _SLACK_TO_BEST = 1.25, 1.5
# In later rounds, of arms that have reached the target, it is given this many times the baseline's slowest run.
_SLACK_LATER = 3.0
_RACE_SEEDS = 3
_RACE_SLACK = 1.15
# A challenger must be this much cheaper: smaller gains on three seeds are luck.
_RACE_MARGIN = 0.95
# What is worth so much that the best arm takes this many times as long without it need not be known better.
_WORTH_KNOWING = 4.0
# Leaving changes out gets this share of the time of the combinations.
_LEAVING_OUT_SHARE = 0.25
# Changed together, so that a batch or the number of updates per step stays what it was.
_TOGETHER = ("n_envs", "n_steps", "train_every", "gradient_steps")
_FEWEST_PAIRS, _MOST_PAIRS = 3, 8
_MOST_REPEATS = 5
# Seeds of the verification are this far from those of the search.
_FRESH = 1000
# A step budget this many times the most that a run needed ends runs that would never get there.
_STEP_BUDGET = 4


@dataclass(frozen=True)
class SearchNote:
    """Progress of a search."""

    stage: str
    text: str
    elapsed: float
    budget: float
    trial: Trial | None = None


class _OutOfTimeError(Exception):
    """A stage has used up its time."""


class Search:
    """The state of a search; what it holds is valid whenever it is interrupted."""

    def __init__(
        self,
        setup: Setup,
        executor: Executor[Setup, Trial],
        budget: float,
        fixes: tuple[Fix, ...],
        findings: tuple[Finding, ...],
        first_seed: int,
        cores: int,
        watch: Callable[[SearchNote], None] | None,
    ) -> None:
        self.executor, self.budget, self.fixes, self.first_seed = executor, budget, fixes, first_seed
        self.watch = watch
        self.baseline = Candidate(BASELINE, setup, title="as it was")
        self.evidence = FixEvidence.of({}, cores, findings)
        self.alone: list[Candidate] = []
        self.combined: list[Candidate] = []
        self.without: list[Candidate] = []
        self.best: Candidate | None = None
        self.verification: ArmComparison | None = None
        self.verified: list[Trial] = []
        self.cut: list[Trial] = []
        self.cap = budget * BASELINE_CAP_SHARE
        self.runs = 0
        # Compiling once is no part of what is searched for.
        executor.prepare(self.baseline.arm, "")
        self.start = executor.now()
        self.stage, self.stage_end = "baseline", self.start + budget

    def run(self) -> bool:
        """All stages; returns whether the user interrupted them."""
        try:
            stages = (self._measure_baseline, self._leap, self._try_alone, self._combine, self._leave_out)
            for stage in (*stages, self._try_rest, self._verify):
                with suppress(_OutOfTimeError):
                    stage()
        except KeyboardInterrupt:
            return True
        finally:
            self._conclude()
        return False

    # Running

    def _left(self) -> float:
        return self.stage_end - self.executor.now()

    def _begin(self, stage: str, end: float) -> None:
        self.stage, self.stage_end = stage, end

    def _trial(self, arm: Candidate, seed: int, cap: float) -> Trial:
        """Run an arm once and keep the run, unless it is the end of the stage that stopped it."""
        self.executor.prepare(arm.arm, "")
        left = self._left()
        if left <= 0:
            raise _OutOfTimeError
        turn = Turn(arm.name, round=seed, order=self.runs, limit_seconds=min(cap, left))
        trial = self.executor.attempt(arm.arm, turn).at(turn)
        self.runs += 1
        short = left < cap and not trial.reached and trial.seconds >= left
        (self.cut if short else arm.trials).append(trial)
        self._tell(trial)
        if short:
            raise _OutOfTimeError
        return trial

    def _tell(self, trial: Trial) -> None:
        if self.watch is not None:
            how = f"{trial.seconds:.2f} s to target" if trial.reached else f"not reached ({trial.reason})"
            elapsed = self.executor.now() - self.start
            self.watch(SearchNote(self.stage, f"{trial.arm}, seed {trial.seed}: {how}", elapsed, self.budget, trial))

    # Stages

    def _measure_baseline(self) -> None:
        trial = self._trial(self.baseline, self.first_seed, self.cap)
        if trial.steps == 0:
            raise UsageError(f"there is nothing to compare with, as the baseline cannot be trained: {trial.reason}")
        self.evidence = FixEvidence.of(trial.phases, self.evidence.cores, self.evidence.findings)
        self.alone = self._candidates()

    def _reserve(self) -> float:
        """Seconds kept for verification."""
        gap = self.baseline.mean_seconds / min(
            (arm.cost for arm in (*self.alone, *self.combined)), default=float("inf")
        )
        wanted = (_RESERVED_FOR_A_LARGE_GAP if gap >= _LARGE_GAP else _RESERVED_RUNS) * self.baseline.mean_seconds
        return min(max(wanted, _LEAST_RESERVED * self.budget), _MOST_RESERVED * self.budget)

    def _candidates(self) -> list[Candidate]:
        """Each applicable fix alone, the most promising first; two fixes that come to the same are one."""
        arms: list[Candidate] = []
        seen = {self.baseline.setup.key}
        for fix in self.fixes:
            setup = fix.apply(self.baseline.setup, self.evidence)
            if setup is None or setup.key in seen:
                continue
            seen.add(setup.key)
            gain = fix.expected_gain(self.baseline.setup, setup, self.evidence)
            arm = Candidate(
                fix.name, setup, (fix.name,), fix.title, gain, same_learning=fix.same_learning, prior=fix.prior
            )
            arms.append(arm)
        return sorted(arms, key=lambda arm: -_expected(arm))

    def _search_end(self) -> float:
        return self.start + self.budget - self._reserve()

    def _leap(self) -> None:
        """Everything that seldom does harm, at once; then the same again on top; then only what was estimated to help.

        One run each: where the baseline is slow this is the soonest way to an arm whose runs are short.
        """
        self._begin("all at once", self._search_end())
        names = [fix.name for fix in self.fixes if fix.leap]
        likely = [arm.name for arm in self.alone if arm.name in names and (arm.estimated_gain or 0.0) >= NOTABLE]
        once = self._with_all(self.baseline, names)
        arms = [once, self._with_all(once, names), self._with_all(self.baseline, likely)]
        met = {arm.setup.key for arm in (self.baseline, *self.alone)}
        for arm in arms:
            if arm.setup.key not in met:
                met.add(arm.setup.key)
                self._add(arm)
                best = min(other.cost for other in self.combined)
                self._trial(arm, self.first_seed, min(_SLACK * self.baseline.trials[0].seconds, _SLACK_TO_BEST * best))

    def _try_alone(self) -> None:
        to_beat = self.baseline.trials[0].seconds
        left = self._search_end() - self.executor.now()
        rich = to_beat * len(self.alone) <= _SCREENING_SHARE * left
        self._begin("each fix alone", self.executor.now() + (_SCREENING_SHARE if rich else _SHORT_SHARE) * left)
        for arm in self.alone:
            self._trial(arm, self.first_seed, to_beat * (_SLACK if rich else _SHORT_SLACK))
        for round_ in range(1, _ROUNDS):
            arms = self._affordable([arm for arm in self.alone if arm.cost < float("inf")])
            if not arms:
                return
            # Whatever slows the machine down for a while meets every arm: the order turns round by round.
            turn = [self.baseline, *arms] if round_ % 2 == 0 else [*reversed(arms), self.baseline]
            for arm in turn:
                slowest = max(trial.seconds for trial in self.baseline.trials)
                cap = self.cap if arm is self.baseline else min(self.cap, _SLACK_LATER * slowest)
                self._trial(arm, self.first_seed + round_, cap)

    def _affordable(self, arms: list[Candidate]) -> list[Candidate]:
        """The arms whose next round fits into the stage: all of them, or the cheapest half, quarter, …"""
        arms = sorted(arms, key=lambda arm: arm.cost)
        while arms and self.baseline.mean_seconds + sum(arm.mean_seconds for arm in arms) > self._left():
            arms = arms[: len(arms) // 2]
        return arms

    def _incumbent(self) -> Candidate:
        """The cheapest arm so far, on the seeds that it shares with the baseline where it has no more."""
        arms = [self.baseline, *self.alone, *self.combined]
        most = max(len(arm.trials) for arm in arms if arm is not self.baseline) if len(arms) > 1 else 1
        tried = [arm for arm in arms if len(arm.trials) >= min(most, _RACE_SEEDS)] or arms
        return min(tried, key=lambda arm: standing(arm.trials))

    def _combine(self) -> None:
        left = self._search_end() - self.executor.now()
        self._begin("combinations", self._search_end() - _LEAVING_OUT_SHARE * max(left, 0.0))
        incumbent = self._incumbent()
        self.best = None if incumbent is self.baseline else incumbent
        met = {arm.setup.key for arm in (self.baseline, *self.alone, *self.combined) if arm.trials}
        challenger = self._stacked(incumbent)
        while True:
            if challenger is not None and challenger.setup.key not in met:
                met.add(challenger.setup.key)
                self._add(challenger)
                if self._race(challenger, incumbent):
                    challenger.adopted = True
                    incumbent = self.best = challenger
            challenger = self._next_challenger(incumbent, met)
            if challenger is None:
                return

    def _helpful(self) -> list[str]:
        """Names of all fixes: those that were cheapest alone first, then those not yet known, then the rest."""
        base = standing(self.baseline.trials)

        def rank(arm: Candidate) -> tuple[float, ...]:
            if not arm.trials:
                return (1, -_expected(arm))
            found = standing(arm.trials)
            return (0 if found < base else 2, *found)

        first = [arm.name for arm in sorted(self.alone, key=rank)]
        return first + [fix.name for fix in self.fixes if fix.name not in first]

    def _stacked(self, incumbent: Candidate) -> Candidate | None:
        """The incumbent with everything on top that was cheaper alone."""
        base = standing(self.baseline.trials)
        helped = [arm for arm in self.alone if arm.trials and standing(arm.trials) < base]
        arm = self._with_all(incumbent, [arm.name for arm in sorted(helped, key=lambda arm: standing(arm.trials))])
        return None if arm is incumbent else arm

    def _add(self, arm: Candidate) -> None:
        """A combination is called by its number: its fixes may be many."""
        arm.name = f"combination {len(self.combined) + 1}"
        self.combined.append(arm)

    def _with_all(self, arm: Candidate, names: Iterable[str]) -> Candidate:
        """The arm with all fixes on top that apply."""
        for name in names:
            arm = self._with(arm, name) or arm
        return arm

    def _with(self, arm: Candidate, name: str) -> Candidate | None:
        fix = next(fix for fix in self.fixes if fix.name == name)
        setup = fix.apply(arm.setup, self._evidence_of(arm))
        if setup is None:
            return None
        # What has a name of its own is named; what is only on the way to a combination is spelled out.
        parts = [arm.name or arm.title, name] if arm is not self.baseline else [name]
        return Candidate("", setup, (*arm.fixes, name), ", ".join(parts))

    def _evidence_of(self, arm: Candidate) -> FixEvidence:
        """Where the arm itself spends its time, once it has run."""
        phases = arm.trials[-1].phases if arm.trials else {}
        return FixEvidence.of(phases, self.evidence.cores) if phases else replace(self.evidence, findings=())

    def _next_challenger(self, incumbent: Candidate, met: set[str]) -> Candidate | None:
        for name in self._helpful():
            arm = self._with(incumbent, name)
            if arm is not None and arm.setup.key not in met:
                return arm
        return None

    def _race(self, challenger: Candidate, incumbent: Candidate) -> bool:
        """Whether the challenger is cheaper, seed by seed; it is stopped once that is out of reach."""
        seeds = range(self.first_seed, self.first_seed + _RACE_SEEDS)
        for number, seed in enumerate(seeds, start=1):
            if not incumbent.has(seed):
                self._trial(incumbent, seed, self.cap)
            met = seeds[:number]
            needed = sum(trial.seconds for trial in incumbent.on(met))
            spent = sum(trial.seconds for trial in challenger.on(met))
            cap = _RACE_SLACK * needed - spent
            if cap <= 0:
                return False
            trial = self._trial(challenger, seed, cap)
            if not trial.reached and any(other.reached for other in incumbent.on([seed])):
                return False
        mine, theirs = challenger.on(seeds), incumbent.on(seeds)
        if cost_of(theirs) == float("inf"):
            return standing(mine) < standing(theirs)
        return cost_of(mine) < _RACE_MARGIN * cost_of(theirs)

    def _leave_out(self) -> None:
        self._begin("one left out", self._search_end())
        if self.best is None or self.best.cost == float("inf"):
            return
        seeds = range(self.first_seed, self.first_seed + _RACE_SEEDS)
        changed = self.baseline.setup.differences(self.best.setup)
        apart = [[name] for name in changed if name not in _TOGETHER]
        groups = [[name for name in changed if name in _TOGETHER], *apart]
        for group in groups if len(changed) > 1 else []:
            setup = self.best.setup.but(**{name: changed[name][0] for name in group})
            if not group or setup.key == self.baseline.setup.key:
                continue
            arm = Candidate(f"{self.best.name} without {', '.join(group)}", setup, self.best.fixes, ", ".join(group))
            self.without.append(arm)
            for seed in seeds:
                if not self.best.has(seed):
                    self._trial(self.best, seed, self.cap)
                if not self._trial(arm, seed, _WORTH_KNOWING * self.best.cost).reached:
                    break
            if len(arm.trials) == len(seeds) and arm.cost <= cost_of(self.best.on(seeds)):
                arm.adopted = True
                self.best = arm

    def _try_rest(self) -> None:
        """Where combinations left time, the fixes that have not been tried alone."""
        self._begin("each fix alone", self._search_end())
        for arm in self.alone:
            if not arm.trials:
                self._trial(arm, self.first_seed, _SHORT_SLACK * self.baseline.trials[0].seconds)

    def _verify(self) -> None:
        self._begin("verification", self.start + self.budget)
        if self.best is not None and self.best.cost == float("inf"):
            # Nothing got there in the time of a search; given a whole run, the most promising arm may.
            self._trial(self.best, self.first_seed + _RACE_SEEDS, self.cap)
        if self.best is None or self.best.cost >= self.baseline.cost:
            self.best = None
            return
        setup = _with_step_budget(self.best)
        base = Candidate(BASELINE, self.baseline.setup)
        best = Candidate(self.best.name, setup, self.best.fixes, self.best.title)
        one_base, one_best = self.baseline.mean_seconds, self.best.mean_seconds
        repeats = int(min(max(one_base / one_best, 1), _MOST_REPEATS))
        self.best = replace(self.best, setup=setup)
        try:
            for pair in range(_MOST_PAIRS):
                if pair >= _FEWEST_PAIRS and one_base + repeats * one_best > self._left():
                    break
                seed = self.first_seed + _FRESH + pair * _MOST_REPEATS
                turn = [(best, seed + n) for n in range(repeats)]
                turn = [(base, seed), *turn] if pair % 2 == 0 else [*turn, (base, seed)]
                for arm, number in turn:
                    self.verified.append(self._trial(arm, number, self.cap))
        finally:
            if base.trials and best.trials:
                self.verification = compare(base.trials, base.setup, best.trials, setup)

    def _conclude(self) -> None:
        """Arms that never ran are no result."""
        self.combined = [arm for arm in self.combined if arm.trials]
        self.without = [arm for arm in self.without if arm.trials]


def _expected(arm: Candidate) -> float:
    return arm.prior if arm.estimated_gain is None else arm.estimated_gain


def _with_step_budget(arm: Candidate) -> Setup:
    """The setup with a step budget that fits what its runs needed, unless schedules hang on the one it has."""
    config = arm.setup.config
    schedules = (config.get("learning_rate_schedule"), config.get("clip_schedule"))
    scheduled = "linear" in schedules or "exploration" in config
    needed = max((trial.steps for trial in arm.trials if trial.reached), default=0)
    steps = int(float(f"{_STEP_BUDGET * needed:.2g}"))
    return arm.setup if scheduled or not 0 < steps < arm.setup.total_steps else arm.setup.but(total_steps=steps)
