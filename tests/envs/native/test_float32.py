"""Sine and cosine of environment code: accuracy, and that compiled and plain code agree to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mileage.envs import VecEnv, env
from mileage.envs.native import float32 as _float32

ARGUMENTS = np.concatenate(
    [
        np.linspace(-math.pi, math.pi, 3001),
        np.linspace(-8000.0, 8000.0, 3001),
        np.arange(-200, 201) * math.pi / 4,
        np.geomspace(1e-30, 1.0, 200),
    ]
).astype(np.float32)


def ulp_error(values: Any, exact: Any) -> Any:
    """Distance in units of the last place of the exact value, or of 2**-24 near the zeros of a function of size 1."""
    return np.abs(values.astype(np.float64) - exact) / np.maximum(
        np.spacing(np.abs(exact).astype(np.float32)), 2.0**-24
    )


@pytest.mark.parametrize(("ours", "exact"), [(_float32.sin, np.sin), (_float32.cos, np.cos)])
def test_within_two_units_of_the_last_place(ours: Any, exact: Any) -> None:
    values = np.array([ours(x) for x in ARGUMENTS])
    assert values.dtype == np.float32
    assert ulp_error(values, exact(ARGUMENTS.astype(np.float64))).max() <= 2.0


def test_known_values() -> None:
    assert _float32.sin(np.float32(0.0)) == 0.0
    assert _float32.cos(np.float32(0.0)) == 1.0
    assert _float32.sin(np.float32(math.pi / 2)) == 1.0
    assert _float32.cos(np.float32(math.pi)) == -1.0


@env("Float32-Probe", state_size=1, obs_size=2, actions=2)
class Probe:
    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = 0.0

    @staticmethod
    def step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
        return 0.0, False

    @staticmethod
    def observe(state: Any, obs: Any) -> None:
        obs[0] = math.sin(state[0])
        obs[1] = np.cos(state[0])


def test_compiled_and_plain_agree_to_the_bit() -> None:
    vec = VecEnv(Probe, len(ARGUMENTS))
    vec.reset()
    vec.state[:, 0] = ARGUMENTS
    obs = vec.step(np.zeros(len(ARGUMENTS), np.int64))[0]
    np.testing.assert_array_equal(obs[:, 0], np.array([_float32.sin(x) for x in ARGUMENTS]))
    np.testing.assert_array_equal(obs[:, 1], np.array([_float32.cos(x) for x in ARGUMENTS]))
