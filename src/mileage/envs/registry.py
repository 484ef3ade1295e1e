"""Environments by name: a native id, one of MuJoCo's, a user's file, or an id that Gymnasium knows."""

from __future__ import annotations

from typing import Any

from mileage._places import split
from mileage.contracts import EnvSpec
from mileage.envs import files, known, mujoco
from mileage.envs.known import is_native, registered
from mileage.envs.native.vector import NativeEnv

__all__ = ["is_native", "native", "registered", "resolve"]


def native(name: str) -> NativeEnv:
    """The native environment called `name`: an id, "path/to/file.py:Name" or "package.module:Name"."""
    return NativeEnv.named(name)


def resolve(name: EnvSpec | str, **kwargs: Any) -> EnvSpec:
    """The environment with an id, or called "path/to/file.py:Name" or "package.module:Name".

    Ids that are not native are looked up in Gymnasium, with `kwargs` for its constructor; with `kwargs` a native id
    goes to Gymnasium too, because native environments have no options. Gymnasium's MuJoCo environments are stepped
    natively, with its options, where MuJoCo 4.0 is installed. Atari games are seen as `atari` has them, with the scores
    and episodes of the game itself.
    """
    if not isinstance(name, str):
        return name
    place = split(name)
    if name.startswith("ALE/"):
        from mileage.envs.gymnasium.pixels import atari

        return atari(name, **{"life_loss": False, "clip_reward": False, **kwargs})
    if place is None and is_native(name) and not kwargs:
        return known.by_id(name)
    make = files.load(*place) if place else mujoco.find(name, kwargs)
    if isinstance(make, EnvSpec):
        return make
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    return GymnasiumEnv(name, kwargs, make=make)
