"""Networks forward and backward against a float64 reference and against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.kernels import mlp
from mileage.kernels.machine.frames import pointer_to, shift
from mileage.kernels.random import n_params
from mileage.kernels.reference.networks import mlp as plain_mlp
from mileage.kernels.reference.networks import mlp_gradient, numerical_gradient
from shims import shim

SIZES = [
    (1, 1),
    (3, 2),
    (1, 1, 1),
    (4, 64, 64, 2),
    (5, 7, 3),
    (2, 1, 9, 1),
    (17, 33, 31, 13, 6),
    (3, 128, 5),
]


@shim
def tanh_of(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        out[i] = mlp.tanh(x[i])


@shim
def run_forward(params: Any, sizes: Any, rows: Any, x: Any, hidden: Any, kind: Any, out: Any) -> None:
    n = sizes.shape[0]
    last = mlp.forward(pointer_to(params), pointer_to(sizes), n, rows, pointer_to(x), pointer_to(hidden), kind)
    for i in range(rows * sizes[n - 1]):
        out[i] = last[i]


@shim
def run_backward(
    params: Any, sizes: Any, rows: Any, x: Any, hidden: Any, delta: Any, spare: Any, kind: Any, grads: Any
) -> None:
    mlp.backward(
        pointer_to(params), pointer_to(sizes), sizes.shape[0], rows, pointer_to(x), pointer_to(hidden),
        pointer_to(delta), pointer_to(spare), kind, pointer_to(grads),
    )  # fmt: skip


@shim
def sum_columns(values: Any, rows: Any, width: Any, skipped: Any, out: Any) -> None:
    mlp.column_sums(shift(pointer_to(values), skipped), rows, width, width, pointer_to(out))


def case(sizes: tuple[int, ...], rows: int) -> tuple[np.ndarray[Any, Any], ...]:
    rng = np.random.default_rng(len(sizes) * 1000 + rows)
    params = (rng.normal(size=n_params(sizes)) / np.sqrt(max(sizes))).astype(np.float32)
    x = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    slopes = rng.normal(size=(rows, sizes[-1])).astype(np.float32)
    return params, x, slopes


def through(sizes: tuple[int, ...], activation: str, rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Output and gradient as the kernels compute them."""
    params, x, slopes = case(sizes, rows)
    widths, kind = np.array(sizes, np.int64), {"tanh": mlp.TANH, "relu": mlp.RELU}[activation]
    hidden = np.full(rows * sum(sizes[1:]), np.nan, np.float32)
    out = np.zeros((rows, sizes[-1]), np.float32)
    run_forward(params, widths, rows, x.ravel(), hidden, kind, out.ravel())
    scratch = np.full((2, rows * max(sizes[1:])), np.nan, np.float32)
    scratch[0, : slopes.size] = slopes.ravel()
    grads = np.full(len(params), np.nan, np.float32)
    run_backward(params, widths, rows, x.ravel(), hidden, scratch[0], scratch[1], kind, grads)
    return out, grads


def test_tanh_is_within_a_few_ulp_and_odd_and_bounded() -> None:
    x = np.concatenate([np.linspace(-12.0, 12.0, 100_001), np.geomspace(1e-30, 1.0, 1000), [0.0]]).astype(np.float32)
    out, mirrored = np.zeros_like(x), np.zeros_like(x)
    tanh_of(x, out)
    tanh_of(-x, mirrored)
    want = np.tanh(x.astype(np.float64))
    np.testing.assert_allclose(out, want, rtol=8 * np.finfo(np.float32).eps, atol=0.0)
    np.testing.assert_array_equal(out, -mirrored)
    assert np.abs(out).max() <= 1.0 + np.finfo(np.float32).eps


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_equals_reference(sizes: tuple[int, ...], activation: str, rows: int) -> None:
    params, x, slopes = case(sizes, rows)
    out, grads = through(sizes, activation, rows)
    np.testing.assert_allclose(out, plain_mlp(params, sizes, x, activation)[-1], rtol=1e-4, atol=1e-5)
    want = mlp_gradient(params, sizes, x, slopes, activation)
    np.testing.assert_allclose(grads, want, rtol=1e-4, atol=1e-5 * rows)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", [(3, 2), (1, 1, 1), (5, 7, 3), (2, 1, 9, 1)], ids=str)
def test_gradient_equals_differences(sizes: tuple[int, ...], activation: str) -> None:
    params, x, slopes = case(sizes, 6)
    want = numerical_gradient(lambda p: float((plain_mlp(p, sizes, x, activation)[-1] * slopes).sum()), params)
    np.testing.assert_allclose(mlp_gradient(params, sizes, x, slopes, activation), want, atol=1e-7)
    np.testing.assert_allclose(through(sizes, activation, 6)[1], want, rtol=1e-4, atol=1e-5)


def test_worked_example() -> None:
    # One input 2, hidden relu units 2*1 - 1 = 1 and 2*(-1) + 1 = -1 -> 0, output 3*1 + 4*0 + 0.5 = 3.5.
    params = np.array([1.0, -1.0, -1.0, 1.0, 3.0, 4.0, 0.5], np.float32)
    hidden, out = np.zeros(3, np.float32), np.zeros(1, np.float32)
    sizes, x = np.array([1, 2, 1], np.int64), np.array([2.0], np.float32)
    run_forward(params, sizes, 1, x, hidden, mlp.RELU, out)
    assert hidden[:2].tolist() == [1.0, 0.0]
    assert out[0] == 3.5
    grads, delta, spare = np.zeros(7, np.float32), np.array([1.0, 0.0], np.float32), np.zeros(2, np.float32)
    run_backward(params, sizes, 1, x, hidden, delta, spare, mlp.RELU, grads)
    # By the weights: hidden units times the slope; by the first layer only through the unit that is on: 3 * x, 3.
    assert grads.tolist() == [6.0, 0.0, 3.0, 0.0, 1.0, 0.0, 1.0]


def test_column_sums() -> None:
    values = np.arange(14, dtype=np.float32)
    out = np.full(3, np.nan, np.float32)
    sum_columns(values, 4, 3, 2, out)
    assert out.tolist() == values[2:].reshape(4, 3).sum(axis=0).tolist()


def test_parameters_and_workspace_are_counted() -> None:
    assert n_params((4, 64, 64, 2)) == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 2 + 2
    assert mlp.work_floats(10, (4, 64, 64, 2)) == 10 * (4 + 64 + 64 + 2 + 2 * 64)
