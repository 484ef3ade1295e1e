"""Angles in environment code."""

from __future__ import annotations

import math

import numpy as np

TWO_PI = 2.0 * math.pi


def wrap_angle(angle: float) -> float:
    """The same angle in [-pi, pi); `angle` is a float32."""
    wrapped: float = angle - TWO_PI * np.floor((angle + math.pi) / TWO_PI)
    return wrapped
