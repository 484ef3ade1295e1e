"""Vectorised exponentials against extended precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.kernels.machine.exp import exp, exp_excess
from mileage.kernels.machine.jit import kernel


@kernel
def exp_all(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = exp(x[i])


@kernel
def exp_excess_all(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = exp_excess(x[i])


def apply(function: Any, x: Any) -> Any:
    out = np.empty_like(x)
    function(x, out)
    return out


@pytest.mark.parametrize(("dtype", "low", "high"), [(np.float32, -87.3, 88.3), (np.float64, -708.3, 709.3)])
class TestAgainstExtendedPrecision:
    def test_exp_to_two_units_in_the_last_place(self, dtype: Any, low: float, high: float) -> None:
        x = np.random.default_rng(0).uniform(low, high, 100_000).astype(dtype)
        want = np.exp(x.astype(np.longdouble))
        assert np.max(np.abs(apply(exp_all, x) - want) / want) < 2 * np.finfo(dtype).eps

    def test_exp_excess_keeps_relative_accuracy_near_zero(self, dtype: Any, low: float, high: float) -> None:
        rng = np.random.default_rng(1)
        x = np.concatenate([10.0 ** -rng.uniform(0.5, 8, 5_000), -(10.0 ** -rng.uniform(0.5, 8, 5_000))]).astype(dtype)
        wide = x.astype(np.longdouble)
        # Taylor series of degree 17 in nested form: x²/2 · (1 + x/3 · (1 + x/4 · …)), beyond rounding for |x| < 1/3.
        want = np.ones_like(wide)
        for k in range(17, 2, -1):
            want = 1 + wide / k * want
        want *= wide * wide / 2
        assert np.max(np.abs(apply(exp_excess_all, x) - want) / want) < 4 * np.finfo(dtype).eps

    def test_exp_excess_elsewhere(self, dtype: Any, low: float, high: float) -> None:
        x = np.random.default_rng(2).uniform(-20.0, 20.0, 50_000).astype(dtype)
        wide = x.astype(np.longdouble)
        want = np.expm1(wide) - wide
        far = np.abs(x) > 0.3
        error = np.abs(apply(exp_excess_all, x) - want)[far] / want[far]
        assert np.max(error) < 16 * np.finfo(dtype).eps

    def test_ends_of_the_range(self, dtype: Any, low: float, high: float) -> None:
        x = np.array([0.0, -np.inf, low - 1, high + 1, np.inf, np.nan], dtype)
        np.testing.assert_array_equal(apply(exp_all, x), np.array([1.0, 0.0, 0.0, np.inf, np.inf, np.nan], dtype))
        want = np.array([0.0, np.inf, -x[2] - 1, np.inf, np.inf, np.nan], dtype)
        np.testing.assert_allclose(apply(exp_excess_all, x), want, rtol=1e-6)
