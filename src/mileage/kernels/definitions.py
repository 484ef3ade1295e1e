"""What compiled kernels, their plain versions and the torch back end must agree on. Needs no compiler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

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
