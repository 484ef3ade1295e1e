"""The fused update against differences of a plain loss and against a plain update."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from mileage.kernels import actor_critic, optim
from mileage.kernels.machine.frames import Frame
from mileage.kernels.machine.team import Team
from mileage.kernels.random import streams
from mileage.kernels.reference.losses import Optimisation, ReferenceBatch, Shape, loss_terms, update
from mileage.kernels.reference.networks import Stream, categorical, gaussian, mlp, numerical_gradient, parts

SHAPES = {
    "discrete": Shape((3, 5, 4), (3, 5, 1), discrete=True),
    "discrete relu": Shape((2, 7, 3, 2), (2, 7, 3, 1), discrete=True, activation="relu"),
    "continuous": Shape((3, 5, 2), (3, 5, 1), discrete=False),
    "masked": Shape((3, 5, 4), (3, 5, 1), discrete=True, branches=(4,)),
    "parts": Shape((3, 6, 7), (3, 6, 1), discrete=False, branches=(3, 2)),
    "choices": Shape((3, 6, 9), (3, 6, 1), discrete=False, activation="relu", branches=(4, 2, 3)),
    "continuous wide": Shape((1, 9, 1), (1, 9, 1), discrete=False, activation="relu"),
}
HOWS = {
    "plain": Optimisation(entropy_coef=0.0, normalise=False, clip=np.inf, max_norm=0.0),
    "everything": Optimisation(clip=0.1, value_clip=0.2, entropy_coef=0.05, value_coef=0.7),
}


def n_params(shape: Shape) -> int:
    networks = sum(a * b + b for sizes in (shape.actor, shape.critic) for a, b in itertools.pairwise(sizes))
    return networks + (0 if shape.discrete else shape.actor[-1] - sum(shape.branches))


def draw_parts(rng: Any, shape: Shape, head: Any) -> tuple[Any, Any]:
    """Masks (N, M) that leave something, and actions (N, C + G) that they allow."""
    n, stops = len(head), np.cumsum(shape.branches)
    masks = (rng.random((n, stops[-1])) < 0.6).astype(np.uint8)
    choices = []
    for start, stop in zip(stops - shape.branches, stops, strict=True):
        chosen = rng.integers(0, stop - start, n)
        masks[np.arange(n), start + chosen] = 1
        choices.append(chosen[:, None])
    numbers = head[:, stops[-1] :] + rng.normal(size=(n, head.shape[1] - stops[-1]))
    return masks, np.concatenate([*choices, numbers], axis=1).astype(np.float32)


def problem(shape: Shape, n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], ReferenceBatch]:
    """Parameters, and samples of a policy a little way off, so that some ratios and values are clipped and some not."""
    rng = np.random.default_rng(seed)
    params = rng.normal(scale=0.5, size=n_params(shape)).astype(np.float32)
    actor, critic, log_std = shape.parts(params + rng.normal(scale=0.07, size=len(params)))
    obs = rng.normal(size=(n, shape.actor[0])).astype(np.float32)
    head = mlp(actor, shape.actor, obs, shape.activation)[-1]
    masks = None
    if shape.branches:
        masks, actions = draw_parts(rng, shape, head)
        log_probs = parts(head, shape.branches, log_std, masks, actions)[0]
    elif shape.discrete:
        actions = rng.integers(0, shape.actor[-1], size=(n, 1)).astype(np.float32)
        log_probs = categorical(head, actions[:, 0])[0]
    else:
        actions = (head + rng.normal(size=head.shape)).astype(np.float32)
        log_probs = gaussian(head, log_std, actions)[0]
    values = mlp(critic, shape.critic, obs, shape.activation)[-1][:, 0]
    advantages = rng.normal(0.3, 2.0, size=n)
    columns = (log_probs, values, advantages, values + advantages)
    return params, ReferenceBatch(obs, actions, *(column.astype(np.float32) for column in columns), masks=masks)


class Native:
    """The update kernel with the memory it needs."""

    def __init__(
        self, params: Any, shape: Shape, batch: ReferenceBatch, how: Optimisation, *, minibatch: int, epochs: int = 1
    ) -> None:
        n = len(batch.obs)
        self.params, self.order = params.copy(), np.arange(n)
        self.rng = streams(3, 1, "shuffle")
        chunks = actor_critic.n_chunks(minibatch)
        chunk_rows = -(-minibatch // chunks)
        self.grads = np.full((chunks, len(params)), np.nan, np.float32)
        self.totals = np.zeros(actor_critic.N_STATS)
        self.work_floats = actor_critic.work_floats(chunk_rows, shape.actor, shape.critic)
        critic_offset = len(shape.parts(params)[0])
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(ReferenceBatch)}
        if shape.branches:
            fields |= {"branches": np.array(shape.branches), "n_branches": len(shape.branches)}
            fields["n_choices"] = sum(shape.branches)
        else:
            del fields["masks"]
        self.frame = Frame(
            actor_critic.MASKED_UPDATE if shape.branches else actor_critic.UPDATE, params=self.params,
            actor=np.array(shape.actor), critic=np.array(shape.critic), **fields,
            order=self.order, shuffle_rng=self.rng, adam_mean=np.zeros_like(params), adam_square=np.zeros_like(params),
            grads=self.grads, squares=np.zeros(-(-len(params) // optim.BLOCK), np.float32),
            stats=np.full((2 * chunks, actor_critic.N_STATS), np.nan), totals=self.totals,
            n_actor=len(shape.actor), n_critic=len(shape.critic), critic_offset=critic_offset,
            log_std_offset=critic_offset + len(shape.parts(params)[1]),
            activation=("tanh", "relu").index(shape.activation), n_actions=shape.actor[-1] if shape.discrete else 0,
            obs_size=shape.actor[0], action_size=batch.actions.shape[1], n_params=len(params), n_samples=n,
            epochs=epochs, minibatch=minibatch, chunk_rows=chunk_rows, normalise=int(how.normalise), steps=0,
            stage=actor_critic.LAST_STAGE,
            work_floats=self.work_floats, clip=how.clip, value_clip=how.value_clip, entropy_coef=how.entropy_coef,
            value_coef=how.value_coef, target_kl=how.target_kl, rate=how.rate, beta1=0.9, beta2=0.999, eps=how.eps,
            max_norm=how.max_norm,
        )  # fmt: skip

    def run(self, threads: int = 1) -> int:
        team = Team(threads)
        try:
            self.frame.set(works=np.full((threads, self.work_floats), np.nan, np.float32))
            return int(team.run(actor_critic.update, self.frame.record, threads))
        finally:
            team.close()


def plain_orders(n: int, epochs: int) -> list[np.ndarray[Any, Any]]:
    stream, order, orders = Stream(streams(3, 1, "shuffle")[0]), np.arange(n), []
    for _ in range(epochs):
        stream.permute(order)
        orders.append(order.copy())
    return orders


@pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradient_equals_differences_of_the_loss(shape: Shape, how: Optimisation) -> None:
    params, batch = problem(shape, 60)
    native = Native(params, shape, batch, how, minibatch=60)
    assert native.run() == 1
    want = numerical_gradient(lambda p: how.loss(p, shape, batch), params)
    np.testing.assert_allclose(native.grads[0], want, rtol=1e-3, atol=2e-5)
    terms = loss_terms(params.astype(np.float64), shape, batch, how.clip, how.value_clip, how.normalise)
    if how is HOWS["everything"]:
        assert 0.0 < terms.clipped < 1.0  # some samples are clipped and some are not, or this would test nothing
    reported = native.totals[[0, 1, 2, 3, 4]] / native.totals[actor_critic.SAMPLES]
    np.testing.assert_allclose(reported, dataclasses.astuple(terms), rtol=1e-4, atol=1e-5)
    assert native.totals[actor_critic.GRAD_NORM] == pytest.approx(np.linalg.norm(want), rel=1e-4)
    assert native.totals[actor_critic.SAMPLES] == 60.0
    assert native.totals[actor_critic.MINIBATCHES] == 1.0


def test_everything_allowed_is_a_plain_discrete_action() -> None:
    shape = SHAPES["masked"]
    plain = dataclasses.replace(shape, branches=())
    params, batch = problem(plain, 60)
    whole = dataclasses.replace(batch, masks=np.ones((60, 4), np.uint8))
    results = []
    for each, samples in ((plain, batch), (shape, whole)):
        native = Native(params, each, samples, HOWS["everything"], minibatch=60)
        native.run()
        results.append((native.grads[0].copy(), native.totals.copy()))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5)


def test_value_clipping_cuts_the_gradient_of_values_that_moved_too_far() -> None:
    # A critic of zero weights and bias 1: its value is 1 everywhere, 0.9 above the old one, and the target is above
    # both: the clipped error is the larger one and does not depend on the parameters.
    shape = Shape((1, 1, 2), (1, 1, 1), discrete=True)
    params = np.zeros(n_params(shape), np.float32)
    params[-1] = 1.0
    flat = np.zeros(4, np.float32)
    batch = ReferenceBatch(np.ones((4, 1), np.float32), flat[:, None], flat - 0.6931472, flat + 0.1, flat, flat + 2.0)
    clipped = Native(params, shape, batch, Optimisation(value_clip=0.5, entropy_coef=0.0), minibatch=4)
    clipped.run()
    assert not clipped.grads[0].any()
    # (0.1 + 0.5 - 2)^2 instead of (1 - 2)^2.
    assert clipped.totals[actor_critic.VALUE_LOSS] / 4 == pytest.approx(1.96)
    free = Native(params, shape, batch, Optimisation(value_clip=0.0, entropy_coef=0.0), minibatch=4)
    free.run()
    assert free.grads[0, -1] == pytest.approx(0.5 * 2.0 * (1.0 - 2.0))


@pytest.mark.parametrize("shape", [SHAPES[name] for name in ("discrete", "continuous", "parts")])
@pytest.mark.parametrize(("n", "minibatch"), [(32, 16), (50, 16), (33, 16)])
def test_whole_update_equals_plain_update(shape: Shape, n: int, minibatch: int) -> None:
    # 50 leaves a last minibatch of 2, 33 one of 1, whose advantage cannot be normalised.
    params, batch = problem(shape, n)
    how = HOWS["everything"]
    native = Native(params, shape, batch, how, minibatch=minibatch, epochs=3)
    steps = native.run()
    orders = plain_orders(n, 3)
    want, want_steps, seen = update(params, shape, batch, how, orders, minibatch)
    assert steps == want_steps == 3 * -(-n // minibatch)
    np.testing.assert_array_equal(native.order, orders[-1])
    np.testing.assert_allclose(native.params, want, atol=2e-5)
    assert np.abs(want - params).max() > 2e-3
    assert native.totals[actor_critic.MINIBATCHES] == len(seen)
    assert native.totals[actor_critic.SAMPLES] == 3 * n


def test_kl_target_ends_the_update() -> None:
    shape = SHAPES["discrete"]
    params, batch = problem(shape, 64)
    fresh = categorical(mlp(shape.parts(params)[0], shape.actor, batch.obs)[-1], batch.actions[:, 0])[0]
    batch = dataclasses.replace(batch, log_probs=fresh.astype(np.float32))
    how = Optimisation(rate=0.02, target_kl=0.01, max_norm=0.0, clip=0.2)
    native = Native(params, shape, batch, how, minibatch=32, epochs=20)
    steps = native.run()
    want, want_steps, _ = update(params, shape, batch, how, plain_orders(64, 20), 32)
    assert 1 < steps < 40
    assert steps == want_steps
    np.testing.assert_allclose(native.params, want, atol=5e-5)
    assert Native(params, shape, batch, dataclasses.replace(how, target_kl=0.0), minibatch=32, epochs=20).run() == 40


@pytest.mark.parametrize("shape", [SHAPES[name] for name in ("discrete", "continuous", "parts")])
@pytest.mark.parametrize("minibatch", [1000, 700, 384, 130])
def test_threads_do_not_change_a_bit(shape: Shape, minibatch: int) -> None:
    shape = dataclasses.replace(shape, actor=(3, 40, 33, shape.actor[-1]), critic=(3, 40, 33, 1))
    params, batch = problem(shape, 1000)
    results = []
    for threads in (1, 2, 3):
        native = Native(params, shape, batch, HOWS["everything"], minibatch=minibatch, epochs=2)
        native.run(threads)
        results.append((native.params.tobytes(), native.totals.tobytes()))
    assert results[0] == results[1] == results[2]


def test_chunks_sum_to_the_gradient_of_the_whole() -> None:
    shape = SHAPES["continuous"]
    params, batch = problem(shape, 600)
    native = Native(params, shape, batch, HOWS["everything"], minibatch=600)
    assert len(native.grads) == 4
    native.run(2)
    want = numerical_gradient(lambda p: HOWS["everything"].loss(p, shape, batch), params)
    np.testing.assert_allclose(native.grads[0], want, rtol=1e-3, atol=2e-5)


def test_chunks_depend_on_the_minibatch_alone() -> None:
    sizes = [1, 127, 128, 255, 256, 1000, 10_000]
    assert [actor_critic.n_chunks(size) for size in sizes] == [1, 1, 1, 1, 2, 7, 16]


def test_workspace_is_enough_for_both_halves() -> None:
    for rows, sizes in ((1, (1, 1)), (100, (4, 64, 64, 2)), (7, (376, 8, 17))):
        half = actor_critic.work_floats(rows, sizes) // 2
        assert half >= rows * sum(sizes)
        assert half // 2 >= rows * max(sizes[1:])
