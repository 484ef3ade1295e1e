"""The training loop. There is one: it owns the clock, decides when to evaluate and to save, and when to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mileage.contracts import IterationStats, Learner
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.ledger.rows import EndState
from mileage.ledger.runs import EvalPoint
from mileage.ledger.targets import Evaluation, Target
from mileage.measure import Phase, PhaseClock
from mileage.system import watch

INTERRUPTED, TERMINATED = "interrupted", "terminated"
STOPPED_BY_CALLBACK = "stopped by a callback"
"""Why a run ended as `stopped`."""
_STEPPING = (Phase.ENV_STEP, Phase.ENV_RESET, Phase.INFERENCE, Phase.ROLLOUT)
"""What an evaluation does too."""


@dataclasses.dataclass(frozen=True)
class RunProgress:
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


Callback = Callable[[RunProgress], bool | None]
"""Called after every iteration; training stops if it returns False."""


@dataclasses.dataclass
class Plan:
    """How far to train, what to reach, and how often to look."""

    horizon: int
    """Steps at which training ends."""
    eval_every: int
    """Steps between held-out evaluations; 0 for none at all."""
    target: Target | None = None
    """What to reach on the panel."""
    stop_at_target: bool = True
    """Whether reaching the target ends the run."""
    checkpoint_every: int = 0
    """Steps between checkpoints; 0 for none before the end."""
    eval_share: float = 0.0
    """Share of the time in training that evaluations before the last may take: one that would take more is left out. 0
    for no limit. What training computes does not depend on it."""
    eval_episodes: int = 0
    """Episodes of one evaluation."""

    def value(self, evaluation: Evaluation) -> float:
        """What makes one evaluation better than another."""
        return evaluation.mean_return if self.target is None else self.target.value(evaluation)


@dataclasses.dataclass(frozen=True)
class RunOutcome:
    """How the loop ended."""

    steps: int
    end: EndState
    reason: str
    evaluations: tuple[EvalPoint, ...]
    reached: EvalPoint | None


class _Interrupt:
    """Turns the first Ctrl-C, SIGTERM or SIGUSR1 into a wish that the loop reads between iterations: all is saved.

    The second one interrupts at once, inside native calls too. Signals reach only the main thread; elsewhere this does
    nothing.
    """

    # SIGUSR1 is how Slurm warns a job that its time is up.
    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self.reason = ""
        """Why the loop is to end; empty while it is not."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _Interrupt:
        if threading.current_thread() is threading.main_thread():
            watch()
            self._before = {number: signal.signal(number, self._handle) for number in self._SIGNALS}
        return self

    def _handle(self, number: int, _: object) -> None:
        if self.reason:
            raise KeyboardInterrupt
        self.reason = INTERRUPTED if number == signal.SIGINT else TERMINATED

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _stopped_afterwards(learner: Learner) -> Iterator[None]:
    """Whatever happens, leave no thread of the learner working; after an error it need not finish what it is at."""
    try:
        yield
    except BaseException:
        learner.stop(finish=False)
        raise
    learner.stop()


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


class _Allowance:
    """Keeps evaluations within a share of the time in training, that of imports and compiling left out.

    How long one will take is told by the one before, and for the first by the training episodes: as many as the panel
    has, each as long as those, at the pace of the steps so far. Lengths change while a policy learns, so that both are
    estimates.
    """

    def __init__(self, plan: Plan, steps: int) -> None:
        self._share, self._episodes, self._budget = plan.eval_share, plan.eval_episodes, plan.horizon - steps
        self._length = math.nan
        self._evaluated = 0
        self._steps = 0

    def trained(self, stats: IterationStats, steps: int) -> None:
        """Take note of an iteration."""
        self._steps += steps
        if self._share and stats.episodes:
            self._length = stats.episode_length

    def note(self, evaluation: Evaluation) -> None:
        """Take note of an evaluation."""
        self._evaluated += int(evaluation.lengths.sum())

    def allows(self, clock: PhaseClock) -> bool:
        """Whether an evaluation now, and the one at the end, would stay within the share."""
        if self._share <= 0.0:
            return True
        times = clock.times()
        spent, *before = (times.phases.get(name, 0.0) for name in (Phase.EVAL, Phase.INIT, Phase.COMPILE))
        trained = times.wall_seconds - spent - sum(before)
        stepped = sum(times.phases.get(name, 0.0) for name in _STEPPING)
        pace = spent / self._evaluated if self._evaluated else stepped / max(self._steps, 1)
        # Without an end of an episode so far, episodes are at least as long as what was seen of one.
        length = self._steps if math.isnan(self._length) else self._length
        cost = pace * length * self._episodes
        whole_run = trained * self._budget / max(self._steps, 1)
        return spent + cost <= self._share * (trained + spent + cost) and spent + 2.0 * cost <= self._share * whole_run


def run(
    learner: Learner, evaluate: Callable[[], Evaluation] | None, plan: Plan, clock: PhaseClock, *, steps: int = 0,
    callbacks: tuple[Callback, ...] = (), save: Callable[[int], None] | None = None,
    on_evaluation: Callable[[EvalPoint], None] | None = None, save_best: Callable[[], None] | None = None,
    on_steps: Callable[[int], None] | None = None,
) -> RunOutcome:  # fmt: skip
    """Train from `steps` to the plan's horizon, or to its target.

    Ctrl-C and SIGTERM end the run as `stopped` after the iteration under way.
    """
    evaluations: list[EvalPoint] = []
    reached: EvalPoint | None = None
    best: float | None = None
    eval_phase, log_phase, save_phase = clock.phase(Phase.EVAL), clock.phase(Phase.LOG), clock.phase(Phase.CHECKPOINT)
    next_eval, next_save = _next(steps, plan.eval_every), _next(steps, plan.checkpoint_every)
    stopped = ""
    ends = _Ends()
    allowance = _Allowance(plan, steps)
    with single_threaded_blas(), _Interrupt() as interrupt, _stopped_afterwards(learner):
        while steps < plan.horizon and not stopped and not (reached is not None and plan.stop_at_target):
            resets, resetting = learner.env.resets
            stats = learner.iterate(clock, steps / plan.horizon)
            more, until = learner.env.resets
            if more > resets:
                clock.shift(Phase.ENV_STEP, Phase.ENV_RESET, until - resetting, more - resets)
            steps += learner.steps_per_iteration
            ends.add(stats)
            allowance.trained(stats, learner.steps_per_iteration)
            evaluation = None
            due = steps >= next_eval
            if due:
                next_eval = _next(steps, plan.eval_every)
            wanted = steps >= plan.horizon or (due and allowance.allows(clock))
            if evaluate is not None and plan.eval_every and wanted:
                with eval_phase:
                    evaluation = evaluate()
                allowance.note(evaluation)
                point = EvalPoint(steps, clock.times().wall_seconds, evaluation, ends.take())
                evaluations.append(point)
                if save_best is not None and (best is None or plan.value(evaluation) > best):
                    best = plan.value(evaluation)
                    with save_phase:
                        save_best()
                if reached is None and plan.target is not None and plan.target.met(evaluation):
                    reached = point
                if on_evaluation is not None:
                    with log_phase:
                        on_evaluation(point)
            if on_steps is not None:
                on_steps(steps)
            if save is not None and steps >= next_save:
                next_save = _next(steps, plan.checkpoint_every)
                with save_phase:
                    save(steps)
            if callbacks:
                with log_phase:
                    progress = RunProgress(steps, plan.horizon, stats, evaluation, clock)
                    answers = [call(progress) for call in callbacks]
                stopped = STOPPED_BY_CALLBACK if False in answers else ""
            stopped = interrupt.reason or stopped
    if reached is not None:
        return RunOutcome(steps, EndState.REACHED, f"{plan.target} met", tuple(evaluations), reached)
    if stopped:
        return RunOutcome(steps, EndState.STOPPED, stopped, tuple(evaluations), None)
    end = EndState.FINISHED if plan.target is None else EndState.NOT_REACHED
    return RunOutcome(steps, end, "all steps taken", tuple(evaluations), None)


def _next(steps: int, every: int) -> float:
    """The next multiple of `every` after `steps`; infinity if `every` is 0."""
    return (steps // every + 1) * every if every > 0 else float("inf")
