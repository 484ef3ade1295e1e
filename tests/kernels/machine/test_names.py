"""Code that was compiled in two processes and is loaded in a third keeps apart what has the same name in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = """
import sys
import numpy as np
from mileage.kernels.machine.jit import inner, kernel
from mileage.kernels.machine.frames import Frame, frame_type

FRAMES = {"a": frame_type("x y: int64"), "b": frame_type("more x y: int64")}

@inner
def last(frame, turns):
    found = 0
    for _ in range(turns):
        found += frame.y
    return found

@kernel(key="two frames")
def twice(record):
    return last(record[0], 2)

for name in sys.argv[1:]:
    frame = Frame(FRAMES[name], **dict.fromkeys(FRAMES[name].names, 1)).set(y=21)
    assert twice(frame.record) == 42, name
"""
ENVIRONMENT = """
import sys
from mileage.envs import VecEnv, env

def make(name, step):
    class Walk:
        def reset(state, rng):
            state[0] = 0.0
        def step(state, action, rng):
            state[0] += step
            return state[0], False
    return env(name, state_size=1, actions=2)(Walk)

STEPS = {"short": 1.0, "long": 7.0}
for name in sys.argv[1:]:
    walks = VecEnv(make(name, STEPS[name]), 1)
    walks.reset(seed=0)
    assert walks.step([0])[1][0] == STEPS[name], name
"""


@pytest.mark.parametrize(("program", "names"), [(KERNEL, "a b"), (ENVIRONMENT, "short long")], ids=["frames", "envs"])
def test_what_two_processes_compiled_is_told_apart_by_a_third(program: str, names: str, tmp_path: Path) -> None:
    place = os.environ | {"MILEAGE_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "program.py"
    script.write_text(program)
    for wanted in (*([each] for each in names.split()), names.split()):
        done = subprocess.run([sys.executable, script, *wanted], env=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
