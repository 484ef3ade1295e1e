"""The training loop: cadences, ends, interrupts and the clock."""

from __future__ import annotations

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mileage.contracts import Clock, Learner, Saved
from mileage.ledger.rows import EndState
from mileage.ledger.targets import Evaluation, Target
from mileage.measure import Phase, PhaseClock
from mileage.measure import clock as clock_module
from mileage.training.runner import Plan, RunOutcome, RunProgress, run


class Counting(Learner):
    """An algorithm that only counts, and not episodes; its evaluation returns the number of iterations times 10."""

    steps_per_iteration = 100

    def __init__(self) -> None:
        self.progress: list[float] = []

    env: Any = SimpleNamespace(resets=(0, 0.0))

    @classmethod
    def make_policy(cls, config: Any, spec: Any, seed: int) -> Any:
        raise NotImplementedError

    @property
    def steps(self) -> int:
        return self.steps_per_iteration * len(self.progress)

    def saved(self) -> Saved:
        return Saved({}, {})

    def restore(self, saved: Saved) -> None:
        pass

    def iterate(self, clock: Clock, progress: float) -> Any:
        with clock.phase(Phase.LEARN):
            self.progress.append(progress)
        return SimpleNamespace(episodes=0, truncations=None, number=len(self.progress))

    def evaluate(self) -> Evaluation:
        return Evaluation.of([2**31], [10.0 * len(self.progress)], [1])


def play(plan: Plan, **options: Any) -> tuple[Counting, RunOutcome]:
    algorithm = Counting()
    return algorithm, run(algorithm, algorithm.evaluate, plan, options.pop("clock", PhaseClock()), **options)


def test_all_steps_are_taken_and_the_end_is_evaluated() -> None:
    algorithm, outcome = play(Plan(horizon=1000, eval_every=10**9))
    assert (outcome.steps, outcome.end, outcome.reason) == (1000, EndState.FINISHED, "all steps taken")
    assert [point.steps for point in outcome.evaluations] == [1000]
    assert algorithm.progress == pytest.approx(np.arange(10) / 10)


def test_a_horizon_between_iterations_is_passed_not_cut() -> None:
    assert play(Plan(horizon=150, eval_every=1000))[1].steps == 200


@pytest.mark.parametrize(
    ("every", "start", "want"),
    [
        (300, 0, [300, 600, 900, 1000]),
        (250, 0, [300, 500, 800, 1000]),
        (1, 0, list(range(100, 1001, 100))),
        (300, 400, [600, 900, 1000]),
    ],
)
def test_evaluations_come_at_multiples(every: int, start: int, want: list[int]) -> None:
    _, outcome = play(Plan(horizon=1000, eval_every=every), steps=start)
    assert [point.steps for point in outcome.evaluations] == want


def test_checkpoints_come_at_multiples() -> None:
    saved: list[int] = []
    play(Plan(horizon=1000, eval_every=1000, checkpoint_every=250), save=saved.append)
    assert saved == [300, 500, 800, 1000]
    saved.clear()
    play(Plan(horizon=1000, eval_every=1000), save=saved.append)
    assert saved == []


def test_the_target_ends_the_run_or_does_not() -> None:
    target = Target.parse("mean_return>=45")
    _, outcome = play(Plan(horizon=1000, eval_every=100, target=target))
    assert (outcome.steps, outcome.end, outcome.reason) == (500, EndState.REACHED, "mean_return>=45.0 met")
    assert outcome.reached is outcome.evaluations[-1]
    _, outcome = play(Plan(horizon=1000, eval_every=100, target=target, stop_at_target=False))
    assert (outcome.steps, outcome.end) == (1000, EndState.REACHED)
    assert outcome.reached is outcome.evaluations[4]


def test_a_missed_target() -> None:
    _, outcome = play(Plan(horizon=300, eval_every=100, target=Target.parse("mean_return>=45")))
    assert (outcome.end, outcome.reached) == (EndState.NOT_REACHED, None)


def test_callbacks_see_progress_and_can_stop() -> None:
    seen: list[RunProgress] = []

    def watch(progress: RunProgress) -> None:
        seen.append(progress)

    _, outcome = play(Plan(horizon=1000, eval_every=200), callbacks=(lambda progress: progress.steps < 400, watch))
    assert (outcome.steps, outcome.end, outcome.reason) == (400, EndState.STOPPED, "stopped by a callback")
    numbers: list[Any] = [each.stats for each in seen]
    assert [(each.steps, each.horizon, stats.number) for each, stats in zip(seen, numbers, strict=True)] == [
        (100 * i, 1000, i) for i in range(1, 5)
    ]
    assert [each.evaluation is None for each in seen] == [True, False, True, False]


def test_evaluations_are_announced() -> None:
    announced: list[Any] = []
    _, outcome = play(Plan(horizon=600, eval_every=200), on_evaluation=announced.append)
    assert tuple(announced) == outcome.evaluations
    walls = [point.wall_seconds for point in announced]
    assert walls == sorted(walls)
    assert walls[0] > 0.0


def test_everything_happens_in_its_phase() -> None:
    clock = PhaseClock()
    play(
        Plan(horizon=1000, eval_every=500, checkpoint_every=200),
        clock=clock,
        callbacks=(lambda _: None,),
        save=lambda _: None,
        on_evaluation=lambda _: None,
    )
    times = clock.times()
    assert times.entries[Phase.LEARN] == 10
    assert times.entries[Phase.EVAL] == 2
    assert times.entries[Phase.CHECKPOINT] == 5
    assert times.entries[Phase.LOG] == 12
    assert sum(times.phases_ns.values()) == times.wall_ns


class Interrupted(Counting):
    """Presses Ctrl-C in the middle of an iteration, as often as it is told to."""

    def __init__(self, presses: int) -> None:
        super().__init__()
        self.presses, self.whole = presses, 0

    def iterate(self, clock: Clock, progress: float) -> Any:
        found = super().iterate(clock, progress)
        if len(self.progress) == 3:
            for _ in range(self.presses):
                os.kill(os.getpid(), signal.SIGINT)
        self.whole += 1
        return found


def test_an_interrupt_ends_the_run_after_the_iteration_under_way() -> None:
    algorithm = Interrupted(1)
    before = signal.getsignal(signal.SIGINT)
    outcome = run(algorithm, algorithm.evaluate, Plan(horizon=1000, eval_every=1000), PhaseClock())
    assert (outcome.steps, outcome.end, outcome.reason) == (300, EndState.STOPPED, "interrupted")
    assert algorithm.whole == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_not_wait() -> None:
    algorithm = Interrupted(2)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(algorithm, algorithm.evaluate, Plan(horizon=1000, eval_every=1000), PhaseClock())
    assert algorithm.whole == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_can_train() -> None:
    outcomes: list[RunOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(play(Plan(horizon=300, eval_every=300))[1]))
    thread.start()
    thread.join()
    assert outcomes[0].steps == 300


class Ending(Counting):
    """Three episodes end in every iteration, one of them by a time limit."""

    def iterate(self, clock: Clock, progress: float) -> Any:
        super().iterate(clock, progress)
        return SimpleNamespace(episodes=3, truncations=1, episode_length=5.0)


def test_why_episodes_ended_is_counted_from_evaluation_to_evaluation() -> None:
    algorithm = Ending()
    outcome = run(algorithm, algorithm.evaluate, Plan(horizon=500, eval_every=300), PhaseClock())
    # Three iterations up to step 300, two more to 500.
    assert [point.resets for point in outcome.evaluations] == [
        {"terminated": 6, "truncated": 3},
        {"terminated": 4, "truncated": 2},
    ]
    # An algorithm that does not say is not taken to have had none.
    assert [point.resets for point in play(Plan(horizon=500, eval_every=300))[1].evaluations] == [{}, {}]


class Timed(Counting):
    """Ten seconds an iteration, and four an evaluation of ten episodes, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0
        monkeypatch.setattr(clock_module, "_now", lambda: self.now)

    def iterate(self, clock: Clock, progress: float) -> Any:
        with clock.phase(Phase.ENV_STEP):
            self.now += 10 * 10**9
        self.progress.append(progress)
        return SimpleNamespace(episodes=1, truncations=None, episode_length=4.0)

    def evaluate(self) -> Evaluation:
        self.now += 4 * 10**9
        return Evaluation.of(range(2**31, 2**31 + 10), [1.0] * 10, [4] * 10)


@pytest.mark.parametrize(("share", "want"), [(0.0, [*range(100, 1001, 100)]), (0.1, [400, 1000]), (0.01, [1000])])
def test_evaluations_stay_within_a_share_of_the_run(
    share: float, want: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = Timed(monkeypatch)
    plan = Plan(horizon=1000, eval_every=100, eval_share=share, eval_episodes=10)
    clock = PhaseClock()
    with clock.phase(Phase.COMPILE):
        algorithm.now += 1000 * 10**9  # a long start is no reason for more
    outcome = run(algorithm, algorithm.evaluate, plan, clock)
    assert [point.steps for point in outcome.evaluations] == want
    assert len(algorithm.progress) == 10


def test_no_evaluation_at_all() -> None:
    assert play(Plan(horizon=300, eval_every=0))[1].evaluations == ()
