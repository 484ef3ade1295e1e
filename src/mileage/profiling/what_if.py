"""Measured answers to "what if": the same work with other threads, minibatches, environments, on the other back end.

Each answer is the ratio of new to old seconds of single phases, for a configuration that learns from as many samples.
It is an estimate of the whole: only an experiment to the target says what a change is worth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from mileage._cores import usable_cores
from mileage._errors import MileageError
from mileage.algorithms._native_on_policy import NativeOnPolicy
from mileage.contracts import Saved
from mileage.envs.make import make_vec
from mileage.kernels.learners import rollout as fused
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.profiling.limits import best
from mileage.profiling.native_replay import NativeReplay
from mileage.profiling.tracing import TraceClock
from mileage.training.agent import Agent

_SECONDS = 0.15
_MINIBATCH_FACTORS = (4, 8)
_ENV_FACTOR = 4
# A batch that keeps BLAS busy without changing what an off-policy algorithm learns from too much.
_USUAL_BATCH = 256


@dataclasses.dataclass(frozen=True)
class WhatIf:
    """One change, and what it did to the phases it touches."""

    fix: str
    suggestion: str
    """The flag or setting."""
    ratios: Mapping[str, float]
    """Seconds of a phase after the change over those before."""

    def gain(self, shares: Mapping[str, float]) -> float:
        """Share of the wall-clock saved if the phases take these shares of it now; below 0 if the change slows down."""
        return sum(shares.get(phase, 0.0) * (1.0 - ratio) for phase, ratio in self.ratios.items())


def what_ifs(
    agent: Agent, replay: NativeReplay | None, scaling: Mapping[int, Mapping[str, float]], effort: float = 1.0
) -> list[WhatIf]:
    """All changes that can be measured on this agent; `effort` scales how long is measured."""
    seconds = effort * _SECONDS
    found = threads(agent, scaling)
    if agent.name in ("ppo", "a2c"):
        found += _quietly(minibatch, agent, seconds)
        if replay is not None and replay.fused:
            found += _quietly(n_envs, agent, seconds)
    else:
        found += _quietly(batch, agent, seconds)
    if agent.backend == "torch" and agent.policy_name == "mlp":
        found += _quietly(native_backend, agent, 3 * seconds)
    return found


def _quietly(measure: Callable[[Agent, float], list[WhatIf]], agent: Agent, seconds: float) -> list[WhatIf]:
    """A change that this configuration does not allow is no answer, and no error."""
    with single_threaded_blas(), contextlib.suppress(MileageError):
        return measure(agent, seconds)
    return []


def threads(agent: Agent, scaling: Mapping[int, Mapping[str, float]]) -> list[WhatIf]:
    """Another number of threads, up to the number of cores."""
    own = scaling.get(agent.threads)
    if own is None:
        return []
    found = []
    for count, seconds in scaling.items():
        if count != agent.threads and count <= usable_cores():
            ratios = {phase: seconds[phase] / own[phase] for phase in own}
            found.append(WhatIf("threads", f"--threads {count}", ratios))
    return found


def minibatch(agent: Agent, limit: float) -> list[WhatIf]:
    """Larger minibatches of the same rollout."""
    engine: Any = agent.learner
    size = min(engine.config.minibatch, engine.batch)
    sizes = [min(size * factor, engine.batch) for factor in _MINIBATCH_FACTORS]
    sizes = [other for other in dict.fromkeys(sizes) if other > size]
    if agent.name == "a2c" or not sizes:
        return []
    saved = _saved(engine)
    others = {other: _other_engine(engine, minibatch=other) for other in sizes}
    arms = {"own": _learner(engine), **{str(other): _learner(found) for other, found in others.items()}}
    seconds = best(arms, seconds=limit)
    _restore(saved)
    return [
        WhatIf("minibatch", f"--set minibatch={other}", {"learn": seconds[str(other)] / seconds["own"]})
        for other in sizes
    ]


def n_envs(agent: Agent, limit: float) -> list[WhatIf]:
    """More environments for fewer steps each: rollouts of the same size from the fused collector."""
    engine: Any = agent.learner
    steps, envs = engine.config.n_steps, engine.n_envs
    if steps < 2 * _ENV_FACTOR:
        return []
    saved = _saved(engine)
    env = make_vec(agent.spec, envs * _ENV_FACTOR, seed=agent.seed, threads=agent.threads)
    config = dataclasses.replace(engine.config, n_envs=envs * _ENV_FACTOR, n_steps=steps // _ENV_FACTOR)
    other = type(engine)(config, env, engine.policy, engine.team, agent.seed)

    def collect(each: Any) -> Callable[[], object]:
        return lambda: each.team.run(fused.rollout, each.rollout_frame.record, len(each.episode_sums))

    seconds = best({"own": collect(engine), "other": collect(other)}, seconds=limit)
    env.close()
    _restore(saved)
    samples = (envs * steps) / (other.n_envs * config.n_steps)
    ratio = seconds["other"] * samples / seconds["own"]
    setting = f"--set n_envs={envs * _ENV_FACTOR} --set n_steps={steps // _ENV_FACTOR}"
    return [WhatIf("n_envs", setting, {"rollout": ratio})]


def batch(agent: Agent, limit: float) -> list[WhatIf]:
    """A larger batch, learnt from as much less often."""
    engine: Any = agent.learner
    config: Any = agent.config
    if config.batch >= _USUAL_BATCH or len(engine.replay) < _USUAL_BATCH:
        return []
    factor = _USUAL_BATCH // config.batch
    saved = _saved(engine)
    larger = dataclasses.replace(config, batch=config.batch * factor, capacity=config.batch * factor)
    other = type(engine)(larger, engine.env, engine.policy, engine.team, agent.seed)
    other.replay = engine.replay
    updates = max(1, config.gradient_steps)
    arms = {"own": lambda: engine.learn(updates), "other": lambda: other.learn(updates)}
    seconds = best(arms, seconds=limit)
    _restore(saved)
    setting = f"--set batch={larger.batch} --set train_every={config.train_every * factor}"
    return [WhatIf("batch", setting, {"learn": seconds["other"] / factor / seconds["own"]})]


def native_backend(agent: Agent, limit: float) -> list[WhatIf]:
    """The same algorithm and environment without torch."""
    settings = dataclasses.asdict(agent.config)
    native = type(agent)(
        agent.spec, seed=agent.seed, preset="none", threads=agent.threads, backend="native", **settings
    )
    with native:
        native.prepare()
        own, other = _iteration_phases(agent, limit), _iteration_phases(native, limit)
    collecting = ("inference", "env_step", "rollout")
    before = sum(own.get(phase, 0.0) for phase in collecting)
    after = sum(other.get(phase, 0.0) for phase in collecting)
    ratios = {phase: after / before for phase in collecting if phase in own and before}
    if own.get("learn") and other.get("learn"):
        ratios["learn"] = other["learn"] / own["learn"]
    return [WhatIf("backend_native", "--backend native", ratios)]


def _iteration_phases(agent: Agent, seconds: float) -> dict[str, float]:
    """Shortest seconds per iteration of every phase."""
    algorithm: Any = agent.learner
    config: Any = agent.config
    if hasattr(config, "learning_starts"):
        # Learning starts as soon as there is a batch.
        while len(algorithm.replay) < max(config.batch * max(1, config.gradient_steps), config.learning_starts):
            algorithm._step(algorithm._act_randomly())
    shortest: dict[str, float] = {}
    end = time.perf_counter() + seconds
    for turn in range(100):
        if turn >= 3 and time.perf_counter() > end:
            break
        spans: list[Any] = []
        clock: Any = TraceClock(spans)
        algorithm.iterate(clock, 0.5)
        sums: dict[str, float] = {}
        for name, _, start, stop, *_ in spans:
            sums[name] = sums.get(name, 0.0) + (stop - start) / 1e9
        for name, value in sums.items():
            shortest[name] = min(value, shortest.get(name, value))
    return shortest


def _other_engine(engine: Any, **changes: Any) -> Any:
    """An engine with other settings and the same rollout in it."""
    config = dataclasses.replace(engine.config, **changes)
    other = type(engine)(config, engine.env, engine.policy, engine.team, 0)
    for name in ("obs", "actions", "log_probs", "values", "advantages", "returns"):
        getattr(other, name)[...] = getattr(engine, name)
    return other


def _learner(engine: Any) -> Callable[[], object]:
    """A function that does one update of length 0."""
    if not isinstance(engine, NativeOnPolicy):
        return lambda: engine._learn(0.0, 0.2)
    from mileage.kernels.learners import actor_critic

    frame = engine.update_frame.set(rate=0.0, clip=0.2, steps=1)
    return lambda: engine.team.run(actor_critic.update, frame.record, engine.pieces)


def _saved(engine: Any) -> tuple[Any, Saved]:
    """A copy of all but the replay buffer, which nothing here writes to."""
    saved = engine.saved()
    copies = {name: array.copy() for name, array in engine.state_arrays().items()}
    return engine, Saved({**saved.arrays, **copies}, dict(saved.counters))


def _restore(saved: tuple[Any, Saved]) -> None:
    engine, state = saved
    engine.restore(state)
