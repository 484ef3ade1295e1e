"""The search over scripted outcomes: what it chooses, what it calls out, what it counts, and how long it takes."""

from __future__ import annotations

import math

import pytest

from mileage.errors import UsageError
from mileage.profiling.model import Bottleneck, Finding
from mileage.profiling.tuning.arms import Effect, judge
from mileage.profiling.tuning.changes import Fix
from mileage.profiling.tuning.runs import Setup
from mileage.profiling.tuning.tried import Tried, try_fixes
from scripted_runs import Scripted, plain_setup

TARGET = "mean_return>=0.0"
# Sure of it or not: how many rounds there is time for decides.
CHEAP = (Effect.CHEAPER, Effect.SEEMS_CHEAPER)
DEAR = (Effect.DEARER, Effect.SEEMS_DEARER)


def knob(name: str, value: object) -> Fix:
    """A fix that sets one hyperparameter, and nothing once it is set."""
    return Fix(name, f"{name} is {value}", lambda setup, _: setup.but(**{name: value}))


def search(executor: Scripted, fixes: list[Fix], budget: float = 180.0, **rest: object) -> Tried:
    return try_fixes(plain_setup(), TARGET, executor, budget_seconds=budget, fixes=fixes, cores=2, **rest)  # type: ignore[arg-type]


def outcomes(tried: Tried) -> dict[str, Effect]:
    return {arm.name: judge(arm, tried.baseline)[0] for arm in tried.arms}


def jitter(seed: int) -> float:
    """A few per cent, different for every seed."""
    return 1.0 + 0.02 * math.sin(7.0 * seed)


def test_the_fix_that_is_cheaper_is_found_verified_and_kept_apart_from_the_others() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        speed = 1000.0 if setup.config["minibatch"] == 16 else 5000.0
        more = {0.5: 1.15, 0.6: 3.0}.get(setup.config["gamma"], 1.0)
        return speed, 5000 * jitter(seed) * more

    slow = Fix("slow", "", lambda setup, _: setup.but(gamma=0.6))
    tried = search(Scripted(script), [knob("gamma", 0.5), slow, knob("minibatch", 64), knob("n_steps", 512)])
    found = outcomes(tried)
    assert found.pop("minibatch") in CHEAP
    assert found.pop("gamma") in DEAR
    assert found == {"slow": Effect.TARGET_MISSED, "n_steps": Effect.NO_GAIN}
    assert tried.best is not None
    assert tried.best.fixes == ("minibatch",)
    assert tried.is_verified
    verified = tried.verification
    assert verified is not None
    assert verified.interval is not None
    # 5 s against 1 s.
    assert verified.ratio == pytest.approx(5.0, rel=0.03)
    assert verified.interval.low < 5.0 < verified.interval.high


def test_more_steps_per_second_that_do_not_come_to_the_target_sooner_are_called_out() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        # Twice the speed, twice the steps needed: nothing gained. Three times the speed, and never there.
        if setup.config["minibatch"] == 64:
            return 2000.0, 10_000 * jitter(seed)
        if setup.config["n_envs"] == 8:
            return 3000.0, math.inf
        return 1000.0, 5000 * jitter(seed)

    tried = search(Scripted(script), [knob("minibatch", 64), knob("n_envs", 8)])
    assert outcomes(tried) == {"minibatch": Effect.FASTER_ONLY, "n_envs": Effect.FASTER_ONLY}
    assert tried.best is None
    assert tried.verification is None


def test_fixes_that_help_are_combined() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        speed = (
            1000.0 * (2.0 if setup.config["minibatch"] == 64 else 1.0) * (3.0 if setup.config["n_envs"] == 8 else 1.0)
        )
        return speed, 6000 * jitter(seed) * (5.0 if setup.config["gamma"] == 0.5 else 1.0)

    tried = search(Scripted(script), [knob("gamma", 0.5), knob("minibatch", 64), knob("n_envs", 8)])
    assert tried.best is not None
    assert set(tried.best.fixes) == {"minibatch", "n_envs"}
    assert tried.best.setup.config["gamma"] == 0.95
    assert tried.verification is not None
    assert tried.verification.ratio == pytest.approx(6.0, rel=0.03)


def test_a_fix_that_applies_again_is_applied_again() -> None:
    def doubled(setup: Setup, _: object) -> Setup | None:
        return setup.but(n_envs=setup.config["n_envs"] * 2) if setup.config["n_envs"] < 8 else None

    tried = search(
        Scripted(lambda setup, seed: (1000.0 * setup.config["n_envs"], 6000 * jitter(seed))),
        [Fix("n_envs", "twice as many", doubled)],
    )
    assert tried.best is not None
    assert tried.best.setup.config["n_envs"] == 8
    assert tried.best.fixes == ("n_envs", "n_envs", "n_envs")


def test_failed_runs_are_paid_for() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        # A gamble: every other run never gets there and uses up its steps, 10 s, twice what the baseline takes.
        if setup.config["gamma"] == 0.99:
            return 1000.0, math.inf if seed % 2 == 1 else 1000
        return 1000.0, 5000 * jitter(seed)

    executor = Scripted(script)
    tried = try_fixes(
        plain_setup(total_steps=10_000), TARGET, executor, budget_seconds=180.0, fixes=[knob("gamma", 0.99)], cores=2
    )
    arm = tried.arms[0]
    assert arm.name == "gamma"
    failed = [trial for trial in arm.trials if not trial.reached]
    assert failed
    reached = len(arm.trials) - len(failed)
    assert arm.cost == pytest.approx((sum(trial.seconds for trial in failed) + reached * 1.0) / reached)
    # Half the runs take 1 s and half 10 s: 11 s a success, where the baseline takes 5 s.
    assert reached == len(failed) == 4
    assert arm.cost == pytest.approx(11.0)
    assert outcomes(tried)["gamma"] is Effect.SEEMS_DEARER
    assert tried.best is None


def test_a_baseline_that_never_arrives_is_beaten_by_at_least_what_was_spent_on_it() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return 1000.0, math.inf if setup.config["minibatch"] == 16 else 1000 * jitter(seed)

    tried = search(Scripted(script), [knob("minibatch", 64)])
    found = tried.verification
    assert found is not None
    assert tried.is_verified
    assert found.ratio is None
    assert found.baseline.value is None
    assert found.baseline.successes == 0
    # Stopped at an eighth of the budget, 22.5 s, every time, against 1 s.
    assert found.baseline.spent == pytest.approx(found.baseline.runs * 22.5)
    assert found.at_least is not None
    assert 3.0 < found.at_least < 22.5 * found.baseline.runs


@pytest.mark.parametrize("budget", [20.0, 60.0, 180.0])
@pytest.mark.parametrize("base_seconds", [0.5, 10.0, 1000.0])
def test_the_budget_is_kept(budget: float, base_seconds: float) -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return 1000.0, 1000 * base_seconds * jitter(seed) * setup.config["minibatch"] / 16

    fixes = [knob("minibatch", size) for size in (15, 14, 13, 12, 11, 10, 9, 8, 4, 1, 20, 40)]
    executor = Scripted(script)
    tried = search(executor, fixes, budget)
    assert tried.spent_seconds <= budget + 1e-9
    assert sum(trial.seconds for trial in executor.log) == pytest.approx(tried.spent_seconds)
    assert tried.runs == len(executor.log)


def test_a_run_that_the_end_of_the_budget_cut_short_counts_for_nothing() -> None:
    executor = Scripted(lambda setup, seed: (1000.0, 7000.0 if setup.config["minibatch"] == 16 else 4000.0))
    tried = search(executor, [knob("minibatch", 64)], budget=60.0)
    counted = [*tried.baseline.trials, *tried.arms[0].trials, *tried.verified]
    assert all(trial.reached for trial in counted)
    assert all(not trial.reached for trial in tried.cut)


def test_compiling_the_baseline_is_not_part_of_the_budget() -> None:
    executor = Scripted(lambda setup, seed: (1000.0, 1000.0), prepare_seconds=500.0)
    tried = search(executor, [], budget=60.0)
    assert tried.baseline.trials[0].reached
    assert tried.spent_seconds < 60.0


def test_verification_takes_turns_on_seeds_that_the_search_never_saw() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return (1000.0 if setup.config["minibatch"] == 16 else 2000.0), 5000 * jitter(seed)

    tried = search(Scripted(script), [knob("minibatch", 64)], first_seed=7)
    searched = {trial.seed for arm in (tried.baseline, *tried.arms, *tried.combinations) for trial in arm.trials}
    fresh = {trial.seed for trial in tried.verified}
    assert min(searched) == 7
    assert not searched & fresh
    # Pairs turn round: baseline first, then last, so that the baseline of one pair meets that of the next.
    first = [trial.arm for trial in tried.verified[:6]]
    assert first == ["baseline", "minibatch", "minibatch", "minibatch", "minibatch", "baseline"]
    for name in ("baseline", "minibatch"):
        seeds = [trial.seed for trial in tried.verified if trial.arm == name]
        assert len(seeds) == len(set(seeds)) >= 3


def test_luck_on_the_searched_seeds_does_not_survive_verification() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        lucky = setup.config["gamma"] == 0.99 and seed < 1000
        return 1000.0, 1000 if lucky else 5000 * jitter(seed)

    tried = search(Scripted(script), [knob("gamma", 0.99)])
    assert outcomes(tried)["gamma"] in CHEAP
    assert tried.best is not None
    assert not tried.is_verified


def test_what_is_expected_most_is_tried_first_and_a_finding_says_what_to_expect() -> None:
    executor = Scripted(lambda setup, seed: (1000.0, 1000.0))
    finding = Finding(Bottleneck.LEARNER_BOUND, 0.8, "80 % in learn", 0.7, "minibatch=64", fix="minibatch")
    small = Fix("n_steps", "", lambda setup, _: setup.but(n_steps=7), lambda *_: 0.01)
    tried = search(executor, [small, knob("gamma", 0.9), knob("minibatch", 64)], findings=[finding])
    assert [arm.name for arm in tried.arms] == ["minibatch", "gamma", "n_steps"]
    assert [arm.estimated_gain for arm in tried.arms] == [0.7, None, 0.01]


def test_dear_arms_are_halved_away_when_a_round_of_all_would_take_too_long() -> None:
    sizes = (1, 2, 3, 4, 12, 13, 14, 15)

    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return 1000.0, 4000 * jitter(seed) * setup.config["minibatch"] / 16

    fixes = [Fix(f"m{size}", "", lambda s, _, size=size: s.but(minibatch=size)) for size in sizes]  # type: ignore[misc]
    tried = search(Scripted(script), fixes, budget=105.0)
    runs = {arm.name: len(arm.trials) for arm in tried.arms}
    assert runs["m1"] > runs["m15"]
    assert runs["m1"] == max(runs.values())


def test_an_interrupt_keeps_what_is_known() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return (1000.0 if setup.config["minibatch"] == 16 else 9000.0), 5000 * jitter(seed)

    whole = search(Scripted(script), [knob("minibatch", 64)])
    early = search(Scripted(script, interrupt_at=6.0), [knob("minibatch", 64)])
    assert early.interrupted
    assert not whole.interrupted
    assert [trial.seconds for trial in early.baseline.trials] == [whole.baseline.trials[0].seconds]
    assert early.arms[0].trials == whole.arms[0].trials[:1]
    # In the middle of the verification, the pairs that are whole count.
    start = whole.spent_seconds - sum(trial.seconds for trial in whole.verified)
    middle = sum(trial.seconds for trial in whole.verified[:18])
    late = search(Scripted(script, interrupt_at=start + middle + 0.1), [knob("minibatch", 64)])
    assert late.interrupted
    assert late.verified == whole.verified[:18]
    assert late.verification is not None
    assert late.is_verified


def test_a_fix_that_cannot_be_trained_is_an_error_and_the_search_goes_on() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        if setup.config["gamma"] == 0.5:
            return 0.0, 0.0
        return (1000.0 if setup.config["minibatch"] == 16 else 5000.0), 5000 * jitter(seed)

    tried = search(Scripted(script), [knob("gamma", 0.5), knob("minibatch", 64)])
    assert outcomes(tried)["gamma"] is Effect.ERROR
    assert outcomes(tried)["minibatch"] in CHEAP
    assert tried.best is not None
    assert tried.best.fixes == ("minibatch",)


def test_two_fixes_that_come_to_the_same_are_tried_once() -> None:
    executor = Scripted(lambda setup, seed: (1000.0, 1000.0))
    tried = search(executor, [knob("gamma", 0.9), Fix("again", "", lambda s, _: s.but(gamma=0.9)), knob("gamma", 0.95)])
    assert [arm.name for arm in tried.arms] == ["gamma"]


def test_the_winner_gets_a_step_budget_that_fits_what_it_needs() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        return 1000.0, 5000.0 if setup.config["minibatch"] == 16 else 1000.0

    tried = search(Scripted(script), [knob("minibatch", 64)])
    assert tried.best is not None
    assert tried.best.setup.total_steps == 4000
    assert tried.baseline.setup.total_steps == 1_000_000


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(UsageError, match="budget"):
        search(Scripted(lambda setup, seed: (1.0, 1.0)), [], budget=0.0)


def test_arms_that_learn_the_same_are_compared_seed_by_seed() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        # Seeds differ by a factor of five, the arms by a tenth whatever the seed.
        return (1000.0 if setup.threads == 1 else 1100.0), 1000.0 + 1000.0 * (seed % 5)

    fix = Fix("threads", "", lambda setup, _: setup.but(threads=2), same_learning=True)
    other = Fix("other", "", lambda setup, _: setup.but(threads=2, gamma=0.9))
    tried = search(Scripted(script), [fix, other])
    found = {arm.name: judge(arm, tried.baseline) for arm in tried.arms}
    outcome, comparison = found["threads"]
    assert outcome is Effect.CHEAPER
    assert comparison is not None
    assert comparison.seed_by_seed
    assert comparison.interval is not None
    assert comparison.ratio == pytest.approx(1.1)
    assert comparison.interval.low == pytest.approx(1.1)
    assert comparison.interval.high == pytest.approx(1.1)
    # The same times, but of an arm that learns otherwise: the spread of the seeds counts.
    assert found["other"][0] is Effect.SEEMS_CHEAPER


def test_the_paired_interval_is_students() -> None:
    from mileage.profiling.tuning.arms import Candidate
    from mileage.profiling.tuning.runs import Trial

    def arm(name: str, seconds: list[float]) -> Candidate:
        trials = [Trial(name, took, round=n, cap_seconds=100.0, steps=10) for n, took in enumerate(seconds)]
        return Candidate(name, plain_setup(), same_learning=True, trials=trials)

    # Logs of the ratios are ln 2 × (1, 2, 3): mean 2 ln 2, deviation ln 2, t(2) at 97.5 % is 4.3027.
    _, found = judge(arm("fix", [1.0, 1.0, 1.0]), arm("baseline", [2.0, 4.0, 8.0]))
    assert found is not None
    assert found.interval is not None
    assert found.ratio == pytest.approx(4.0)
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert math.log(found.interval.low) == pytest.approx(2 * math.log(2) - half, rel=1e-5)
    assert math.log(found.interval.high) == pytest.approx(2 * math.log(2) + half, rel=1e-5)
    assert not found.cheaper


def leap(name: str, value: object) -> Fix:
    return Fix(name, "", lambda setup, _: setup.but(**{name: value}), leap=True)


def test_where_the_baseline_is_slow_everything_is_tried_at_once_and_what_is_worth_nothing_is_taken_back() -> None:
    def script(setup: Setup, seed: int) -> tuple[float, float]:
        speed = (
            100.0 * (20.0 if setup.config["n_envs"] == 8 else 1.0) * (5.0 if setup.config["minibatch"] == 64 else 1.0)
        )
        return speed, 2000 * jitter(seed)

    fixes = [leap("gamma", 0.9), leap("n_envs", 8), leap("minibatch", 64)]
    fixes += [knob("n_steps", 512), knob("epochs", 5), knob("learning_rate", 0.1)]
    tried = search(Scripted(script), fixes)
    # 20 s, against 0.2 s with all three: found at once, before any fix was tried alone.
    assert tried.combinations[0].fixes == ("gamma", "n_envs", "minibatch")
    assert tried.best is not None
    assert tried.baseline.setup.differences(tried.best.setup).keys() == {"n_envs", "minibatch", "total_steps"}
    worth = {arm.title: arm for arm in tried.without}
    assert worth["gamma"].adopted
    assert not worth["n_envs"].adopted
    assert not worth["minibatch"].adopted
    assert tried.is_verified
    assert tried.verification is not None
    assert tried.verification.ratio == pytest.approx(100.0, rel=0.03)
    # Fixes alone get half the time of the baseline where there is no more.
    assert {arm.name for arm in tried.arms if arm.trials} >= {"n_envs", "minibatch"}
    assert all(trial.cap_seconds <= 10.5 for arm in tried.arms for trial in arm.trials)


def test_a_baseline_that_cannot_be_trained_is_said() -> None:
    with pytest.raises(UsageError, match="cannot be built"):
        search(Scripted(lambda setup, seed: (0.0, 0.0)), [knob("minibatch", 64)])
