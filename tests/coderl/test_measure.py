from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from coderl.fakes import fake_result
from mileage.coderl.arms import REMEDIES, SampleKind, TimedBuild, measure
from mileage.coderl.sandbox.executor import BuildResult, StepOutcome
from mileage.measure import Cause, Outcome, Sample, find_caveats


@dataclass
class ScriptedArm:
    """Takes its times from a list."""

    name: str
    seconds: list[float]
    calls: list[str] = field(default_factory=list)

    def prepare(self, kind: SampleKind) -> None:
        self.calls.append(f"prepare {kind}")

    def run(self, kind: SampleKind, number: int) -> BuildResult:
        self.calls.append(f"{kind} {number}")
        return fake_result(self.seconds.pop(0))


def test_every_sample_is_kept_and_reported_as_it_comes() -> None:
    arms = [ScriptedArm("a", [1.0, 2.0, 3.0]), ScriptedArm("b", [4.0, 5.0, 6.0])]
    seen: list[tuple[TimedBuild, int, int]] = []
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
        (fake_result(1.0), Outcome.OK),
        (fake_result(1.0, exit_code=1, output="error: x\n"), Outcome.FAILED),
        (fake_result(1.0, exit_code=-9, outcome=StepOutcome.TIMEOUT), Outcome.TIMEOUT),
        (fake_result(1.0, exit_code=-9, outcome=StepOutcome.MEMORY), Outcome.KILLED),
    ],
)
def test_outcomes(result: BuildResult, outcome: Outcome) -> None:
    class Arm(ScriptedArm):
        def run(self, kind: SampleKind, number: int) -> BuildResult:
            return result

    (sample,) = measure([Arm("a", [])], 1, kinds=(SampleKind.COLD,))
    assert sample.outcome is outcome
    assert sample.exit_code == result.steps[-1].exit_code


def warnings_of(*seconds: float, failed: int = 0, late: int = 0) -> set[Cause]:
    outcomes = [Outcome.OK] * len(seconds) + [Outcome.FAILED] * failed + [Outcome.TIMEOUT] * late
    values = [*seconds, *[1.0] * (failed + late)]
    samples = [
        Sample("a", second, second, outcome, SampleKind.COLD, n, n)
        for n, (second, outcome) in enumerate(zip(values, outcomes, strict=True))
    ]
    return {caveat.cause for caveat in find_caveats(samples, REMEDIES)}


def test_steady_runs_give_no_warning() -> None:
    assert warnings_of(10.0, 10.1, 9.9, 10.05) == set()


def test_each_warning_has_its_cause() -> None:
    assert warnings_of(10.0, 10.1) == {Cause.FEW_RUNS}
    assert Cause.SLOW_START in warnings_of(14.0, 10.0, 10.1, 9.9)
    assert Cause.OUTLIERS in warnings_of(10.0, 10.1, 9.9, 10.05, 13.0)
    assert Cause.WIDE_SPREAD in warnings_of(10.0, 14.0, 7.0)
    assert Cause.FAILURES in warnings_of(10.0, 10.0, 10.0, failed=1)
    assert Cause.TIMEOUTS in warnings_of(10.0, 10.0, 10.0, late=1)


def test_every_warning_says_what_to_try() -> None:
    for remedy in REMEDIES.values():
        assert "--" in remedy or "pass rate" in remedy or "rl-bench.toml" in remedy


def test_a_killed_benchmark_goes_on_from_its_samples() -> None:
    kept = measure([ScriptedArm("a", [1.0, 2.0])], 2, kinds=(SampleKind.COLD,))[:1]
    arm = ScriptedArm("a", [5.0])
    samples = measure([arm], 2, kinds=(SampleKind.COLD,), done=kept)
    assert [sample.wall_seconds for sample in samples] == [1.0, 5.0]
    assert arm.calls == ["prepare cold", "cold 2"]
