from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from mileage.coderl.build.executor import JobResult, Outcome, fake_result
from mileage.coderl.measure import (
    BuildOutcome,
    Sample,
    SampleKind,
    WarningKind,
    find_warnings,
    measure,
    schedule,
)


@dataclass
class ScriptedArm:
    """Takes its times from a list."""

    name: str
    seconds: list[float]
    calls: list[str] = field(default_factory=list)

    def prepare(self, kind: SampleKind) -> None:
        self.calls.append(f"prepare {kind}")

    def run(self, kind: SampleKind, number: int) -> JobResult:
        self.calls.append(f"{kind} {number}")
        return fake_result(self.seconds.pop(0))


def test_each_round_visits_every_arm_once_and_cold_comes_first() -> None:
    plan = schedule(["a", "b", "c"], 5, SampleKind, seed=3)
    assert len(plan) == 30
    for start in range(0, 30, 3):
        block = plan[start : start + 3]
        assert {arm for arm, _, _ in block} == {"a", "b", "c"}
        assert len({(kind, number) for _, kind, number in block}) == 1
    assert [kind for _, kind, _ in plan] == [SampleKind.COLD] * 15 + [SampleKind.INCREMENTAL] * 15


def test_the_order_is_random_and_repeatable() -> None:
    plans = [schedule(["a", "b"], 20, (SampleKind.COLD,), seed) for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    first = [plans[0][index][0] for index in range(0, 40, 2)]
    assert 4 <= first.count("a") <= 16


def test_every_sample_is_kept_and_reported_as_it_comes() -> None:
    arms = [ScriptedArm("a", [1.0, 2.0, 3.0]), ScriptedArm("b", [4.0, 5.0, 6.0])]
    seen: list[tuple[Sample, int, int]] = []
    samples = measure(arms, 3, kinds=(SampleKind.COLD,), on_sample=lambda *event: seen.append(event))
    assert [event[0] for event in seen] == list(samples)
    assert [event[1:] for event in seen] == [(done, 6) for done in range(1, 7)]
    assert [s.wall_seconds for s in samples if s.arm == "a"] == [1.0, 2.0, 3.0]
    assert [s.wall_seconds for s in samples if s.arm == "b"] == [4.0, 5.0, 6.0]


def test_arms_are_prepared_before_the_first_sample_of_a_kind_and_edits_are_all_different() -> None:
    arms = [ScriptedArm("a", [1.0] * 4), ScriptedArm("b", [1.0] * 4)]
    measure(arms, 2)
    numbers = [call for arm in arms for call in arm.calls if not call.startswith("prepare")]
    assert len(set(numbers)) == 8
    assert arms[0].calls[0] == "prepare cold"
    assert arms[0].calls[3] == "prepare incremental"


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (fake_result(1.0), BuildOutcome.OK),
        (fake_result(1.0, exit_code=1, output="error: x\n"), BuildOutcome.FAILED),
        (fake_result(1.0, exit_code=-9, outcome=Outcome.TIMEOUT), BuildOutcome.TIMEOUT),
        (fake_result(1.0, exit_code=-9, outcome=Outcome.MEMORY), BuildOutcome.KILLED),
    ],
)
def test_outcomes(result: JobResult, outcome: BuildOutcome) -> None:
    class Arm(ScriptedArm):
        def run(self, kind: SampleKind, number: int) -> JobResult:
            return result

    (sample,) = measure([Arm("a", [])], 1, kinds=(SampleKind.COLD,))
    assert sample.outcome is outcome
    assert sample.exit_code == result.steps[-1].exit_code


def warnings_of(*seconds: float, failed: int = 0, late: int = 0) -> set[WarningKind]:
    outcomes = [BuildOutcome.OK] * len(seconds) + [BuildOutcome.FAILED] * failed + [BuildOutcome.TIMEOUT] * late
    values = [*seconds, *[1.0] * (failed + late)]
    samples = [
        Sample("a", SampleKind.COLD, n, n, outcome, 0, second, second, 1)
        for n, (second, outcome) in enumerate(zip(values, outcomes, strict=True))
    ]
    return {warning.kind for warning in find_warnings(samples)}


def test_steady_runs_give_no_warning() -> None:
    assert warnings_of(10.0, 10.1, 9.9, 10.05) == set()


def test_each_warning_has_its_cause() -> None:
    assert warnings_of(10.0, 10.1) == {WarningKind.FEW_RUNS}
    assert WarningKind.SLOW_FIRST_RUN in warnings_of(14.0, 10.0, 10.1, 9.9)
    assert WarningKind.OUTLIERS in warnings_of(10.0, 10.1, 9.9, 10.05, 13.0)
    assert WarningKind.UNSTABLE in warnings_of(10.0, 14.0, 7.0)
    assert WarningKind.FAILED_BUILDS in warnings_of(10.0, 10.0, 10.0, failed=1)
    assert WarningKind.TIMEOUTS in warnings_of(10.0, 10.0, 10.0, late=1)


def test_every_warning_says_what_to_try() -> None:
    for kind in WarningKind:
        assert "--" in kind or "pass rate" in kind
