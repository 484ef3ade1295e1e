"""Multilayer perceptrons of `mileage.kernels.learners.mlp`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mileage._types import F64


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
