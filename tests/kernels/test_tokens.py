"""Divergence between policies over token sequences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mileage.kernels import reference, token_kl
from mileage.kernels.machine import team as _shards

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}
estimators = pytest.mark.parametrize("estimator", ["exact", "k1", "k2", "k3"])


def log_probs(seed: int, rows: int, length: int, dtype: Any = np.float32) -> Any:
    return np.log(np.random.default_rng(seed).dirichlet(np.ones(length) * 3.0, rows)).astype(dtype)


def test_exact_worked_example() -> None:
    # p = (1/2, 1/2), q = (1/4, 3/4): 1/2 log 2 + 1/2 log (2/3) = 1/2 log (4/3).
    p, q = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    np.testing.assert_allclose(token_kl(p, q, estimator="exact"), [0.5 * math.log(4 / 3)], rtol=1e-14)


def test_k3_worked_example() -> None:
    # q/p = 2 and 1/2: (2 - 1 - log 2) + (1/2 - 1 + log 2) = 1/2; the mean over two tokens is 1/4.
    p, q = np.log([[0.25, 0.5]]), np.log([[0.5, 0.25]])
    np.testing.assert_allclose(token_kl(p, q), [0.5], rtol=1e-14)
    np.testing.assert_allclose(token_kl(p, q, reduction="mean"), [0.25], rtol=1e-14)


def test_k1_and_k2_worked_examples() -> None:
    # p/q = 1/2 and 2: log-ratios of -log 2 and log 2, which cancel; halves of their squares do not.
    p, q = np.log([[0.25, 0.5], [0.5, 0.5]]), np.log([[0.5, 0.25], [0.25, 0.5]])
    np.testing.assert_allclose(token_kl(p, q, estimator="k1"), [0.0, math.log(2)], atol=1e-15)
    np.testing.assert_allclose(token_kl(p, q, estimator="k2"), [math.log(2) ** 2, 0.5 * math.log(2) ** 2], rtol=1e-14)


@given(
    st.integers(0, 2**32),
    st.integers(1, 6),
    st.integers(1, 1300),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["exact", "k1", "k2", "k3"]),
    st.sampled_from(["sum", "mean"]),
    st.sampled_from([None, np.bool_, np.uint8, np.float32]),
)
def test_equals_reference(
    seed: int, rows: int, length: int, dtype: Any, estimator: Any, reduction: Any, mask_dtype: Any
) -> None:
    p, q = log_probs(seed, rows, length, dtype), log_probs(seed + 1, rows, length, dtype)
    mask = None
    if mask_dtype is not None:
        mask = (np.random.default_rng(seed).random((rows, length)) < 0.6).astype(mask_dtype)
    options: Any = {"estimator": estimator, "reduction": reduction, "mask": mask}
    got = token_kl(p, q, **options)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, reference.token_kl(p, q, **options), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@given(st.integers(0, 2**32), st.integers(2, 300))
def test_never_negative_and_zero_for_equal_policies(seed: int, length: int) -> None:
    p, q = log_probs(seed, 2, length), log_probs(seed + 1, 2, length)
    assert (token_kl(p, q) >= 0.0).all()
    assert (token_kl(p, q, estimator="exact") >= -1e-6).all()
    for estimator in ("exact", "k1", "k2", "k3"):
        np.testing.assert_array_equal(token_kl(p, p, estimator=estimator), [0.0, 0.0])  # type: ignore[arg-type]


def test_k3_does_not_cancel_for_almost_equal_policies() -> None:
    # d = log q - log p = 2^-12: d²/2 + d³/6 + …, which exp(d) - 1 - d loses in float32.
    d = 2.0**-12
    got = token_kl(np.full((1, 1), -1.0, np.float32), np.full((1, 1), -1.0 + d, np.float32))
    np.testing.assert_allclose(got, [d * d / 2 + d**3 / 6 + d**4 / 24], rtol=1e-6)


def test_impossible_outcomes() -> None:
    nothing = -np.inf
    p = np.array([[0.0, nothing], [math.log(0.5), math.log(0.5)]], np.float32)
    q = np.array([[math.log(0.5), math.log(0.5)], [0.0, nothing]], np.float32)
    # p has an outcome of probability 0: log 2. q has one where p has not: infinite.
    np.testing.assert_allclose(token_kl(p, q, estimator="exact"), [math.log(2.0), np.inf], rtol=1e-6)


@estimators
def test_masked_tokens_may_hold_anything(estimator: Any) -> None:
    p, q = log_probs(0, 3, 40), log_probs(1, 3, 40)
    mask = np.random.default_rng(2).random((3, 40)) < 0.5
    want = token_kl(p, q, estimator=estimator, mask=mask)
    p[~mask], q[~mask] = np.nan, np.inf
    np.testing.assert_array_equal(token_kl(p, q, estimator=estimator, mask=mask), want)
    p[1, np.flatnonzero(mask[1])[0]] = np.nan
    np.testing.assert_array_equal(np.isnan(token_kl(p, q, estimator=estimator, mask=mask)), [False, True, False])


def test_row_without_tokens_has_mean_zero() -> None:
    p, q = log_probs(0, 2, 8), log_probs(1, 2, 8)
    mask = np.zeros((2, 8), bool)
    np.testing.assert_array_equal(token_kl(p, q, mask=mask, reduction="mean"), [0.0, 0.0])


@estimators
def test_threads_and_out_change_nothing(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = log_probs(0, 70, 30), log_probs(1, 70, 30)
    want = token_kl(p, q, estimator=estimator)
    monkeypatch.setattr(_shards, "PARALLEL_WORK", 1)
    monkeypatch.setattr(_shards, "_cores", lambda: 3)
    out = np.empty(70, np.float32)
    assert token_kl(p, q, estimator=estimator, out=out) is out
    np.testing.assert_array_equal(out, want)


def test_wrong_arguments_are_named() -> None:
    p, q = log_probs(0, 3, 8), log_probs(1, 3, 8)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("log_probs must be a non-empty", {"log_probs": p[0]}),
        ("log_probs must have dtype", {"log_probs": p.astype(np.float16)}),
        ("log_probs must be C-contiguous", {"log_probs": np.repeat(p, 2, axis=1)[:, ::2]}),
        ("reference_log_probs must have shape", {"reference_log_probs": q[:2]}),
        ("reference_log_probs must have dtype float32, not float64", {"reference_log_probs": q.astype(np.float64)}),
        ("mask must have shape", {"mask": np.ones(8, bool)}),
        ("mask must have dtype", {"mask": np.ones((3, 8), np.int64)}),
        ('estimator must be "exact", "k1", "k2" or "k3"', {"estimator": "k4"}),
        ('estimator must be "exact", "k1", "k2" or "k3"', {"estimator": ["k3"]}),
        ('estimator must be "exact", "k1", "k2" or "k3"', {"estimator": None}),
        ('reduction must be "sum" or "mean"', {"reduction": "max"}),
        ("out must have shape", {"out": np.empty(4, np.float32)}),
        ("out shares memory", {"out": p.reshape(-1)[:3]}),
    ]
    for message, wrong in cases:
        with pytest.raises(ValueError, match=f"^{message}"):
            token_kl(**({"log_probs": p, "reference_log_probs": q} | wrong))
    q[2, 5] = -np.inf
    with pytest.raises(ValueError, match=r"^reference_log_probs holds -inf at index \(2, 5\)"):
        token_kl(p, q, check_finite=True)
