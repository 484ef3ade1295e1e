"""An executor that answers from a function, so that what is above it can be tested without a clock."""

from __future__ import annotations

from collections.abc import Callable

from mileage.coderl.build.executor import Job, JobResult, StepOutcome, StepResult


class FakeExecutor:
    """Answers jobs from a function and remembers them; for tests of the harness."""

    def __init__(self, answer: Callable[[Job], JobResult]) -> None:
        self._answer = answer
        self.jobs: list[Job] = []

    def run(self, job: Job) -> JobResult:
        """What the function says about `job`."""
        self.jobs.append(job)
        return self._answer(job)


def fake_result(
    wall_seconds: float, exit_code: int = 0, outcome: StepOutcome = StepOutcome.EXITED, output: str = ""
) -> JobResult:
    """Build a one-step result that took `wall_seconds`."""
    return JobResult((StepResult(("fake",), outcome, exit_code, wall_seconds, wall_seconds, 1 << 20, output),))
