"""Environments whose best policy and returns are known."""

from __future__ import annotations

from typing import Any

from mileage.envs import env, integers, uniform


@env("TestIdentity-v0", state_size=1, obs_size=4, actions=4, max_steps=8, reward_threshold=8.0)
class Identity:
    """Name the number that is shown: 1 for the right one, a new one every step."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = integers(rng, 4)

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        reward = 1.0 if action == int(state[0]) else 0.0
        state[0] = integers(rng, 4)
        return reward, False

    @staticmethod
    def observe(state: Any, obs: Any) -> None:
        for k in range(4):
            obs[k] = 1.0 if k == int(state[0]) else 0.0


@env("TestMirror-v0", state_size=2, action_low=(-2.0, 0.0), action_high=(2.0, 1.0), max_steps=8)
class Mirror:
    """Name two numbers that are shown, within [-2, 2] and [0, 1]; costs the squared distance."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = uniform(rng, -2.0, 2.0)
        state[1] = uniform(rng, 0.0, 1.0)

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        cost = (action[0] - state[0]) ** 2 + (action[1] - state[1]) ** 2
        state[0] = uniform(rng, -2.0, 2.0)
        state[1] = uniform(rng, 0.0, 1.0)
        return -cost, False


@env("TestStairs-v0", state_size=1, actions=2, max_steps=5)
class Stairs:
    """Action 1 climbs, action 0 rests; the fifth stair is the top, which a steady climber reaches on the last step."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        state[0] += action
        return float(action), state[0] >= 5.0


@env("TestSpike-v0", state_size=2, actions=2, max_steps=0)
class Spike:
    """An observation that is 0 for the first hundred steps and 1000 from then on, beside a clock; never ends."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = 0.0
        state[1] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        state[1] += 1.0
        state[0] = 1000.0 if state[1] >= 100.0 else 0.0
        return 1.0, False


@env("TestDoors-v0", state_size=2, obs_size=5, actions=5, max_steps=8, reward_threshold=8.0)
class Doors:
    """Five doors of which two are locked; behind the first open one after the number shown lies 1, and a new number."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = integers(rng, 5)

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        shown = int(state[0])
        reward = 1.0 if action == (shown + 2) % 5 else 0.0
        if action == shown or action == (shown + 1) % 5:
            reward = -100.0
        state[0] = integers(rng, 5)
        return reward, False

    @staticmethod
    def observe(state: Any, obs: Any) -> None:
        for k in range(5):
            obs[k] = 1.0 if k == int(state[0]) else 0.0

    @staticmethod
    def mask(state: Any, out: Any) -> None:
        shown = int(state[0])
        out[shown] = 0
        out[(shown + 1) % 5] = 0


@env("TestPanel-v0", state_size=3, actions=(3, 2), action_low=(-2.0,), action_high=(2.0,), max_steps=8)
class Panel:
    """A lever of three places, a switch and a dial are to be set as shown; 1 for each, less for a dial that is off."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = integers(rng, 3)
        state[1] = integers(rng, 2)
        state[2] = uniform(rng, -1.0, 1.0)

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        reward = 1.0 - (action[2] - state[2]) ** 2
        if int(action[0]) == int(state[0]):
            reward += 1.0
        if int(action[1]) == int(state[1]):
            reward += 1.0
        state[0] = integers(rng, 3)
        state[1] = integers(rng, 2)
        state[2] = uniform(rng, -1.0, 1.0)
        return reward, False


@env("TestWalled-v0", state_size=1, actions=3, max_steps=8)
class Walled:
    """Has no way out after three steps."""

    @staticmethod
    def reset(state: Any, rng: Any) -> None:
        state[0] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any) -> Any:
        state[0] += 1.0
        return 0.0, False

    @staticmethod
    def mask(state: Any, out: Any) -> None:
        for k in range(3):
            out[k] = state[0] < 3.0
