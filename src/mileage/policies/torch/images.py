"""Default networks for images and dicts of arrays: convolutions as in Mnih et al. (2015), fewer for small ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mileage.errors import UsageError
from mileage.policies.torch.networks import dueling
from mileage.types import ObsLeaf

FEATURES = 512
# (channels, kernel, stride): Mnih's for images from 36 pixels on, a shallow one below.
_LARGE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_SMALL = ((16, 3, 2), (32, 3, 2))
_LARGE_FROM = 36
# What is smaller than that on a side is not convolved.
_SMALLEST = 8


def _orthogonal(layer: Any, gain: float) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class _BytesConv2d(nn.Conv2d):
    """A convolution of bytes as if they were from 0 to 1: scaled in its few weights, not in every pixel."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's own word)
        return self._conv_forward(input, self.weight * (1.0 / 255.0), self.bias)


class ImageTrunk(nn.Module):
    """Features (N, 512) of images (N, H, W, C), (N, C, H, W) or (N, H, W); bytes are scaled to [0, 1]."""

    def __init__(self, shape: tuple[int, ...], *, scale: bool) -> None:
        super().__init__()
        if not is_image(shape):
            raise UsageError(f"an image of shape {shape} cannot be convolved: give (height, width, channels)")
        # As Gymnasium's image wrappers and Stable-Baselines3 have it: the shortest axis holds the channels.
        self._channels_last = len(shape) == 3 and shape[2] == min(shape)
        last = (*shape, 1) if len(shape) == 2 else shape if self._channels_last else (*shape[1:], shape[0])
        height, width, channels = last
        layers: list[nn.Module] = []
        for outputs, kernel, stride in _LARGE if min(height, width) >= _LARGE_FROM else _SMALL:
            kind = _BytesConv2d if scale and not layers else nn.Conv2d
            layers += [_orthogonal(kind(channels, outputs, kernel, stride), math.sqrt(2.0)), nn.ReLU(inplace=True)]
            channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        self.convolutions = nn.Sequential(*layers)
        self.linear = _orthogonal(nn.Linear(channels * height * width, FEATURES), math.sqrt(2.0))

    def forward(self, image: Tensor) -> Tensor:
        """Features (N, 512) float32."""
        if image.ndim == 3:
            image = image.unsqueeze(1)
        elif self._channels_last:
            image = image.permute(0, 3, 1, 2)
        # A pixel's channels lie together from the first layer to the last, so that nothing is rearranged in between.
        maps = self.convolutions(image.to(torch.float32, memory_format=torch.channels_last))
        return torch.relu_(self.linear(maps.permute(0, 2, 3, 1).flatten(1)))


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether the default network convolves a part of an observation with this shape."""
    return len(shape) in (2, 3) and min(sorted(shape)[-2:]) >= _SMALLEST


class Trunk(nn.Module):
    """Features of an observation of any form: images through convolutions, the rest as it is, side by side."""

    def __init__(self, leaves: Sequence[ObsLeaf]) -> None:
        super().__init__()
        # Bytes are scaled to [0, 1] here too.
        self._scales = {leaf.name: 1.0 / 255.0 if leaf.dtype == "uint8" else 1.0 for leaf in leaves}
        convolved = [leaf for leaf in leaves if is_image(leaf.shape)]
        trunks = {leaf.name or "image": ImageTrunk(leaf.shape, scale=leaf.dtype == "uint8") for leaf in convolved}
        self.images = nn.ModuleDict(trunks)
        self.size = sum(FEATURES if leaf in convolved else math.prod(leaf.shape) for leaf in leaves)

    def forward(self, obs: Any) -> Tensor:
        """Features (N, size) of a tensor or a dict of tensors."""
        if not isinstance(obs, dict):
            return self._part("image", obs, self._scales[""])
        return torch.cat([self._part(name, obs[name], scale) for name, scale in self._scales.items()], 1)

    def _part(self, name: str, part: Tensor, scale: float) -> Tensor:
        found: Tensor = self.images[name](part) if name in self.images else part.flatten(1).float() * scale
        return found


class TrunkActorCritic(nn.Module):
    """Shared features, with a linear head each for the policy and the value."""

    def __init__(self, leaves: Sequence[ObsLeaf], outputs: int) -> None:
        super().__init__()
        self.trunk = Trunk(leaves)
        self.actor = _orthogonal(nn.Linear(self.trunk.size, outputs), 0.01)
        self.critic = _orthogonal(nn.Linear(self.trunk.size, 1), 1.0)

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Logits or means (N, A) and values (N,)."""
        features = self.trunk(obs)
        return self.actor(features), self.critic(features)[:, 0]


class TrunkHead(nn.Module):
    """Features and hidden layers with one output; for action values and for actors."""

    def __init__(
        self, leaves: Sequence[ObsLeaf], hidden: Sequence[int], outputs: int, *, is_dueling: bool = False
    ) -> None:
        super().__init__()
        self.trunk = Trunk(leaves)
        self.head = _mlp((self.trunk.size, *hidden, outputs))
        self._dueling = is_dueling

    def forward(self, obs: Any) -> Tensor:
        """Outputs (N, outputs), or action values if dueling."""
        head = self.head(self.trunk(obs))
        return dueling(head) if self._dueling else head


class TrunkTwinCritic(nn.Module):
    """Two values of an observation and an action, on shared features."""

    def __init__(self, leaves: Sequence[ObsLeaf], hidden: Sequence[int], action_size: int) -> None:
        super().__init__()
        self.trunk = Trunk(leaves)
        self.heads = nn.ModuleList([_mlp((self.trunk.size + action_size, *hidden, 1)) for _ in range(2)])

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        """Values (2, N)."""
        joined = torch.cat([self.trunk(obs), action], 1)
        return torch.stack([head(joined)[:, 0] for head in self.heads])


class TrunkActorTwinCritic(nn.Module):
    """Actor and twin critics of SAC and TD3, each with features of its own."""

    def __init__(self, leaves: Sequence[ObsLeaf], hidden: Sequence[int], outputs: int, action_size: int) -> None:
        super().__init__()
        self.actor = TrunkHead(leaves, hidden, outputs)
        self.critic = TrunkTwinCritic(leaves, hidden, action_size)


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
