"""Small modules and environments that tests of the torch back end share."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """A user's own actor-critic with a shared trunk."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, outputs), nn.Linear(32, 1)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        return self.actor(features), self.critic(features)


class Remembering(nn.Module):
    """An actor-critic with an LSTM cell; its state is a tuple."""

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.width = width
        self.cell = nn.LSTMCell(inputs, width)
        self.actor, self.critic = nn.Linear(width, outputs), nn.Linear(width, 1)

    def initial_state(self, n: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(n, self.width), torch.zeros(n, self.width)

    def forward(self, obs: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        state = self.cell(obs, state)
        return self.actor(state[0]), self.critic(state[0])[:, 0], state


class DictNet(nn.Module):
    """Looks at two parts of a dict observation."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(3, 32)
        self.actor, self.critic = nn.Linear(32, outputs), nn.Linear(32, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        picture = obs["picture"].flatten(1).float() / 255.0
        features = torch.tanh(self.first(picture) + self.second(obs["place"]))
        return self.actor(features), self.critic(features)


class DictQ(DictNet):
    """Action values on the same parts."""

    def forward(self, obs: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super().forward(obs)[0]


class _Shown(gymnasium.Env[Any, Any]):
    """Name the number that is shown: 1 for the right one, a new one every step, eight steps."""

    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self._draw()
        return self.observe(), {}

    def _draw(self) -> None:
        self.shown = int(self.np_random.integers(4))

    def step(self, action: Any) -> Any:
        reward = float(action == self.shown)
        self.steps += 1
        self._draw()
        return self.observe(), reward, False, self.steps >= 8, {"shown": self.shown}

    def observe(self) -> Any:
        raise NotImplementedError


class ShownPicture(_Shown):
    """The number is the quarter of a picture that is bright."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def observe(self) -> Any:
        picture = np.zeros((8, 8, 1), np.uint8)
        row, column = divmod(self.shown, 2)
        picture[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] = 255
        return picture


class ShownDict(_Shown):
    """The number is half in a picture and half in a place."""

    observation_space = gymnasium.spaces.Dict(
        {
            "picture": gymnasium.spaces.Box(0, 255, (4, 4), np.uint8),
            "place": gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float64),
            "hint": gymnasium.spaces.Discrete(3),
        }
    )

    def observe(self) -> Any:
        picture = np.zeros((4, 4), np.uint8)
        picture[self.shown // 2] = 200
        return {"picture": picture, "place": np.array([self.shown % 2, 0.5, -0.5]), "hint": self.shown % 3}


class Recall(gymnasium.Env[Any, Any]):
    """Shows a bit in the first step and asks for it in the third; nothing but memory helps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.bit = 0, int(self.np_random.integers(2))
        return np.array([2 * self.bit - 1, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(action == self.bit) if self.steps == 3 else 0.0
        return np.array([0, self.steps == 2], np.float32), reward, self.steps == 3, False, {}
