"""Counter-based random streams, and what kernels, their references and torch must agree on.

A draw hashes key and counter and advances the counter, so that a stream's future depends on nothing but its
row: results do not depend on how streams are spread over threads, and a checkpoint is the row. The hash is the
SplitMix64 finaliser (Steele, Lea and Flood, 2014) over a Weyl sequence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mileage.kernels.machine.frames import Count, Index, PtrU64, Real32, Word
from mileage.kernels.machine.jit import inner

_WEYL = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S40, _S11 = (np.uint64(shift) for shift in (30, 27, 31, 40, 11))
_ONE = np.uint64(1)
_TO_F32 = np.float32(1.0 / (1 << 24))
_TO_F64 = 1.0 / (1 << 53)
_TWO_PI = np.float32(2.0 * math.pi)


@inner
def mix(x: Word) -> Word:
    """SplitMix64 finaliser of a uint64."""
    x = (x ^ (x >> _S30)) * _MIX_1
    x = (x ^ (x >> _S27)) * _MIX_2
    return x ^ (x >> _S31)


@inner
def next_u64(rng_state: PtrU64) -> Word:
    """Draw 64 random bits and advance the stream. `rng_state` is one row, (2,) uint64."""
    counter = rng_state[1] + _ONE
    rng_state[1] = counter
    return mix(rng_state[0] + counter * _WEYL)


@inner
def uniform01(rng_state: PtrU64) -> Real32:
    """Draw a float32 from [0, 1)."""
    return np.float32(next_u64(rng_state) >> _S40) * _TO_F32


@inner
def uniform(rng_state: PtrU64, low: Real32, high: Real32) -> Real32:
    """Draw a float32 from [low, high)."""
    return np.float32(low) + (np.float32(high) - np.float32(low)) * uniform01(rng_state)


@inner
def integers(rng_state: PtrU64, n: Count) -> Index:
    """Draw an integer from [0, n); the bias is below n / 2**53."""
    return np.int64(np.float64(next_u64(rng_state) >> _S11) * _TO_F64 * n)


@inner
def normal(rng_state: PtrU64) -> Real32:
    """Draw a standard normal float32 (Box and Muller; the second variate is not kept)."""
    u = np.float32(1.0) - uniform01(rng_state)
    v = uniform01(rng_state)
    return np.float32(math.sqrt(np.float32(-2.0) * math.log(u))) * np.float32(math.cos(_TWO_PI * v))


def uniform_rows(rng_state: NDArray[np.uint64], n: int) -> NDArray[np.float32]:
    """Draw `n` float32 from [0, 1) from each of the streams (N, 2): (N, n), and advance them. Plain NumPy."""
    with np.errstate(over="ignore"):
        counters = rng_state[:, 1:] + np.arange(1, n + 1, dtype=np.uint64)
        bits = mix.py_func(rng_state[:, :1] + counters * _WEYL)
        rng_state[:, 1] += np.uint64(n)
    return np.asarray((bits >> _S40).astype(np.float32) * _TO_F32)


def streams(seed: int, n: int, purpose: str) -> NDArray[np.uint64]:
    """Make `n` independent streams for one seed and purpose, (n, 2) uint64.

    Stream i is the same whatever `n` is, so that adding environments does not change the ones there were.
    """
    root = np.random.SeedSequence([seed, *purpose.encode()])
    rng_state = np.zeros((n, 2), np.uint64)
    key = root.generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        index = np.arange(1, n + 1, dtype=np.uint64) * _WEYL + key
        rng_state[:, 0] = mix.py_func(mix.py_func(index) ^ _MIX_2)
    return rng_state


# --- What compiled kernels, their plain versions and the torch back end must agree on. Needs no compiler ---
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
"""What a Gaussian's log-density has per dimension beside its exponent and its log deviation."""
LOG_STD_LOW, LOG_STD_HIGH = -20.0, 2.0
"""Bounds of a state-dependent log deviation, as in the original SAC."""
SQUASH_EPS = 1e-6
"""Keeps the logarithm of 1 - tanh² finite, as in the original SAC."""
KL_SLACK = 1.5
"""A KL above this multiple of the target ends the update, as in Stable-Baselines3."""


def n_params(sizes: Sequence[int]) -> int:
    """Number of parameters of a multilayer perceptron with these widths, inputs first."""
    return sum(a * b + b for a, b in itertools.pairwise(sizes))
