"""Gradient reduction, clipping and Adam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.kernels import optim
from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.reference.networks import Adam
from shims import shim


@shim
def reduce_blocks(grads: Any, n_params: Any, n_chunks: Any, blocks: Any, squares: Any) -> None:
    for i in range(blocks.shape[0]):
        squares[blocks[i]] = optim.reduce_gradients(pointer_to(grads), n_params, n_chunks, blocks[i])


@shim
def scale_of(squares: Any, max_norm: Any, out: Any) -> None:
    norm, scale = optim.clip_scale(pointer_to(squares), squares.shape[0], max_norm)
    out[0] = norm
    out[1] = scale


@shim
def adam_blocks(
    params: Any, grads: Any, means: Any, squares: Any, blocks: Any, scale: Any, rate: Any, eps: Any, step: Any
) -> None:
    for i in range(blocks.shape[0]):
        optim.adam(
            pointer_to(params), pointer_to(grads), pointer_to(means), pointer_to(squares), params.shape[0], blocks[i],
            np.float32(scale), rate, 0.9, 0.999, eps, step,
        )  # fmt: skip


def n_blocks(n: int) -> int:
    return -(-n // optim.BLOCK)


@pytest.mark.parametrize("n", [1, 7, optim.BLOCK, optim.BLOCK + 1, 3 * optim.BLOCK - 5])
@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_reduction_sums_chunks_whatever_the_order_of_blocks(n: int, chunks: int) -> None:
    grads = np.random.default_rng(n).normal(size=(chunks, n)).astype(np.float32)
    forwards, backwards = grads.copy(), grads.copy()
    blocks = np.arange(n_blocks(n))
    squares = np.zeros((2, len(blocks)), np.float32)
    reduce_blocks(forwards.ravel(), n, chunks, blocks, squares[0])
    reduce_blocks(backwards.ravel(), n, chunks, blocks[::-1].copy(), squares[1])
    np.testing.assert_array_equal(forwards[0], backwards[0])
    np.testing.assert_array_equal(squares[0], squares[1])
    want = grads.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(forwards[0], want, rtol=1e-5, atol=1e-6)
    assert squares[0].sum() == pytest.approx((want**2).sum(), rel=1e-5)
    np.testing.assert_array_equal(forwards[1:], grads[1:])


def test_clipping() -> None:
    # Norm sqrt(9 + 16) = 5.
    squares, out = np.array([9.0, 16.0], np.float32), np.zeros(2)
    for max_norm, want in ((10.0, 1.0), (5.0, 1.0), (0.5, 0.1), (0.0, 1.0), (-1.0, 1.0), (np.inf, 1.0)):
        scale_of(squares, max_norm, out)
        assert out[0] == 5.0
        assert out[1] == pytest.approx(want, rel=1e-6)


def test_first_adam_steps_by_hand() -> None:
    # Step 1: mean 0.1 g / 0.1 = g, square 0.001 g^2 / 0.001 = g^2: a step of rate * sign(g), nearly.
    params, grads = np.zeros(2, np.float32), np.array([2.0, -0.5], np.float32)
    means, squares = np.zeros(2, np.float32), np.zeros(2, np.float32)
    adam_blocks(params, grads, means, squares, np.array([0]), 1.0, 0.1, 0.0, 1)
    np.testing.assert_allclose(params, [-0.1, 0.1], rtol=1e-6)
    np.testing.assert_allclose(means, [0.2, -0.05], rtol=1e-6)
    np.testing.assert_allclose(squares, [0.004, 0.00025], rtol=1e-5)
    # Step 2 with gradients 0: mean 0.09 g / 0.19, square 0.000999 g^2 / 0.001999.
    adam_blocks(params, np.zeros(2, np.float32), means, squares, np.array([0]), 1.0, 0.1, 0.0, 2)
    move = 0.1 * (0.09 * 2.0 / 0.19) / np.sqrt(0.000999 * 4.0 / 0.001999)
    np.testing.assert_allclose(params, [-0.1 - move, 0.1 + move], rtol=1e-5)


def test_epsilon_is_added_to_the_root() -> None:
    # g = 1e-3, eps = 1e-3: the first step is rate * g / (g + eps) = rate / 2.
    params, grads = np.zeros(1, np.float32), np.array([1e-3], np.float32)
    zeros = np.zeros(1, np.float32)
    adam_blocks(params, grads, zeros.copy(), zeros.copy(), np.array([0]), 1.0, 1.0, 1e-3, 1)
    assert params[0] == pytest.approx(-0.5, rel=1e-5)


def test_adam_equals_reference_over_many_steps() -> None:
    n = optim.BLOCK + 300
    rng = np.random.default_rng(0)
    params = rng.normal(size=n).astype(np.float32)
    plain, theirs = Adam(n, 1e-2, 1e-5), params.astype(np.float64)
    means, squares = np.zeros(n, np.float32), np.zeros(n, np.float32)
    for step in range(1, 51):
        grads = rng.normal(size=n).astype(np.float32)
        adam_blocks(params, grads, means, squares, np.arange(2), 0.5, 1e-2, 1e-5, step)
        theirs = plain.step(theirs, 0.5 * grads.astype(np.float64))
    np.testing.assert_allclose(params, theirs, atol=5e-6)


def test_a_block_touches_nothing_else() -> None:
    n = 2 * optim.BLOCK
    params, grads = np.zeros(n, np.float32), np.ones(n, np.float32)
    adam_blocks(params, grads, np.zeros(n, np.float32), np.zeros(n, np.float32), np.array([1]), 1.0, 0.1, 0.0, 1)
    assert not params[: optim.BLOCK].any()
    np.testing.assert_allclose(params[optim.BLOCK :], -0.1, rtol=1e-5)
