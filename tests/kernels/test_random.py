"""Counter-based random streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from mileage.kernels import random
from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.reference.networks import Stream, mix
from shims import shim


@shim
def draw_u64(rng: Any, out: Any) -> None:
    state = pointer_to(rng)
    for i in range(out.shape[0]):
        out[i] = random.next_u64(state)


@shim
def draw_uniform(rng: Any, low: Any, high: Any, out: Any) -> None:
    state = pointer_to(rng)
    for i in range(out.shape[0]):
        out[i] = random.uniform(state, low, high)


@shim
def draw_integers(rng: Any, n: Any, out: Any) -> None:
    state = pointer_to(rng)
    for i in range(out.shape[0]):
        out[i] = random.integers(state, n)


@shim
def draw_normal(rng: Any, out: Any) -> None:
    state = pointer_to(rng)
    for i in range(out.shape[0]):
        out[i] = random.normal(state)


def row(seed: int = 0, purpose: str = "test") -> np.ndarray[Any, Any]:
    return random.streams(seed, 1, purpose)[0]


def test_mix_has_the_published_values() -> None:
    # SplitMix64 from state 0 (Steele, Lea and Flood, 2014): the finaliser of 1, 2 and 3 times the Weyl constant.
    weyl = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [mix(i * weyl % 2**64) for i in (1, 2, 3)] == published


def test_bits_equal_reference_and_advance_the_counter() -> None:
    rng, out = row(), np.zeros(1000, np.uint64)
    stream = Stream(rng)
    draw_u64(rng, out)
    assert out.tolist() == [stream.next_u64() for _ in range(1000)]
    assert rng[1] == 1000


KEYS = ["0x87e759545f205590", "0x7062d5e0f6de4b64", "0x5983abbf1e6870e5"]
BITS = ["0x37ccb6c4fc396086", "0x40545fc6427a243f"]


def test_first_values_of_a_stream_never_change() -> None:
    # A change here breaks every published run and every checkpoint.
    rng, out = random.streams(7, 3, "env"), np.zeros(2, np.uint64)
    assert [hex(key) for key in rng[:, 0].tolist()] == KEYS
    draw_u64(rng[2], out)
    assert [hex(bits) for bits in out.tolist()] == BITS


def test_uniform_equals_reference_and_fills_the_range_evenly() -> None:
    rng, out = row(1), np.zeros(200_000, np.float32)
    stream = Stream(rng)
    draw_uniform(rng, -2.0, 3.0, out)
    want = [-2.0 + 5.0 * stream.uniform01() for _ in range(100)]
    np.testing.assert_allclose(out[:100], want, rtol=1e-6, atol=1e-6)
    assert out.min() >= -2.0
    assert out.max() < 3.0
    counts = np.histogram(out, bins=100, range=(-2.0, 3.0))[0]
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_integers_equal_reference_and_keep_their_bounds(n: int) -> None:
    rng, out = row(2), np.zeros(50_000, np.int64)
    stream = Stream(rng)
    draw_integers(rng, n, out)
    assert out[:200].tolist() == [stream.integers(n) for _ in range(200)]
    assert out.min() == 0
    assert out.max() == n - 1
    if n > 1:
        assert stats.chisquare(np.bincount(out, minlength=n)).pvalue > 1e-3


def test_normal_equals_reference_and_is_normal() -> None:
    rng, out = row(3), np.zeros(200_000, np.float32)
    stream = Stream(rng)
    draw_normal(rng, out)
    np.testing.assert_allclose(out[:200], [stream.normal() for _ in range(200)], atol=2e-6)
    assert stats.kstest(out, "norm").pvalue > 1e-3
    assert np.isfinite(out).all()


def test_streams_do_not_depend_on_how_many_there_are() -> None:
    np.testing.assert_array_equal(random.streams(5, 3, "env"), random.streams(5, 100, "env")[:3])


def test_streams_differ_by_seed_purpose_and_index() -> None:
    keys = [random.streams(seed, 500, purpose)[:, 0] for seed in range(4) for purpose in ("env", "action")]
    assert len(set(np.concatenate(keys).tolist())) == 4000


def test_neighbouring_streams_are_uncorrelated() -> None:
    rng, out = random.streams(0, 64, "env"), np.zeros((64, 4096), np.float32)
    for i in range(64):
        draw_uniform(rng[i], 0.0, 1.0, out[i])
    correlations = np.corrcoef(out)[np.triu_indices(64, 1)]
    # 2016 pairs of standard error 1/64: the largest of so many normals lies near 3.5 standard errors.
    assert np.abs(correlations).max() < 5.0 / 64.0
    assert stats.kstest(correlations * 64.0, "norm").pvalue > 1e-3
