"""What learners' descriptions are made of: matrix products, buffers, calls that stop early, a state of rest.

One list of products serves three ends: it is counted (operations), replayed alone (time in BLAS), and compared with
what the machine can do (roofline). Operations are those of the products alone, as is usual.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from mileage.algorithms.rollout_learner import StatefulLearner
from mileage.buffers import ReplayBuffer
from mileage.contracts import Policy, Saved, VectorEnv
from mileage.description import Boundary, Buffer, Layer, Product, Work
from mileage.kernels.machine.frames import Frame
from mileage.types import Array, Team

Sizes = tuple[int, ...]
"""Widths of a network's layers, inputs first."""


# Products


def forward(rows: int, sizes: Sizes) -> list[Product]:
    """Products of a forward pass of `rows` samples through layers of these sizes."""
    return [Product(0, 0, rows, outputs, inputs) for inputs, outputs in itertools.pairwise(sizes)]


def backward(rows: int, sizes: Sizes) -> list[Product]:
    """Products of the gradient by all parameters."""
    layers = list(itertools.pairwise(sizes))
    by_weights = [Product(1, 0, inputs, outputs, rows) for inputs, outputs in layers]
    return by_weights + [Product(0, 1, rows, inputs, outputs) for inputs, outputs in layers[1:]]


def input_gradient(rows: int, sizes: Sizes) -> list[Product]:
    """Products of the gradient by the input."""
    return [Product(0, 1, rows, inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]


def by_units(rows: int, sizes: Sizes, pieces: int, passes: int) -> list[Product]:
    """Products of a piece of a network cut by hidden units (`kernels.dqn`): forward passes and gradient."""
    *_, last, outputs = sizes
    hidden = list(itertools.pairwise(sizes[1:-1]))
    forwards = [Product(0, 0, rows, sizes[1], sizes[0]), *(Product(0, 0, rows, n, k // pieces) for k, n in hidden)]
    forwards.append(Product(0, 0, rows, outputs, last))
    gradients = [Product(1, 0, last // pieces, outputs, rows), Product(1, 0, sizes[0], sizes[1] // pieces, rows)]
    gradients += [Product(1, 0, k // pieces, n, rows) for k, n in hidden]
    back = [Product(0, 1, rows, last, outputs), *(Product(0, 1, rows, k // pieces, n) for k, n in hidden)]
    return forwards * passes + gradients + back


# Work


def n_params(*networks: Sizes) -> int:
    """Weights and biases of networks."""
    return sum(a * b + b for sizes in networks for a, b in itertools.pairwise(sizes))


def _activation_bytes(products: Sequence[Product]) -> float:
    """Operands and results of all products once each."""
    return 4.0 * sum(m * k + k * n + m * n for _, _, m, n, k in products)


def _optimizer_bytes(n: int, chunks: int) -> float:
    """Chunks' gradients read and summed; parameters, gradient and both moments read, all but the gradient written."""
    return 4.0 * n * (chunks + 1 + 4 + 3)


def on_policy_learn(
    actor: Sizes, critic: Sizes, *, rows: int, chunks: int, batch: int, minibatch: int, epochs: int
) -> Work:
    """An update of actor and critic on all `batch` samples of a rollout, minibatches cut into `chunks` of `rows`."""
    products = forward(rows, actor) + backward(rows, actor) + forward(rows, critic) + backward(rows, critic)
    steps, parameters = epochs * batch / minibatch, n_params(actor, critic)
    gathered = 4.0 * minibatch * (actor[0] * 2 + 6)
    touched = steps * (chunks * _activation_bytes(products) + _optimizer_bytes(parameters, chunks) + gathered)
    activations = 3 * rows * chunks * (sum(actor) + sum(critic))
    working_set = 4.0 * (batch * (actor[0] + 8) + parameters * (chunks + 4) + activations)
    return Work(tuple(products), chunks, steps, touched, working_set, networks=2)


def on_policy_rollout(actor: Sizes, critic: Sizes, *, n_envs: int, n_steps: int, block: int) -> Work:
    """The forward passes and stores of a rollout, environments in blocks."""
    rows = min(block, n_envs)
    products = forward(rows, critic) + forward(rows, actor)
    pieces = -(-n_envs // rows)
    stored = 4.0 * n_envs * (2 * actor[0] + 8)
    touched = n_steps * (pieces * _activation_bytes(products) + stored)
    return Work(tuple(products), pieces, n_steps, touched, n_steps * stored)


def one_forward(rows: int, *networks: Sizes) -> Work:
    """One forward pass of `rows` observations through each of `networks`."""
    products = [product for sizes in networks for product in forward(rows, sizes)]
    return Work(tuple(products), 1, 1.0, _activation_bytes(products))


def off_policy_learn(
    products: Sequence[Product], parameters: int, *, obs_size: int, batch: int, updates: int, chunks: int,
    gradients: int | None = None,
) -> Work:  # fmt: skip
    """Updates in `chunks` of these products each, each with a gradient of its own unless there are only so many."""
    gradients = chunks if gradients is None else gradients
    gathered = 4.0 * batch * (2 * obs_size + 6)
    touched = updates * (chunks * _activation_bytes(products) + _optimizer_bytes(parameters, gradients) + gathered)
    # Outputs of all layers that run forwards; parameters, targets, gradients, both moments.
    activations = chunks * sum(each.m * each.n for each in products if each.left == each.right == 0)
    working_set = 4.0 * (activations + parameters * (gradients + 5))
    return Work(tuple(products), chunks, updates, touched, working_set)


def twin_critic_learn(
    actor: Sizes, critic: Sizes, *, rows: int, chunks: int, batch: int, updates: int, judges: int, actor_every: int = 1
) -> Work:
    """Updates of two critics and, every so many, of an actor that `judges` of them judge; batches in `chunks`."""
    on_critics = forward(rows, actor) + forward(rows, critic) * 2
    on_critics += (forward(rows, critic) + backward(rows, critic)) * 2
    on_actor = forward(rows, actor) + backward(rows, actor)
    on_actor += (forward(rows, critic) + input_gradient(rows, critic)) * judges
    parameters = n_params(actor, critic, critic)

    def learn(products: list[Product]) -> Work:
        return off_policy_learn(products, parameters, obs_size=actor[0], batch=batch, updates=updates, chunks=chunks)

    both, always, share = learn(on_critics + on_actor), learn(on_critics), 1.0 / actor_every
    # What the actor does now and then counts by that share, as whole rounds of both.
    factor = (share * both.flops + (1.0 - share) * always.flops) / both.flops
    return dataclasses.replace(both, repeats=updates * factor, bytes_touched=both.bytes_touched * factor)


def q_learn(sizes: Sizes, *, batch: int, updates: int, pieces: int, double: bool) -> Work:
    """Updates of a Q-network cut into `pieces` by hidden units, after the target network's look ahead."""
    products = forward(batch // pieces, sizes) + by_units(batch, sizes, pieces, 2 if double else 1)
    return off_policy_learn(
        products, n_params(sizes), obs_size=sizes[0], batch=batch, updates=updates, chunks=pieces, gradients=1
    )


def about(rows: int, operations: float, passes: int = 1) -> Work:
    """Roughly: `passes` through a network of unknown form whose forward pass takes so many operations per row."""
    product = Product(0, 0, rows, 1, max(1, round(passes * operations / 2)))
    return Work((product,), 1, 1.0, 4.0 * operations / 2 * 3)


# Boundaries


def native(owner: object, name: str, label: str | None = None) -> Boundary:
    """A native call, called like the attribute that it is made through unless it has a label of its own."""
    return Boundary(owner, name, name if label is None else label, Layer.NATIVE)


def env_step(env: VectorEnv) -> Boundary:
    """The step of an environment."""
    return Boundary(env, "step", "env.step", Layer.ENVIRONMENT)


# Buffers


def rollout_buffer(policy: Policy, obs: Array, arrays: Sequence[Array], *, normalises: bool) -> Buffer:
    """A rollout with observations in `obs` and the rest in `arrays`.

    A row is an observation (once more, raw, where it is normalised), an action, six numbers (log-probability, value,
    reward, value of a cut-off, advantage, return), two flags, and a place in the order of samples.
    """
    row = policy.obs_size * (obs.itemsize + 4 * normalises) + 4 * policy.action_size + 6 * 4 + 2 + 8
    return Buffer("rollout", len(obs) * row, obs.nbytes + sum(array.nbytes for array in arrays))


def replay_buffer(policy: Policy, obs: Array, replay: ReplayBuffer, capacity: int) -> Buffer:
    """A replay buffer: observations like `obs` (and the next ones where they are stored), actions, rewards, flags."""
    row = policy.obs_size * obs.itemsize * (2 if replay.layout.stored else 1) + 4 * policy.action_size + 4 + 2
    return Buffer("replay", capacity * row, replay.nbytes)


def network_buffers(learnt: Sequence[Array], targets: Sequence[Array], moments: Sequence[Array]) -> tuple[Buffer, ...]:
    """Parameters with their targets, and Adam's two moments of what is learnt."""
    count, following = (sum(array.size for array in each) for each in (learnt, targets))
    return (
        Buffer("networks", 4 * (count + following), sum(array.nbytes for array in (*learnt, *targets))),
        Buffer("optimizer", 2 * 4 * count, sum(array.nbytes for array in moments)),
    )


# Rest and repetition


class Untimed:
    """A clock that nobody reads."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context manager that does nothing."""
        return contextlib.nullcontext()


@contextlib.contextmanager
def unchanged(learner: StatefulLearner) -> Iterator[None]:
    """Put a learner back as it is now at the end of the body.

    A replay buffer may be as large as the memory: it is not copied, and keeps what it was given meanwhile.
    """
    learner.stop()
    counters = dict(learner.saved().counters)
    copied = {name: array.copy() for name, array in learner.state_arrays().items()}
    try:
        yield
    finally:
        learner.restore(Saved(dict(learner.saved().arrays) | copied, counters))


@contextlib.contextmanager
def on_team(learner: StatefulLearner, frames: Sequence[Frame], team: Team) -> Iterator[None]:
    """Let the calls of `frames` run on another team, with workspaces for its ranks."""
    own, before = learner.team, [frame.array("works") for frame in frames]
    try:
        for frame, works in zip(frames, before, strict=True):
            frame.set(works=np.zeros((team.n_ranks, works.size // own.n_ranks), np.float32))
        learner.team = team
        yield
    finally:
        learner.team = own
        for frame, works in zip(frames, before, strict=True):
            frame.set(works=works)
