"""Adam of `mileage.kernels.learners.optim`, and gradients by differences, which leave nothing to get wrong twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mileage._types import F64


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
