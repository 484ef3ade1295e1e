"""Networks, action heads, Adam, gradients by differences and random streams of `mileage.kernels`, plainly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mileage.kernels.random import HALF_LOG_TWO_PI, LOG_STD_HIGH, LOG_STD_LOW, SQUASH_EPS
from mileage.types import F64


def mlp(params: Any, sizes: Sequence[int], x: Any, activation: str = "tanh") -> list[F64]:
    """Outputs of every layer, the input first; the last layer is linear. `params` is flat: weights, biases, …"""
    outputs = [np.asarray(x, np.float64)]
    start = 0
    for layer, (n_in, n_out) in enumerate(itertools.pairwise(sizes)):
        weights = np.asarray(params[start : start + n_in * n_out], np.float64).reshape(n_in, n_out)
        biases = np.asarray(params[start + n_in * n_out : start + n_in * n_out + n_out], np.float64)
        start += n_in * n_out + n_out
        out = outputs[-1] @ weights + biases
        if layer < len(sizes) - 2:
            out = np.tanh(out) if activation == "tanh" else np.maximum(out, 0.0)
        outputs.append(out)
    return outputs


def mlp_gradient(params: Any, sizes: Sequence[int], x: Any, slopes: Any, activation: str = "tanh") -> F64:
    """Gradient of `sum(slopes * output)` by the flat parameters, by the chain rule."""
    outputs = mlp(params, sizes, x, activation)
    pieces: list[F64] = []
    stop = len(params)
    delta = np.asarray(slopes, np.float64)
    for layer in reversed(range(len(sizes) - 1)):
        n_in, n_out = sizes[layer], sizes[layer + 1]
        stop -= n_in * n_out + n_out
        weights = np.asarray(params[stop : stop + n_in * n_out], np.float64).reshape(n_in, n_out)
        pieces = [(outputs[layer].T @ delta).ravel(), delta.sum(axis=0), *pieces]
        if layer > 0:
            h = outputs[layer]
            delta = (delta @ weights.T) * (1.0 - h * h if activation == "tanh" else h > 0.0)
    return np.concatenate(pieces)


# --- Action distributions of `mileage.kernels.heads` ---
def categorical(logits: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N,) and entropies (N,) under `logits` (N, K)."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    chosen: F64 = log_p[np.arange(len(log_p)), np.asarray(actions, np.int64)]
    entropy: F64 = -(np.exp(log_p) * log_p).sum(axis=1)
    return chosen, entropy


def gaussian(mean: Any, log_std: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N, A) and entropies (N,) under independent normals of `mean` (N, A)."""
    log_std = np.asarray(log_std, np.float64)
    z = (np.asarray(actions, np.float64) - mean) / np.exp(log_std)
    log_prob: F64 = (-0.5 * z * z - log_std - HALF_LOG_TWO_PI).sum(axis=1)
    entropy = (log_std + 0.5 + HALF_LOG_TWO_PI).sum()
    return log_prob, np.full(len(z), entropy)


def parts(head: Any, branches: Sequence[int], log_std: Any, masks: Any, actions: Any) -> tuple[F64, F64]:
    """Log-probabilities of `actions` (N, C + G), choices before numbers, and entropies (N,).

    `head` (N, M + G) holds the logits of every choice, then means; where `masks` (N, M) are 0 there is no choice.
    """
    head, actions = np.asarray(head, np.float64), np.asarray(actions)
    log_prob, entropy = gaussian(head[:, sum(branches) :], log_std, actions[:, len(branches) :])
    stops = np.cumsum(branches)
    for part, (start, stop) in enumerate(zip(stops - branches, stops, strict=True)):
        for row, mask in enumerate(np.asarray(masks)[:, start:stop] != 0):
            chosen = np.count_nonzero(mask[: int(actions[row, part])])
            found = categorical(head[row : row + 1, start:stop][:, mask], [chosen])
            log_prob[row] += found[0][0]
            entropy[row] += found[1][0]
    return log_prob, entropy


def squashed(head: F64, noise: Any) -> tuple[F64, F64]:
    """Actions (N, A) in (-1, 1) and their log-densities (N,), from means and log deviations beside each other."""
    mean, raw = np.split(head, 2, axis=1)
    log_std = np.clip(raw, LOG_STD_LOW, LOG_STD_HIGH)
    noise = np.asarray(noise, np.float64)
    actions: F64 = np.tanh(mean + noise * np.exp(log_std))
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    return actions, (normal - np.log(1.0 - actions**2 + SQUASH_EPS)).sum(axis=1)


# --- Adam of `mileage.kernels.optim`, and gradients by differences, which leave nothing to get wrong twice ---
def numerical_gradient(function: Callable[[F64], float], params: Any, step: float = 1e-6) -> F64:
    """Gradient of `function` by central differences, (P,) float64."""
    params = np.array(params, np.float64)
    gradient: F64 = np.zeros(len(params))
    for i in range(len(params)):
        params[i] += step
        above = function(params)
        params[i] -= 2.0 * step
        below = function(params)
        params[i] += step
        gradient[i] = (above - below) / (2.0 * step)
    return gradient


class Adam:
    """Adam (Kingma and Ba, 2015) with clipping to a global norm; `max_norm` 0 for none."""

    def __init__(self, n: int, rate: float, eps: float, max_norm: float = 0.0) -> None:
        self.rate, self.eps, self.max_norm = rate, eps, max_norm
        self.mean, self.square, self.steps = np.zeros(n), np.zeros(n), 0

    def step(self, params: F64, gradient: F64) -> F64:
        """Parameters after one step."""
        norm = float(np.linalg.norm(gradient))
        if 0.0 < self.max_norm < norm:
            gradient = gradient * (self.max_norm / (norm + 1e-6))
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1.0 - 0.9**self.steps)
        square = self.square / (1.0 - 0.999**self.steps)
        return params - self.rate * mean / (np.sqrt(square) + self.eps)


# --- The random streams of `mileage.kernels.random` once more, in Python integers and float64 ---
_WEYL, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 1 << 64


def mix(x: int) -> int:
    """SplitMix64 finaliser of a 64-bit integer."""
    x = ((x ^ (x >> 30)) * _MIX_1) % _WORD
    x = ((x ^ (x >> 27)) * _MIX_2) % _WORD
    return x ^ (x >> 31)


class Stream:
    """One stream; starts as the row (key, counter) it is made from and leaves that row alone."""

    def __init__(self, row: Any) -> None:
        self.key, self.counter = int(row[0]), int(row[1])

    def next_u64(self) -> int:
        """Draw 64 random bits."""
        self.counter += 1
        return mix((self.key + self.counter * _WEYL) % _WORD)

    def uniform01(self) -> float:
        """Draw from [0, 1)."""
        return (self.next_u64() >> 40) / (1 << 24)

    def integers(self, n: int) -> int:
        """Draw an integer from [0, n)."""
        return int((self.next_u64() >> 11) / (1 << 53) * n)

    def normal(self) -> float:
        """Draw a standard normal number."""
        u, v = 1.0 - self.uniform01(), self.uniform01()
        return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)

    def permute(self, order: Any) -> None:
        """Permute a sequence in place."""
        for last in range(len(order) - 1, 0, -1):
            other = self.integers(last + 1)
            order[last], order[other] = order[other], order[last]
