"""What a phase has to compute: its matrix products, their operations, and the bytes it touches.

One list of products serves three ends: it is counted (operations), replayed alone (time in BLAS), and compared with
what the machine can do (roofline). Operations are those of the products alone, as is usual.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

Product = tuple[int, int, int, int, int]
"""Transposition of the left and right factor (0 or 1), and m, n, k of out[m, n] = a[m, k] @ b[k, n]."""


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one entry of a phase: `pieces` times `products`, `repeats` times one after the other."""

    products: tuple[Product, ...]
    """Of one piece; pieces are shared out over threads."""
    pieces: int
    repeats: float
    """Rounds per entry of the phase; a fraction where a part runs only now and then."""
    bytes_touched: float
    """Read and written per entry, whether they come from memory or from a cache."""
    working_set: float = 0.0
    """Bytes that are used again and again; where they fit into the caches, memory is no limit."""
    networks: int = 1
    """Networks whose products follow each other in a piece and may run on threads of their own."""

    @property
    def flops(self) -> float:
        """Floating-point operations of the products per entry."""
        return 2.0 * self.pieces * self.repeats * sum(m * n * k for _, _, m, n, k in self.products)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes_touched if self.bytes_touched else 0.0


def forward(rows: int, sizes: tuple[int, ...]) -> list[Product]:
    """Products of a forward pass of `rows` samples through layers of these sizes."""
    return [(0, 0, rows, outputs, inputs) for inputs, outputs in itertools.pairwise(sizes)]


def backward(rows: int, sizes: tuple[int, ...]) -> list[Product]:
    """Products of the gradient by all parameters."""
    layers = list(itertools.pairwise(sizes))
    by_weights = [(1, 0, inputs, outputs, rows) for inputs, outputs in layers]
    return by_weights + [(0, 1, rows, inputs, outputs) for inputs, outputs in layers[1:]]


def by_units(rows: int, sizes: tuple[int, ...], pieces: int, passes: int) -> list[Product]:
    """Products of a piece of a network cut by hidden units (`kernels.learners.units`): forward passes and gradient."""
    *_, last, outputs = sizes
    hidden = list(itertools.pairwise(sizes[1:-1]))
    forwards = [(0, 0, rows, sizes[1], sizes[0]), *((0, 0, rows, n, k // pieces) for k, n in hidden)]
    forwards.append((0, 0, rows, outputs, last))
    gradients = [(1, 0, last // pieces, outputs, rows), (1, 0, sizes[0], sizes[1] // pieces, rows)]
    gradients += [(1, 0, k // pieces, n, rows) for k, n in hidden]
    back = [(0, 1, rows, last, outputs), *((0, 1, rows, k // pieces, n) for k, n in hidden)]
    return forwards * passes + gradients + back


def input_gradient(rows: int, sizes: tuple[int, ...]) -> list[Product]:
    """Products of the gradient by the input."""
    return [(0, 1, rows, inputs, outputs) for inputs, outputs in itertools.pairwise(sizes)]


def _activation_bytes(products: list[Product]) -> float:
    """Operands and results of all products once each."""
    return 4.0 * sum(m * k + k * n + m * n for _, _, m, n, k in products)


def _optimizer_bytes(n_params: int, chunks: int) -> float:
    """Chunks' gradients read and summed; parameters, gradient and both moments read, all but the gradient written."""
    return 4.0 * n_params * (chunks + 1 + 4 + 3)


def on_policy_learn(config: Any, actor: tuple[int, ...], critic: tuple[int, ...], rows: int, chunks: int) -> Work:
    """The update of PPO, A2C and IMPALA on all samples of a rollout, minibatches cut into `chunks` of `rows`."""
    batch = config.n_envs // getattr(config, "collectors", 1) * config.n_steps
    epochs, minibatch = getattr(config, "epochs", 1), min(getattr(config, "minibatch", batch), batch)
    products = forward(rows, actor) + backward(rows, actor) + forward(rows, critic) + backward(rows, critic)
    steps = epochs * batch / minibatch
    n_params = sum(a * b + b for sizes in (actor, critic) for a, b in itertools.pairwise(sizes))
    gathered = 4.0 * minibatch * (actor[0] * 2 + 6)
    touched = steps * (chunks * _activation_bytes(products) + _optimizer_bytes(n_params, chunks) + gathered)
    activations = 3 * rows * chunks * (sum(actor) + sum(critic))
    working_set = 4.0 * (batch * (actor[0] + 8) + n_params * (chunks + 4) + activations)
    return Work(tuple(products), chunks, steps, touched, working_set, networks=2)


def on_policy_rollout(config: Any, actor: tuple[int, ...], critic: tuple[int, ...], block: int) -> Work:
    """The forward passes and stores of a rollout, environments in blocks."""
    rows = min(block, config.n_envs)
    products = forward(rows, critic) + forward(rows, actor)
    pieces = -(-config.n_envs // rows)
    stored = 4.0 * config.n_envs * (2 * actor[0] + 8)
    touched = config.n_steps * (pieces * _activation_bytes(products) + stored)
    return Work(tuple(products), pieces, config.n_steps, touched, config.n_steps * stored)


def one_forward(rows: int, *networks: tuple[int, ...]) -> Work:
    """One forward pass of `rows` observations through each of `networks`."""
    products = [product for sizes in networks for product in forward(rows, sizes)]
    return Work(tuple(products), 1, 1.0, _activation_bytes(products))


def _off_policy(
    products: list[Product], chunks: int, updates: int, n_params: int, gathered: float, gradients: int | None = None
) -> Work:
    """Updates in `chunks`, each with a gradient of its own unless there are only so many `gradients`."""
    gradients = chunks if gradients is None else gradients
    touched = updates * (chunks * _activation_bytes(products) + _optimizer_bytes(n_params, gradients) + gathered)
    # Outputs of all layers that run forwards; parameters, targets, gradients, both moments.
    activations = chunks * sum(m * n for a, b, m, n, _ in products if a == b == 0)
    working_set = 4.0 * (activations + n_params * (gradients + 5))
    return Work(tuple(products), chunks, updates, touched, working_set)


def off_policy_learn(
    algorithm: str, config: Any, actor: tuple[int, ...], critic: tuple[int, ...], rows: int, chunks: int
) -> Work:
    """The updates of one iteration of SAC or TD3, batches cut into `chunks` of `rows`, or of DQN, networks cut so."""
    updates = max(1, config.gradient_steps)
    gathered = 4.0 * config.batch * (2 * actor[0] + 6)
    if algorithm == "dqn":
        products = forward(rows // chunks, actor) + by_units(rows, actor, chunks, 2 if config.double else 1)
        n_params = sum(a * b + b for a, b in itertools.pairwise(actor))
        return _off_policy(products, chunks, updates, n_params, gathered, gradients=1)
    products = forward(rows, actor) + forward(rows, critic) * 2
    products += (forward(rows, critic) + backward(rows, critic)) * 2
    on_actor = forward(rows, actor) + backward(rows, actor)
    critics = 2 if algorithm == "sac" else 1
    on_actor += (forward(rows, critic) + input_gradient(rows, critic)) * critics
    n_params = sum(a * b + b for sizes in (actor, critic, critic) for a, b in itertools.pairwise(sizes))
    if algorithm == "sac":
        return _off_policy(products + on_actor, chunks, updates, n_params, gathered)
    # TD3's actor learns every `policy_delay` updates: its products count by that share, as whole rounds of both.
    both = _off_policy(products + on_actor, chunks, updates, n_params, gathered)
    share = 1.0 / config.policy_delay
    always = _off_policy(products, chunks, updates, n_params, gathered)
    factor = (share * both.flops + (1.0 - share) * always.flops) / both.flops
    return dataclasses.replace(both, repeats=updates * factor, bytes_touched=both.bytes_touched * factor)


def works(agent: Any) -> dict[str, Work]:
    """The work of every phase of an agent that computes with networks, by phase."""
    sizes = network_sizes(agent)
    if sizes is None:
        return _by_operations(agent)
    (actor, critic), config, engine = sizes, agent.config, agent.learner
    if agent.name in ("ppo", "a2c", "impala"):
        minibatch = min(getattr(config, "minibatch", engine.batch), engine.batch)
        rows, chunks = getattr(engine, "chunk_rows", minibatch), getattr(engine, "chunks", 1)
        found = {"learn": on_policy_learn(config, actor, critic, rows, chunks)}
        if agent.name == "impala":
            return found
        if agent.backend == "native" and engine.fused:
            return found | {"rollout": on_policy_rollout(config, actor, critic, engine.block)}
        return found | {"inference": one_forward(config.n_envs, critic, actor)}
    rows, chunks = config.batch, 1
    if agent.backend == "native":
        by_rows = agent.name != "dqn"
        rows = engine.chunk_rows if by_rows else config.batch
        chunks = engine.pieces
    learn = off_policy_learn(agent.name, config, actor, critic, rows, chunks)
    return {"learn": learn, "inference": one_forward(config.n_envs, actor)}


def network_sizes(agent: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Widths of actor (or Q-network) and critic, inputs first; None for networks that are not plain ones."""
    policy, config = agent.policy, agent.config
    if agent.backend == "native":
        return tuple(policy.actor_sizes), tuple(getattr(policy, "critic_sizes", ()))
    if agent.policy_name != "mlp":
        return None
    inputs, actions, hidden = policy.obs_size, policy.action_size, tuple(config.hidden)
    outputs = {"sac": 2 * actions, "td3": actions, "dqn": policy.n_actions + int(getattr(config, "dueling", False))}
    critic_inputs = inputs + actions if agent.name in ("sac", "td3") else inputs
    return (inputs, *hidden, outputs.get(agent.name, policy.n_actions or actions)), (critic_inputs, *hidden, 1)


def _by_operations(agent: Any) -> dict[str, Work]:
    """About: from the operations of a forward pass, with a backward pass for two of them."""
    config, each = agent.config, agent.policy.operations
    on_policy = agent.name in ("ppo", "a2c")
    samples = config.n_envs * config.n_steps * getattr(config, "epochs", 1) if on_policy else config.batch
    passes = {"sac": 12, "td3": 10, "dqn": 5}.get(agent.name, 3)
    n_params = agent.policy.operations / 2

    def about(rows: int, operations: float) -> Work:
        return Work(((0, 0, rows, 1, max(1, round(operations / 2))),), 1, 1.0, 4.0 * n_params * 3)

    return {"learn": about(samples, passes * each), "inference": about(config.n_envs, each)}
