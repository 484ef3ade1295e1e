"""Environments with a bug each, which everything else is held against."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mileage.envs import NativeEnv, env, uniform


def make(
    name: str, *, step: Any = None, reset: Any = None, observe: Any = None, mask: Any = None, **options: Any
) -> NativeEnv:
    """An environment of two numbers and two actions that ends after 21 steps, with some functions replaced."""
    more = {"observe": observe, "mask": mask}
    functions = {"reset": reset or start, "step": step or count} | {key: each for key, each in more.items() if each}
    settings = {"state_size": 2, "actions": 2, "max_steps": 50} | options
    return env(name, **settings)(type(name, (), functions))


def start(state: Any, rng: Any) -> None:
    """Sound."""
    state[0] = 0.0
    state[1] = uniform(rng, -1.0, 1.0)


def count(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Sound."""
    state[0] += 1.0
    return 1.0, state[0] > 20.0


def raising_step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
    """Raises in the eleventh step of few episodes: not in the first steps that anybody looks at."""
    state[0] += 1.0
    if state[0] > 10.0 and state[1] > 0.95:
        raise ValueError("too far")
    return 1.0, state[0] > 20.0


def asserting_step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
    """Asserts what does not hold in the fifteenth step of few episodes."""
    state[0] += 1.0
    assert state[0] < 15.0 or state[1] < 0.95, "must stay below"
    return 1.0, state[0] > 20.0


def raising_reset(state: Any, rng: Any) -> None:
    """Raises at the start of few episodes."""
    state[0] = 0.0
    state[1] = uniform(rng, -1.0, 1.0)
    if state[1] > 0.95:
        raise RuntimeError("bad start")


def raising_observe(state: Any, obs: Any) -> None:
    """Raises in the thirteenth step of few episodes."""
    obs[0] = state[0]
    obs[1] = state[1]
    if state[0] > 12.0 and state[1] > 0.95:
        raise KeyError("what is seen")


def raising_at_once(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Raises in every step."""
    raise NotImplementedError("to be written")


def raising_start(state: Any, rng: Any) -> None:
    """Raises in every reset."""
    raise ValueError("no level")


def raising_mask(state: Any, out: Any) -> None:
    """Raises before the eleventh step of few episodes."""
    if state[0] > 9.0 and state[1] > 0.95:
        raise ValueError("cannot say")


def wide_mask(state: Any, out: Any) -> None:
    """Writes beyond what there is to choose."""
    out[5] = 0


def late_wide_mask(state: Any, out: Any) -> None:
    """Writes beyond what there is to choose, in few episodes."""
    out[5 if state[1] > 0.95 else 1] = 0


def closing_mask(state: Any, out: Any) -> None:
    """Leaves nothing before the eleventh step of few episodes."""
    if state[0] > 9.0 and state[1] > 0.95:
        out[:] = 0


def odd_mask(state: Any, out: Any) -> None:
    """Leaves the first action alone after an odd number of steps."""
    if int(state[0]) % 2 == 1:
        out[1] = 0


def obeying_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Sound where `odd_mask` is kept to."""
    if int(state[0]) % 2 == 1:
        assert action == 0, "was told that it cannot"
    state[0] += 1.0
    return 1.0, state[0] > 20.0


def printing_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Prints."""
    state[0] += 1.0
    print("at", state[0])
    return 1.0, state[0] > 20.0


def endless_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Does not return from the thirteenth step."""
    state[0] += 1.0
    while state[0] > 12.0:
        state[1] += 1.0
    return 1.0, state[0] > 20.0


def late_endless_step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
    """Does not return once it has been called 1,000 times: what resets leave alone is remembered."""
    state[0] += 1.0
    state[2] += 1.0
    while state[2] > 1000.0:
        state[1] += 1.0
    return 1.0, state[0] > 20.0


def wide_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Writes beyond the state."""
    state[0] += 1.0
    state[2] = 5.0
    return 1.0, state[0] > 20.0


def late_wide_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Reads beyond the state, in one episode of a hundred."""
    state[0] += 1.0
    index = 2 if state[1] > 0.98 else 0
    return state[index], state[0] > 20.0


def wide_observe(state: Any, obs: Any) -> None:
    """Writes beyond the observation."""
    for j in range(64):
        obs[j] = state[0]


def nan_observe(state: Any, obs: Any) -> None:
    """Shows NaN from the sixth step on."""
    obs[0] = math.log(5.5 - state[0])
    obs[1] = state[1]


def late_nan_observe(state: Any, obs: Any) -> None:
    """Shows NaN in one episode of a hundred: not in the first steps that anybody looks at."""
    obs[0] = math.sqrt(0.98 - state[1])
    obs[1] = state[1]


def nothing_step(state: Any, action: int, rng: Any) -> tuple[Any, bool]:
    """Gives no reward."""
    state[0] += 1.0
    return None, state[0] > 20.0


def infinite_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Divides by zero in the twentieth step."""
    state[0] += 1.0
    return 1.0 / (20.0 - state[0]), state[0] > 19.5


def late_infinite_step(state: Any, action: Any, rng: Any) -> tuple[float, bool]:
    """An infinite reward in one episode of a hundred."""
    state[0] += 1.0
    return 1.0 / (0.0 if state[1] > 0.98 else 1.0), state[0] > 20.0


def numpy_reset(state: Any, rng: Any) -> None:
    """Draws past its rng."""
    state[0] = 0.0
    state[1] = np.random.uniform(-1.0, 1.0)


def wordy_step(state: Any, action: int, rng: Any) -> tuple[float, bool]:
    """Cannot be compiled."""
    words = {"a": 1, 2: "b"}
    return float(len(words)), False


Raising = make("Raising", step=raising_step)
RaisingAnywhere = make("RaisingAnywhere", step=raising_step, actions=0, action_low=-1.0, action_high=1.0)
Asserting = make("Asserting", step=asserting_step)
RaisingReset = make("RaisingReset", reset=raising_reset)
RaisingObserve = make("RaisingObserve", observe=raising_observe)
RaisingAtOnce = make("RaisingAtOnce", step=raising_at_once)
RaisingStart = make("RaisingStart", reset=raising_start)
RaisingMask = make("RaisingMask", mask=raising_mask)
WideMask = make("WideMask", mask=wide_mask)
LateWideMask = make("LateWideMask", mask=late_wide_mask)
ClosingMask = make("ClosingMask", mask=closing_mask)
Obeying = make("Obeying", step=obeying_step, mask=odd_mask)
Printing = make("Printing", step=printing_step)
Endless = make("Endless", step=endless_step)
LateEndless = make("LateEndless", step=late_endless_step, state_size=3)
Wide = make("Wide", step=wide_step)
LateWide = make("LateWide", step=late_wide_step)
WideObserve = make("WideObserve", observe=wide_observe)
NanObserve = make("NanObserve", observe=nan_observe)
LateNan = make("LateNan", observe=late_nan_observe)
LateNanAnywhere = make("LateNanAnywhere", observe=late_nan_observe, actions=0, action_low=-1.0, action_high=1.0)
Nothing = make("Nothing", step=nothing_step)
Infinite = make("Infinite", step=infinite_step)
LateInfinite = make("LateInfinite", step=late_infinite_step)
LateInfiniteAnywhere = make(
    "LateInfiniteAnywhere", step=late_infinite_step, actions=0, action_low=-1.0, action_high=1.0
)
NumpyDraws = make("NumpyDraws", reset=numpy_reset)
Wordy = make("Wordy", step=wordy_step)
Sound = make("Sound")
