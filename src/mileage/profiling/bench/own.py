"""Mileage's own side of `mileage bench`: for each primitive, what is timed."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.machine.jit import kernel
from mileage.kernels.mlp import forward
from mileage.profiling.bench import cases
from mileage.profiling.bench.cases import BATCH, GAMMA, LAMBDA, Way, in_python


def gae(n_envs: int, horizon: int, threads: int) -> Way:
    """Advantages and returns."""
    from mileage.kernels import gae

    arrays = cases.plain_rollout(n_envs, horizon)
    return Way(lambda: gae(*arrays, gamma=GAMMA, lambda_=LAMBDA), answer=tuple)


def vtrace(n_envs: int, horizon: int, threads: int) -> Way:
    """Targets and advantages."""
    from mileage.kernels import vtrace

    arrays = tuple(cases.rollout(n_envs, horizon).values())
    return Way(lambda: vtrace(*arrays, gamma=GAMMA), answer=tuple)


def nstep(n_envs: int, horizon: int, n: int, threads: int) -> Way:
    """N-step returns."""
    from mileage.kernels import nstep_returns

    arrays = cases.plain_rollout(n_envs, horizon)
    return Way(lambda: nstep_returns(*arrays, n=n, gamma=GAMMA), answer=np.asarray)


def token_kl(rows: int, length: int, estimator: Any, threads: int) -> Way:
    """Divergence of each row."""
    from mileage.kernels import token_kl

    p, q = cases.log_probs(rows, length)
    return Way(lambda: token_kl(p, q, estimator=estimator), answer=np.asarray)


def groups(groups: int, size: int, threads: int) -> Way:
    """Group-normalised advantages."""
    from mileage.kernels import group_advantages

    rewards = cases.rewards(groups, size)
    return Way(lambda: group_advantages(rewards), answer=np.asarray)


def moments(rows: int, width: int, threads: int) -> Way:
    """Running mean and variance taking in a batch."""
    from mileage.kernels import RunningMoments

    batch, running = cases.batch(rows, width), RunningMoments((width,))
    return Way(lambda: running.update(batch))


def _replay(rows: int, n: int, size: int) -> tuple[Any, Callable[[], None]]:
    from mileage.buffers import ReplayBuffer

    data, buffer = cases.transitions(n, size), ReplayBuffer(rows, size, 1, n_envs=n)
    flags = data["flags"]
    batch = (data["obs"], data["actions"], data["rewards"], flags, flags, data["next_obs"])
    for _ in range(rows // n + 2):
        buffer.push_batch(*batch)
    return buffer, lambda: buffer.push_batch(*batch)


def replay_push(rows: int, n: int, size: int, threads: int) -> Way:
    """One batched push."""
    return Way(_replay(rows, n, size)[1])


def replay_sample(rows: int, n: int, size: int, threads: int) -> Way:
    """A sample of BATCH into memory of its own."""
    buffer, _ = _replay(rows, n, size)
    out = buffer.batch(BATCH)
    return Way(lambda: buffer.sample(BATCH, out))


def prioritized(entries: int, threads: int) -> Way:
    """A sample of BATCH and new priorities for it."""
    from mileage.buffers import PrioritizedReplay

    obs, one = np.random.default_rng(0).random((entries, 4)).astype(np.float32), np.ones(entries, np.float32)
    flags, buffer = np.zeros(entries, np.bool_), PrioritizedReplay(entries, 4)
    buffer.push_batch(obs, one, one, flags, flags, obs)
    out, fresh = buffer.batch(BATCH), itertools.cycle(cases.priorities())

    def run() -> None:
        buffer.sample(BATCH, out)
        buffer.update_priorities(out.indices, next(fresh))

    return Way(run)


def env_step(n_envs: int, threads: int) -> Way:
    """`VecEnv.step` from Python, on one thread."""
    from mileage.envs import VecEnv

    vec = VecEnv("CartPole-v1", n_envs, threads=1)
    vec.reset(seed=0)
    return in_python(vec.step, cases.actions(n_envs))


def _single_blas(run: Callable[[], object]) -> Callable[[], object]:
    """What `learn` does around training: BLAS on one thread, for the work is split over our own."""
    from mileage.kernels.machine.blas import single_threaded_blas

    @functools.wraps(run)
    def wrapped() -> None:
        with single_threaded_blas():
            run()

    return wrapped


def _ppo(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Any:
    import mileage

    agent = mileage.PPO(
        "CartPole-v1", preset="none", n_envs=n_envs, n_steps=n_steps, minibatch=minibatch, epochs=epochs,
        threads=threads, seed=0,
    )  # fmt: skip
    agent.prepare()
    return agent.learner


def rollout(n_envs: int, n_steps: int, threads: int) -> Way:
    """A whole rollout of PPO in one native call."""
    from mileage.kernels import rollout

    engine = _ppo(n_envs, n_steps, n_envs * n_steps, 1, threads)
    pieces = len(engine.episode_sums)
    return Way(_single_blas(lambda: engine.team.run(rollout.rollout, engine.rollout_frame.record, pieces)))


def ppo_update(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Way:
    """A whole update of PPO in one native call."""
    from mileage.kernels import actor_critic
    from mileage.measure import PhaseClock

    engine = _ppo(n_envs, n_steps, minibatch, epochs, threads)
    engine.iterate(PhaseClock(), 0.0)

    def run() -> None:
        frame = engine.update_frame.set(rate=1e-6, clip=0.2, steps=engine.adam_steps)
        engine.team.run(actor_critic.update, frame.record, engine.pieces)

    return Way(_single_blas(run))


def ppo_iteration(n_envs: int, n_steps: int, minibatch: int, epochs: int, threads: int) -> Way:
    """A rollout, its advantages and an update."""
    from mileage.measure import PhaseClock

    engine, clock = _ppo(n_envs, n_steps, minibatch, epochs, threads), PhaseClock()
    return Way(_single_blas(lambda: engine.iterate(clock, 0.0)))


def sac_update(width: int, batch: int, threads: int) -> Way:
    """One gradient step of SAC on Pendulum-v1, sampling included."""
    import mileage
    from mileage.measure import PhaseClock

    agent = mileage.SAC(
        "Pendulum-v1", preset="none", hidden=(width, width), batch=batch, learning_starts=10**6, threads=threads, seed=0
    )
    agent.prepare()
    engine: Any = agent.learner
    clock = PhaseClock()
    while len(engine.replay) < 4 * batch:
        engine.iterate(clock, 0.0)
    return Way(_single_blas(lambda: engine.learn(1)))


def evaluation(episodes: int, threads: int) -> Way:
    """A held-out panel of an untrained policy."""
    import mileage

    agent = mileage.PPO("CartPole-v1", preset="none", threads=threads, seed=0)
    panel = agent.default_panel(episodes=episodes)
    return Way(lambda: agent.evaluate(panel))


@kernel
def _forward(params: Any, sizes: Any, rows: Any, x: Any, hidden: Any) -> Any:
    """Sum of squares of the outputs, so that none of the work can be left out."""
    n = sizes.shape[0]
    out = forward(pointer_to(params), pointer_to(sizes), n, rows, pointer_to(x), pointer_to(hidden), 0)
    return out[0]


def mlp(rows: int, sizes: list[int], threads: int) -> Way:
    """The forward pass of the native policy, on one thread."""
    layers, x = cases.layers(sizes), cases.batch(rows, sizes[0])
    params = np.concatenate([part.reshape(-1) for layer in layers for part in layer])
    hidden, widths = np.zeros(rows * sum(sizes[1:]), np.float32), np.array(sizes, np.int64)
    last = rows * sizes[-1]
    return Way(
        _single_blas(lambda: _forward(params, widths, rows, x, hidden)),
        answer=lambda _: hidden[-last:].reshape(rows, sizes[-1]),
    )


def gemm(size: int, threads: int) -> Way:
    """One product per core at the same time, BLAS on one thread each: the limit of a learner that splits samples."""
    operands = [[np.ones((size, size), np.float32) for _ in range(3)] for _ in range(threads)]
    works = [functools.partial(np.dot, a, b, out=out) for a, b, out in operands]
    return Way(_single_blas(lambda: _at_once(works)), units=threads)


def memory(mib: int, threads: int) -> Way:
    """A copy split over all cores."""
    source = np.ones(mib << 18, np.float32)
    to = np.empty_like(source)
    edges = np.linspace(0, len(source), threads + 1).astype(int)
    works = [functools.partial(np.copyto, to[i:j], source[i:j]) for i, j in itertools.pairwise(edges)]
    return Way(lambda: _at_once(works))


def _at_once(works: Sequence[Callable[[], Any]]) -> None:
    others = [threading.Thread(target=work) for work in works[1:]]
    for thread in others:
        thread.start()
    works[0]()
    for thread in others:
        thread.join()


def phase_event(threads: int) -> Way:
    """Entering and leaving a phase of the run's clock."""
    from mileage.measure import PhaseClock

    phase = PhaseClock().phase("learn")

    def run() -> None:
        with phase:
            pass

    return Way(run)
