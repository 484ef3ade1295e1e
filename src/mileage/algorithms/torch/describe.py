"""How learners on torch describe themselves: their work, and the methods that an update spends its time in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mileage.algorithms import describe as parts_of
from mileage.algorithms.describe_learners import GAE, buffers, other_minibatches
from mileage.algorithms.describe_learners import off_policy as any_off_policy
from mileage.description import ACT, VALUE, Boundary, Call, Description, Layer, Task, Work
from mileage.kernels import random
from mileage.policies.torch.networks import sizes_of
from mileage.policies.torch.policy import TorchPolicy
from mileage.types import Array

if TYPE_CHECKING:
    from mileage.algorithms.torch.off_policy import TorchOffPolicy
    from mileage.algorithms.torch.on_policy import TorchOnPolicy

NOISE = parts_of.native(random, "uniform_rows")
# Of a network that nothing is known of, a gradient by all parameters takes about two forward passes more.
_PASSES = 3


def stages(owner: object, **methods: str) -> tuple[Boundary, ...]:
    """Methods of `owner` by name, with the stages that the time in them belongs to."""
    return tuple(Boundary(owner, name, stage, Layer.TORCH) for name, stage in methods.items())


def _parameters(policy: TorchPolicy) -> list[Array]:
    return [array for name, array in policy.live_arrays().items() if name.startswith("module.")]


def on_policy(
    learner: TorchOnPolicy, *, choose: Task, value: Task, update: Task, moments: Sequence[Array],
    methods: tuple[Boundary, ...],
) -> Description:  # fmt: skip
    """A learner that collects and learns in turn; `update` is one of length 0."""
    config, policy, n_envs = learner.config, learner.policy, learner.n_envs
    sizes = sizes_of(policy.module)
    minibatch, call = min(config.minibatch, learner.batch), Call("learn", update, 1)
    if sizes is None:
        learn = parts_of.about(learner.batch * config.epochs, policy.operations, _PASSES)
        act = parts_of.about(n_envs, policy.operations)
    else:
        learn = parts_of.on_policy_learn(
            *sizes, rows=minibatch, chunks=1, batch=learner.batch, minibatch=minibatch, epochs=config.epochs
        )
        act = parts_of.one_forward(n_envs, *sizes)
    return Description(
        work={"learn": learn, "inference": act},
        boundaries=(parts_of.env_step(learner.env), GAE, NOISE),
        calls={"learn": call},
        paused=lambda: parts_of.unchanged(learner),
        methods=methods,
        operations={ACT: choose, VALUE: value},
        buffers=buffers(learner, _parameters(policy), moments),
        variants=tuple(other_minibatches(learner, call)),
        has_native_twin=sizes is not None,
    )


def off_policy(
    learner: TorchOffPolicy, *, work: Callable[[parts_of.Sizes, parts_of.Sizes], Work], passes: int,
    tensors: Mapping[str, Array], methods: tuple[Boundary, ...],
) -> Description:  # fmt: skip
    """A learner with a replay buffer; `tensors` are its targets, optimizers and whatever else it keeps, by name.

    `work` is that of learning, given the widths of plain networks; an update of others is about `passes` forward ones.
    """
    policy = learner.policy
    sizes = sizes_of(policy.module)
    if sizes is None:
        learning = parts_of.about(learner.config.batch, policy.operations, passes)
        acting = parts_of.about(learner.n_envs, policy.operations)
    else:
        learning, acting = work(*sizes), parts_of.one_forward(learner.n_envs, sizes[0])
    targets = [array for name, array in tensors.items() if name.startswith("target")]
    moments = [array for name, array in tensors.items() if "mean" in name or "square" in name]
    networks = parts_of.network_buffers(_parameters(policy), targets, moments)
    found = any_off_policy(learner, {"learn": learning, "inference": acting}, networks)
    return dataclasses.replace(
        found, boundaries=(*found.boundaries, NOISE), methods=methods, has_native_twin=sizes is not None
    )
