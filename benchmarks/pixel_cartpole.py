"""CartPole seen as an image: a Gymnasium environment that draws itself with NumPy alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIZE = 64
# What all arms of `torch_cnn.py` train with.
SETTINGS: dict[str, Any] = {
    "n_envs": 8,
    "n_steps": 128,
    "epochs": 4,
    "minibatch": 256,
    "learning_rate": 2.5e-4,
    "entropy_coef": 0.01,
}
# Half the width of the track that the image shows.
_TRACK = 2.4


class PixelCartPole(gymnasium.Env[Any, Any]):
    """CartPole-v1 as (64, 64, 2) bytes: the last two frames, so that velocities can be seen."""

    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._inner = gymnasium.make("CartPole-v1")
        self._frames = np.zeros((SIZE, SIZE, 2), np.uint8)
        # Points along the pole, from the cart to its tip.
        self._along = np.linspace(0.0, 28.0, 40)

    def _draw(self, state: Any, frame: Any) -> None:
        frame[:] = 0
        centre = (float(state[0]) / _TRACK + 1.0) * 0.5 * (SIZE - 1)
        left = int(np.clip(centre - 4, 0, SIZE - 9))
        frame[52:56, left : left + 9] = 160
        x = np.clip(centre + self._along * np.sin(state[2]), 0, SIZE - 1).astype(np.intp)
        y = np.clip(52 - self._along * np.cos(state[2]), 0, SIZE - 1).astype(np.intp)
        frame[y, x] = 255

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        state, info = self._inner.reset(seed=seed, options=options)
        for k in range(2):
            self._draw(state, self._frames[:, :, k])
        return self._frames.copy(), info

    def step(self, action: Any) -> Any:
        state, reward, terminated, truncated, info = self._inner.step(int(action))
        self._frames[:, :, 0] = self._frames[:, :, 1]
        self._draw(state, self._frames[:, :, 1])
        return self._frames.copy(), float(reward), terminated, truncated, info

    def close(self) -> None:
        self._inner.close()
