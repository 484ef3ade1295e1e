"""An executor that answers from a function, so that what is above it can be tested without a clock."""

from __future__ import annotations

from collections.abc import Callable

from mileage.coderl.sandbox.executor import BuildJob, BuildResult, StepOutcome, StepResult


class FakeExecutor:
    """Answers jobs from a function and remembers them; for tests of the harness."""

    def __init__(self, answer: Callable[[BuildJob], BuildResult]) -> None:
        self._answer = answer
        self.jobs: list[BuildJob] = []

    def run(self, job: BuildJob) -> BuildResult:
        """What the function says about `job`."""
        self.jobs.append(job)
        return self._answer(job)


def fake_result(
    wall_seconds: float, exit_code: int = 0, outcome: StepOutcome = StepOutcome.EXITED, output: str = ""
) -> BuildResult:
    """Build a one-step result that took `wall_seconds`."""
    return BuildResult((StepResult(("fake",), outcome, exit_code, wall_seconds, wall_seconds, 1 << 20, output),))
