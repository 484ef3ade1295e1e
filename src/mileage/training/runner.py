"""The training loop. There is one: it owns the clock, decides when to evaluate and to save, and when to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mileage.contracts import IterationStats, Learner
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.ledger.rows import EndState
from mileage.ledger.runs import EvalPoint
from mileage.ledger.targets import Evaluation, Target
from mileage.meter import Phase, PhaseClock

INTERRUPTED = "interrupted"
STOPPED_BY_CALLBACK = "stopped by a callback"
"""Why a run ended as `stopped`."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a callback sees after every iteration."""

    steps: int
    """Environment steps taken, those before a resumed run included."""
    horizon: int
    """Steps at which training ends."""
    stats: IterationStats
    """The update's statistics."""
    evaluation: Evaluation | None
    """The held-out evaluation, if one was made after this iteration."""
    clock: PhaseClock
    """The run's clock; `clock.times()` is a consistent reading."""


Callback = Callable[[Progress], bool | None]
"""Called after every iteration; training stops if it returns False."""


@dataclasses.dataclass
class Plan:
    """How far to train, what to reach, and how often to look."""

    horizon: int
    """Steps at which training ends."""
    eval_every: int
    """Steps between held-out evaluations."""
    target: Target | None = None
    """What to reach on the panel."""
    stop_at_target: bool = True
    """Whether reaching the target ends the run."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 for none before the end."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the loop ended."""

    steps: int
    end: EndState
    reason: str
    evaluations: tuple[EvalPoint, ...]
    reached: EvalPoint | None


class _Interrupt:
    """Turns the first Ctrl-C or SIGTERM into a flag that the loop reads between iterations: what is saved is whole.

    The second one interrupts at once. Signals reach only the main thread; elsewhere this does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in self._SIGNALS}
        return self

    def _handle(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _at_rest_afterwards(learner: Learner) -> Iterator[None]:
    """Whatever happens, leave no thread of the learner working; after an error it need not finish what it is at."""
    try:
        yield
    except BaseException:
        learner.rest(abandon=True)
        raise
    learner.rest()


class _Ends:
    """Why training episodes ended, counted from evaluation to evaluation."""

    def __init__(self) -> None:
        self.episodes = 0
        self.truncations: int | None = 0

    def add(self, stats: IterationStats) -> None:
        """Count the episodes of one iteration."""
        self.episodes += stats.episodes
        found = stats.truncations
        self.truncations = None if found is None or self.truncations is None else self.truncations + found

    def take(self) -> dict[str, int]:
        """The counts so far, which start anew; nothing if they are not known."""
        if self.truncations is None:
            return {}
        counts = {"terminated": self.episodes - self.truncations, "truncated": self.truncations}
        self.episodes = self.truncations = 0
        return counts


def run(
    learner: Learner, evaluate: Callable[[], Evaluation], plan: Plan, clock: PhaseClock, *, steps: int = 0,
    callbacks: tuple[Callback, ...] = (), save: Callable[[int], None] | None = None,
    on_evaluation: Callable[[EvalPoint], None] | None = None,
) -> Outcome:  # fmt: skip
    """Train from `steps` to the plan's horizon, or to its target.

    Ctrl-C and SIGTERM end the run as `stopped` after the iteration under way.
    """
    evaluations: list[EvalPoint] = []
    reached: EvalPoint | None = None
    eval_phase, log_phase, save_phase = clock.phase(Phase.EVAL), clock.phase(Phase.LOG), clock.phase(Phase.CHECKPOINT)
    next_eval, next_save = _next(steps, plan.eval_every), _next(steps, plan.checkpoint_every)
    stopped = ""
    ends = _Ends()
    with single_threaded_blas(), _Interrupt() as interrupt, _at_rest_afterwards(learner):
        while steps < plan.horizon and not stopped and not (reached is not None and plan.stop_at_target):
            stats = learner.iterate(clock, steps / plan.horizon)
            steps += learner.steps_per_iteration
            ends.add(stats)
            evaluation = None
            if steps >= next_eval or steps >= plan.horizon:
                next_eval = _next(steps, plan.eval_every)
                with eval_phase:
                    evaluation = evaluate()
                point = EvalPoint(steps, clock.times().wall_seconds, evaluation, ends.take())
                evaluations.append(point)
                if reached is None and plan.target is not None and plan.target.met(evaluation):
                    reached = point
                if on_evaluation is not None:
                    with log_phase:
                        on_evaluation(point)
            if save is not None and steps >= next_save:
                next_save = _next(steps, plan.checkpoint_every)
                with save_phase:
                    save(steps)
            if callbacks:
                with log_phase:
                    progress = Progress(steps, plan.horizon, stats, evaluation, clock)
                    answers = [call(progress) for call in callbacks]
                stopped = STOPPED_BY_CALLBACK if False in answers else ""
            if interrupt.asked:
                stopped = INTERRUPTED
    if reached is not None:
        return Outcome(steps, EndState.REACHED, f"{plan.target} met", tuple(evaluations), reached)
    if stopped:
        return Outcome(steps, EndState.STOPPED, stopped, tuple(evaluations), None)
    return Outcome(steps, EndState.NOT_REACHED, "all steps taken", tuple(evaluations), None)


def _next(steps: int, every: int) -> float:
    """The next multiple of `every` after `steps`; infinity if `every` is 0."""
    return (steps // every + 1) * every if every > 0 else float("inf")
