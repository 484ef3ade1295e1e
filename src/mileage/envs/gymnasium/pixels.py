"""Environments seen as images, with the usual wrappers: uint8 (channels, height, width) for convolutional policies."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import wrappers

from mileage.envs.gymnasium.bridge import Env, GymnasiumEnv, channels_first, gymnasium_make
from mileage.errors import MissingExtraError, UsageError, require
from mileage.types import Array

Stepped = tuple[Array, SupportsFloat, bool, bool, dict[str, Any]]


def atari(
    name: str,
    *,
    frame_skip: int = 4,
    screen_size: int = 84,
    grayscale: bool = True,
    frame_stack: int = 4,
    noop_max: int = 30,
    life_loss: bool = True,
    fire_reset: bool = True,
    clip_reward: bool = True,
    **kwargs: Any,
) -> GymnasiumEnv:
    """An Atari game as reinforcement learning usually sees it (Mnih et al., 2015); needs the extra `atari`.

    Args:
        name: id of the game, such as "ALE/Breakout-v5" or "BreakoutNoFrameskip-v4".
        frame_skip: frames that an action lasts; the observation is the maximum of the last two.
        screen_size: height and width in pixels after resizing.
        grayscale: one channel per frame instead of three.
        frame_stack: how many of the last frames an observation holds.
        noop_max: an episode starts with a random number of no-ops up to this.
        life_loss: whether a lost life ends the episode; the next one goes on in the same game until it is over. To
            measure scores, turn this and `clip_reward` off.
        fire_reset: press fire once at the start where the game waits for it.
        clip_reward: replace rewards by their sign.
        kwargs: further ones for Gymnasium's constructor.
    """
    for module in ("ale_py", "cv2"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(f"environment {name!r}", "atari")
    options = {
        "frame_skip": _positive("frame_skip", frame_skip),
        "screen_size": _positive("screen_size", screen_size),
        "grayscale": grayscale,
        "frame_stack": _positive("frame_stack", frame_stack),
        "noop_max": noop_max,
        "life_loss": life_loss,
        "fire_reset": fire_reset,
        "clip_reward": clip_reward,
        **kwargs,
    }
    return GymnasiumEnv(name, options, make=functools.partial(_make_atari, name), image=True)


def pixels(
    name: str,
    *,
    render: bool = False,
    screen_size: int | None = 84,
    grayscale: bool = True,
    frame_stack: int = 4,
    frame_skip: int = 1,
    clip_reward: bool = False,
    **kwargs: Any,
) -> GymnasiumEnv:
    """Any Gymnasium environment whose observations are images, or, with `render`, one that can draw itself.

    Args:
        name: id of the environment.
        render: observe the rendered picture instead of what the environment returns.
        screen_size: height and width in pixels after resizing, which needs the extra `atari`; None leaves them.
        grayscale: one channel per frame instead of three; images without colour stay as they are.
        frame_stack: how many of the last frames an observation holds.
        frame_skip: steps that an action lasts; the observation is the maximum of the last two.
        clip_reward: replace rewards by their sign.
        kwargs: further ones for Gymnasium's constructor.
    """
    if screen_size is not None and importlib.util.find_spec("cv2") is None:
        raise MissingExtraError(f"resizing the images of {name!r}", "atari")
    options = {
        "render": render,
        "screen_size": None if screen_size is None else _positive("screen_size", screen_size),
        "grayscale": grayscale,
        "frame_stack": _positive("frame_stack", frame_stack),
        "frame_skip": _positive("frame_skip", frame_skip),
        "clip_reward": clip_reward,
        **kwargs,
    }
    return GymnasiumEnv(name, options, make=functools.partial(_make_pixels, name), image=True)


class LifeLoss(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """Ends an episode when a life is lost, but starts the game again only when it is over.

    Gymnasium's own option starts it again after every life, so that the policy never sees how it goes on.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._lives = 0
        self._over = True

    def step(self, action: Array | int) -> Stepped:
        """Step, and say terminated if there is a life less."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._over = terminated or truncated
        lives = self._count()
        lost = lives < self._lives
        self._lives = lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Go on with the next life, or start the game again if it is over or a seed is given."""
        if seed is None and not self._over:
            obs, _, terminated, truncated, info = self.env.step(0)
            self._over = terminated or truncated
        if seed is not None or self._over:
            obs, info = self.env.reset(seed=seed, options=options)
            self._over = False
        self._lives = self._count()
        return obs, info

    def _count(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]


class FireReset(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """Presses fire after a reset: some games wait for it, and a policy may never find out."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Reset and press fire."""
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(1)
        if terminated or truncated:
            return self.env.reset(options=options)
        return obs, info


def _make_atari(name: str, **options: Any) -> Env:
    import ale_py

    gymnasium.register_envs(ale_py)
    own = ("frame_skip", "screen_size", "grayscale", "frame_stack", "noop_max", "life_loss", "fire_reset")
    skip, size, gray, stack, noops, life_loss, fire_reset = (options.pop(key) for key in own)
    clip = options.pop("clip_reward")
    env = gymnasium_make(name, {"frameskip": 1, **options})
    env = wrappers.AtariPreprocessing(env, noop_max=noops, frame_skip=skip, screen_size=size, grayscale_obs=gray)
    if life_loss:
        env = LifeLoss(env)
    meanings = env.unwrapped.get_action_meanings()  # type: ignore[union-attr]
    if fire_reset and len(meanings) >= 3 and meanings[1] == "FIRE":
        env = FireReset(env)
    return _stacked(env, name, stack, clip)


def _make_pixels(name: str, **options: Any) -> Env:
    own = ("render", "screen_size", "grayscale", "frame_stack", "frame_skip", "clip_reward")
    render, size, gray, stack, skip, clip = (options.pop(key) for key in own)
    env = gymnasium_make(name, {**options, "render_mode": "rgb_array"} if render else options)
    if render:
        env = wrappers.AddRenderObservation(env)
    shape = env.observation_space.shape or ()
    if len(shape) not in (2, 3):
        raise UsageError(f"environment {name!r} has observations {env.observation_space}: use render=True to see it")
    if skip > 1:
        env = wrappers.MaxAndSkipObservation(env, skip)
    if gray and len(shape) == 3 and shape[-1] == 3:
        env = wrappers.GrayscaleObservation(env)
    if size is not None:
        env = wrappers.ResizeObservation(env, (size, size))
    return _stacked(env, name, stack, clip)


def _stacked(env: Env, name: str, frames: int, clip_reward: bool) -> Env:
    if clip_reward:
        env = wrappers.TransformReward(env, _sign)
    if frames > 1:
        env = wrappers.FrameStackObservation(env, frames)
    # Here and not by whoever steps it, so that its images are the same for everybody.
    return channels_first(env, name)


def _sign(reward: SupportsFloat) -> float:
    return float(np.sign(float(reward)))


def _positive(name: str, value: int) -> int:
    require(value >= 1, name, value, "at least 1")
    return value
