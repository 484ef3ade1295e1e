"""How native learners describe themselves to the profiler: rollouts in parts, updates in stages."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from mileage.algorithms import describe as parts_of
from mileage.algorithms import rollout_learner
from mileage.algorithms.configs import varied
from mileage.buffers import PrioritizedReplay
from mileage.description import (
    ACT,
    UPDATE,
    VALUE,
    Boundary,
    Buffer,
    Call,
    Description,
    Parts,
    Stages,
    Task,
    Variant,
    Work,
)
from mileage.envs.native.vector import VecEnv
from mileage.kernels import actor_critic, rollout
from mileage.kernels.machine.frames import Frame
from mileage.records import named
from mileage.types import Array, Team

if TYPE_CHECKING:
    from mileage.algorithms.off_policy import OffPolicy
    from mileage.algorithms.rollout_learner import RolloutLearner
    from mileage.algorithms.rollouts import NativeOnPolicy


GAE = parts_of.native(rollout_learner, "run_shards", "gae")
"""The call that computes advantages."""
# Larger minibatches, and more environments for fewer steps each, that are worth a try.
_MINIBATCH_FACTORS = (4, 8)
_ENV_FACTOR = 4
# The shuffle takes a few microseconds: by itself it would drown in the meetings of threads around it.
_STAGES = ("loop, barriers and shuffle", *actor_critic.STAGES[2:])

# What an update reads of a rollout.
_LEARNED_FROM = ("obs", "actions", "log_probs", "values", "advantages", "returns")


def native_on_policy(learner: NativeOnPolicy) -> Description:
    """A learner that collects and learns in turn."""
    replay = _Replay(learner)
    phase, work, call = replay.rollout() if learner.fused else replay.inference()
    update = replay.update()
    return Description(
        work={"learn": update_work(learner), phase: work},
        boundaries=(*native_boundaries(learner), GAE),
        calls={"learn": update, phase: call},
        team=learner.team,
        on_team=replay.on_team,
        paused=replay.paused,
        operations=replay.operations(),
        buffers=buffers(learner, [learner.policy.params], [learner.adam_mean, learner.adam_square]),
        variants=(*other_minibatches(learner, update), *replay.other_n_envs()),
    )


def learner_alone(learner: NativeOnPolicy, *boundaries: Boundary) -> Description:
    """A learner whose rollouts others collect beside it: its update, on the threads that are left for it."""
    replay = _Replay(learner, collects=False)
    return Description(
        work={"learn": update_work(learner)},
        boundaries=(*native_boundaries(learner), *boundaries),
        calls={"learn": replay.update()},
        team=learner.team,
        paused=replay.paused,
    )


def native_boundaries(learner: NativeOnPolicy) -> tuple[Boundary, ...]:
    """Calls through which native learners collect and learn."""
    acting = parts_of.native(rollout, "act"), parts_of.native(rollout, "values")
    return parts_of.env_step(learner.env), parts_of.native(learner.team, "run", ""), *acting


def update_work(learner: NativeOnPolicy) -> Work:
    """All epochs of one update."""
    config, policy, batch = learner.config, learner.policy, learner.batch
    pieces = {"rows": learner.chunk_rows, "chunks": learner.chunks, "minibatch": min(config.minibatch, batch)}
    return parts_of.on_policy_learn(
        policy.actor_sizes, policy.critic_sizes, **pieces, batch=batch, epochs=config.epochs
    )


def buffers(learner: RolloutLearner, networks: Sequence[Array], moments: Sequence[Array]) -> tuple[Buffer, ...]:
    """The rollout, the networks and their optimizer."""
    normalises = learner.config.normalise_observations
    names = "actions log_probs values rewards truncated_values terminated truncated advantages returns order"
    stored = [*named(learner, names).values(), *([learner.raw_obs] if normalises else [])]
    return (
        parts_of.rollout_buffer(learner.policy, learner.obs, stored, normalises=normalises),
        *parts_of.network_buffers(networks, [], moments),
    )


def other_minibatches(learner: RolloutLearner, update: Call) -> Iterator[Variant]:
    """Larger minibatches of the same rollout."""
    own = min(learner.config.minibatch, learner.batch)

    @contextlib.contextmanager
    def other(size: int) -> Iterator[Task]:
        config = varied(learner.config, {"minibatch": size})
        found = type(learner)(config, learner.env, learner.policy, learner.team, learner.seed)
        for name in _LEARNED_FROM:
            getattr(found, name)[...] = getattr(learner, name)
        described = found.describe()
        assert described is not None
        yield described.calls["learn"].run

    for size in dict.fromkeys(min(own * factor, learner.batch) for factor in _MINIBATCH_FACTORS):
        if size > own:
            yield Variant("minibatch", {"minibatch": size}, "learn", 1.0, update.run, functools.partial(other, size))


class _Replay:
    """Makes the calls of a learner again, on its own memory."""

    def __init__(self, learner: NativeOnPolicy, *, collects: bool = True) -> None:
        self.learner = learner
        self._repeats_rollouts = collects and learner.fused
        self._pieces = learner.pieces if collects else min(learner.pieces, learner.ranks)
        self._begun: list[tuple[Array, Array]] = []

    # The update

    def update(self) -> Call:
        """The update, which can stop after any stage."""
        return Call("update", lambda: self._up_to(None, 0), self._pieces, Stages(_STAGES, self._up_to))

    def _up_to(self, stage: int | None, turn: int) -> None:
        last = actor_critic.LAST_STAGE if stage is None else stage + 1
        learner = self.learner
        frame = learner.update_frame.set(steps=learner.adam_steps, stage=last)
        learner.team.run(actor_critic.update, frame.record, self._pieces)

    # The rollout

    def inference(self) -> tuple[str, Work, Call]:
        """Choosing actions for all environments at once."""
        policy, n_envs = self.learner.policy, self.learner.n_envs
        work = parts_of.one_forward(n_envs, policy.critic_sizes, policy.actor_sizes)
        return "inference", work, Call("act", self.operations()[ACT], 1)

    def rollout(self) -> tuple[str, Work, Call]:
        """The fused rollout and its parts."""
        learner, policy = self.learner, self.learner.policy
        kernels = rollout.environments, rollout.inference, rollout.storage
        environments, inference, storage = (_collect(learner, kernel) for kernel in kernels)
        parts = Parts(environments, inference, storage, self._rewind)
        size = {"n_envs": learner.n_envs, "n_steps": learner.config.n_steps, "block": learner.block}
        call = Call("rollout", _collect(learner, rollout.rollout), len(learner.episode_sums), parts=parts)
        return "rollout", parts_of.on_policy_rollout(policy.actor_sizes, policy.critic_sizes, **size), call

    def _rewind(self, part: str) -> None:
        """Put environments and random streams back to where the stored rollout began."""
        for array, start in self._begun:
            array[...] = start
        self.learner.env.obs[...] = self._obs_after if part == "inference" else self._obs_before
        self.learner.episode_sums[:] = 0.0

    def _store_rollout(self) -> None:
        learner, env = self.learner, self.learner.env
        self._begun = [(array, array.copy()) for array in (*_moving(env), learner.action_rng, learner.episode)]
        self._obs_before = env.obs.copy()
        _collect(learner, rollout.rollout)()
        self._obs_after = env.obs.copy()

    # Both

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it updates have length 0, and one rollout can be repeated."""
        learner = self.learner
        with parts_of.unchanged(learner):
            learner.update_frame.set(rate=0.0)
            if self._repeats_rollouts:
                self._store_rollout()
            try:
                yield
            finally:
                learner.update_frame.set(stage=actor_critic.LAST_STAGE)

    def on_team(self, team: Team) -> AbstractContextManager[None]:
        """Let both run on another team."""
        return parts_of.on_team(self.learner, [self.learner.update_frame, self.learner.rollout_frame], team)

    def operations(self) -> dict[str, Task]:
        """Acting and valuing for all environments, each in one call."""
        learner, policy = self.learner, self.learner.policy
        kind = rollout.MASKED_ACT if policy.structured_actions else rollout.ACT
        frame = Frame(kind, **learner.policy_fields(), obs=learner.shown_obs, n_envs=learner.n_envs)
        # The rollout's workspace is as large as its blocks need; one call for all environments may need more.
        width = sum(policy.actor_sizes) + sum(policy.critic_sizes)
        frame.set(works=np.zeros(learner.n_envs * width + 64, np.float32))
        out = np.zeros(learner.n_envs, np.float32)
        return {ACT: lambda: rollout.act(frame.record, 0), VALUE: lambda: rollout.values(frame.record, out)}

    def other_n_envs(self) -> Iterator[Variant]:
        """More environments for fewer steps each: rollouts of the same size from the fused collector."""
        learner, steps = self.learner, self.learner.config.n_steps
        if not learner.fused or steps < 2 * _ENV_FACTOR:
            return
        settings = {"n_envs": learner.n_envs * _ENV_FACTOR, "n_steps": steps // _ENV_FACTOR}

        @contextlib.contextmanager
        def other() -> Iterator[Task]:
            config = varied(learner.config, settings)
            env = learner.env.spec.vector(settings["n_envs"], seed=learner.seed, threads=learner.team.n_ranks)
            with contextlib.closing(env):
                found = type(learner)(config, env, learner.policy, learner.team, learner.seed)
                yield _collect(found, rollout.rollout)

        entries = learner.batch / (settings["n_envs"] * settings["n_steps"])
        yield Variant("n_envs", settings, "rollout", entries, _collect(learner, rollout.rollout), other)


def _collect(learner: NativeOnPolicy, kernel: Callable[..., Any]) -> Task:
    """The rollout's kernel, or one of its parts, on the rollout's arguments."""
    return lambda: learner.team.run(kernel, learner.rollout_frame.record, len(learner.episode_sums))


def _moving(env: object) -> tuple[Array, ...]:
    """What steps of native environments change."""
    assert isinstance(env, VecEnv)
    return env.state, env.elapsed, env.rng


# --- How off-policy learners describe themselves: one call that acts, one that learns in stages, a replay buffer ---
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
    operations: dict[str, Task] = {ACT: lambda: learner.act(0.5)}
    if config.gradient_steps > 0 and len(replay) >= config.batch:
        operations[UPDATE] = lambda: learner.learn(config.gradient_steps)
    calls = ("push_batch", "sample", *(("update_priorities",) if isinstance(replay, PrioritizedReplay) else ()))
    return Description(
        work=work,
        boundaries=(
            parts_of.env_step(learner.env),
            *(parts_of.native(replay, name, f"replay.{name}") for name in calls),
        ),
        paused=lambda: parts_of.unchanged(learner),
        operations=operations,
        buffers=(parts_of.replay_buffer(learner.policy, learner.obs, replay, config.capacity), *networks),
        variants=(*_other_batches(learner, operations.get(UPDATE)), *_smaller_buffers(learner)),
    )


def native_off_policy(
    learner: OffPolicy, update: NativeUpdate, act: Boundary, learn: Work, inference: Work, networks: tuple[Buffer, ...]
) -> Description:
    """A learner with a replay buffer whose `update` and `act` are native calls, with the work of both."""
    replay = _OffPolicyReplay(learner, update)
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
        paused=replay.paused,
    )


class _OffPolicyReplay:
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
    def paused(self) -> Iterator[None]:
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


def _other_batches(learner: OffPolicy, learn: Task | None) -> Iterator[Variant]:
    """A larger batch, learnt from as much less often."""
    config = learner.config
    if learn is None or config.batch >= _USUAL_BATCH or len(learner.replay) < _USUAL_BATCH:
        return
    factor = _USUAL_BATCH // config.batch
    batch = config.batch * factor

    @contextlib.contextmanager
    def other() -> Iterator[Task]:
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
    def other() -> Iterator[Task]:
        smaller = type(learner)(
            dataclasses.replace(config, capacity=capacity), learner.env, learner.policy, learner.team, learner.seed
        )
        yield smaller.push

    yield Variant("capacity", {"capacity": capacity}, "store", 1.0, learner.push, other)
