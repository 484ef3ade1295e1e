"""The guide's code runs, and the example does what its text says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mileage.envs import NativeEnv, VecEnv, resolve

ROOT = Path(__file__).resolve().parents[2]


def test_code_of_the_guide_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "envs.md").read_text(), re.DOTALL)
    assert len(blocks) >= 6
    scope: dict[str, Any] = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "docs/envs.md", "exec"), scope)
    # A swing left alone (action 1) at rest moves nowhere and earns nothing.
    state = np.zeros(2, np.float32)
    reward, ended = scope["Swing"].functions[1](state, 1, None)
    assert (reward, ended) == (0.0, False)


@pytest.fixture(name="lander")
def lander_fixture() -> NativeEnv:
    spec = resolve(f"{ROOT / 'examples' / 'custom_env.py'}:Lander")
    assert isinstance(spec, NativeEnv)
    return spec


def test_free_fall_hits_the_ground_at_the_speed_of_physics(lander: NativeEnv) -> None:
    vec = VecEnv(lander, 16, seed=0)
    first = vec.reset()[0].copy()
    for _ in range(200):
        _, rewards, terminated, _, _ = vec.step(np.zeros(16, np.int64))
        if terminated[0]:
            break
    # v^2 = v0^2 + 2 g h, up to a step's worth of speed and the gusts; reward is 10 minus the impact speed.
    speed = np.sqrt(first[0, 1] ** 2 + 2 * 9.8 * first[0, 0])
    assert 10.0 - rewards[0] == pytest.approx(speed, abs=1.0)
    assert vec.final_obs[0, 0] == 0.0
    assert vec.final_obs[0, 2] == 1.0


def test_an_engine_that_never_stops_burns_its_fuel(lander: NativeEnv) -> None:
    vec = VecEnv(lander, 1, seed=0)
    vec.reset()
    for _ in range(100):
        obs = vec.step(np.ones(1, np.int64))[0]
    # 100 steps at 0.005 each.
    assert obs[0, 2] == pytest.approx(0.5, abs=1e-5)
