"""A rocket that has to land softly: an environment of one's own, trained like a built-in one.

    python examples/custom_env.py
    mileage train ppo examples/custom_env.py:Lander --target "mean_return>=8"

The rocket falls from about ten metres through gusty air. Firing the engine (action 1) burns fuel; a touchdown earns 10
minus the impact speed, an engine that never lets the rocket land earns nothing.
"""

import mileage
from mileage.envs import uniform

SECONDS_PER_STEP = 0.05
GRAVITY = 9.8
THRUST = 20.0
GUST = 0.1
BURN = 0.005
HOVERING_COSTS = 0.01


@mileage.env(state_size=3, actions=2, obs_high=(40.0, 40.0, 1.0), max_steps=200, reward_threshold=8.0)
class Lander:
    """State and observation: height (m), vertical speed (m/s), fuel left (1 is a full tank)."""

    @staticmethod
    def reset(state, rng):
        state[0] = uniform(rng, 8.0, 12.0)
        state[1] = uniform(rng, -2.0, 2.0)
        state[2] = 1.0

    @staticmethod
    def step(state, action, rng):
        firing = (action == 1) & (state[2] > 0.0)
        thrust = THRUST if firing else 0.0
        burnt = BURN if firing else 0.0
        speed = state[1] + (thrust - GRAVITY) * SECONDS_PER_STEP + GUST * uniform(rng, -1.0, 1.0)
        height = min(state[0] + speed * SECONDS_PER_STEP, 40.0)
        state[0] = max(height, 0.0)
        state[1] = min(max(speed, -40.0), 40.0)
        state[2] = max(state[2] - burnt, 0.0)
        landed = height <= 0.0
        return (10.0 + speed if landed else -HOVERING_COSTS), landed


if __name__ == "__main__":
    agent = mileage.PPO(Lander, seed=0)
    run = agent.learn(200_000, target="mean_return>=8")
    print(f"landed softly on the held-out panel after {run.steps_to_target} steps of training")
