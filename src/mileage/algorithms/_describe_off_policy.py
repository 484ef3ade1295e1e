"""How off-policy learners describe themselves: one call that acts, one that learns in stages, a replay buffer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from mileage._types import Team
from mileage.algorithms import _describe as parts_of
from mileage.buffers import PrioritizedReplay
from mileage.description import ACT, UPDATE, Action, Boundary, Buffer, Call, Description, Stages, Variant, Work
from mileage.kernels.machine.pointers import Frame

if TYPE_CHECKING:
    from mileage.algorithms._off_policy import OffPolicy

# A batch that keeps BLAS busy without changing what an off-policy algorithm learns from too much.
_USUAL_BATCH = 256
# A buffer of so many bytes stays in caches, one of so many batches still has something to choose from; and how many
# times as large one must be for the difference to be worth a question.
_CACHED_BYTES, _FEWEST_ROWS, _FAR_LARGER = 16 * 2**20, 16, 8


@dataclasses.dataclass(frozen=True)
class NativeUpdate:
    """The call that learns, as a learner makes it."""

    kernel: Callable[..., Any]
    frame: Frame
    """Its arguments; `steps` and `stage` are fields of it."""
    pieces: int
    stages: tuple[str, ...]
    """Of the kernel."""
    rates: tuple[str, ...]
    """Fields that hold a learning rate."""
    period: int = 1
    """Updates in which every stage has its turn."""
    last_is_rare: bool = False
    """Whether only the last stage waits for the end of a period."""


def off_policy(learner: OffPolicy, work: Mapping[str, Work], networks: tuple[Buffer, ...]) -> Description:
    """A learner with a replay buffer; `work` is by phase."""
    config, replay = learner.config, learner.replay
    operations: dict[str, Action] = {ACT: lambda: learner.act(0.5)}
    if config.gradient_steps > 0 and len(replay) >= config.batch:
        operations[UPDATE] = lambda: learner.learn(config.gradient_steps)
    calls = ("push_batch", "sample", *(("update_priorities",) if isinstance(replay, PrioritizedReplay) else ()))
    return Description(
        work=work,
        boundaries=(
            parts_of.env_step(learner.env),
            *(parts_of.native(replay, name, f"replay.{name}") for name in calls),
        ),
        at_rest=lambda: parts_of.unchanged(learner),
        operations=operations,
        buffers=(parts_of.replay_buffer(learner.policy, learner.obs, replay, config.capacity), *networks),
        variants=(*_other_batches(learner, operations.get(UPDATE)), *_smaller_buffers(learner)),
    )


def native_off_policy(
    learner: OffPolicy, update: NativeUpdate, act: Boundary, learn: Work, inference: Work, networks: tuple[Buffer, ...]
) -> Description:
    """A learner with a replay buffer whose `update` and `act` are native calls, with the work of both."""
    replay = _Replay(learner, update)
    described = off_policy(learner, {"learn": learn, "inference": inference}, networks)
    stages = Stages(update.stages, replay.up_to, update.period, update.last_is_rare)
    return dataclasses.replace(
        described,
        boundaries=(*described.boundaries, parts_of.native(learner.team, "run", ""), act),
        calls={
            "learn": Call(update.kernel.__name__, lambda: replay.up_to(None, 0), update.pieces, stages),
            "inference": Call(act.label, described.operations[ACT], 1),
        },
        team=learner.team,
        on_team=replay.on_team,
        at_rest=replay.at_rest,
    )


class _Replay:
    """Makes the call that learns again, on the learner's own memory."""

    def __init__(self, learner: OffPolicy, update: NativeUpdate) -> None:
        self._learner, self._update = learner, update

    def up_to(self, stage: int | None, turn: int) -> None:
        """Update number `turn` of a period, up to a stage."""
        update, learner = self._update, self._learner
        last = len(update.stages) - 1 if stage is None else stage
        steps = learner.updates // update.period * update.period + turn
        learner.team.run(update.kernel, update.frame.set(steps=steps, stage=last).record, update.pieces)

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Within it updates have length 0."""
        frame, rates = self._update.frame, self._update.rates
        with parts_of.unchanged(self._learner):
            frame.set(**dict.fromkeys(rates, 0.0))
            try:
                yield
            finally:
                rate, last = self._learner.config.learning_rate, len(self._update.stages) - 1
                frame.set(**dict.fromkeys(rates, rate), stage=last)

    def on_team(self, team: Team) -> AbstractContextManager[None]:
        """Let updates run on another team."""
        return parts_of.on_team(self._learner, [self._update.frame], team)


def _other_batches(learner: OffPolicy, learn: Action | None) -> Iterator[Variant]:
    """A larger batch, learnt from as much less often."""
    config = learner.config
    if learn is None or config.batch >= _USUAL_BATCH or len(learner.replay) < _USUAL_BATCH:
        return
    factor = _USUAL_BATCH // config.batch
    batch = config.batch * factor

    @contextlib.contextmanager
    def other() -> Iterator[Action]:
        larger = dataclasses.replace(config, batch=batch)
        found = type(learner)(larger, learner.env, learner.policy, learner.team, learner.seed)
        found.replay = learner.replay
        described = found.describe()
        assert described is not None
        yield described.operations[UPDATE]

    settings = {"batch": batch, "train_every": config.train_every * factor}
    yield Variant("batch", settings, "learn", 1.0 / factor, learn, other)


def _smaller_buffers(learner: OffPolicy) -> Iterator[Variant]:
    """A replay buffer that is not beyond every cache: the same pages again and again."""
    replay, config = learner.replay, learner.config
    row = replay.nbytes / max(1, config.capacity)
    capacity = int(max(_FEWEST_ROWS * config.batch, config.learning_starts, _CACHED_BYTES // row))
    if config.capacity < _FAR_LARGER * capacity:
        return

    @contextlib.contextmanager
    def other() -> Iterator[Action]:
        smaller = type(learner)(
            dataclasses.replace(config, capacity=capacity), learner.env, learner.policy, learner.team, learner.seed
        )
        yield smaller.push

    yield Variant("capacity", {"capacity": capacity}, "store", 1.0, learner.push, other)
