"""One way to make any environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mileage.envs.native.env import NativeEnv
from mileage.envs.native.vector import VecEnv
from mileage.envs.registry import resolve

if TYPE_CHECKING:
    from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv
    from mileage.envs.mujoco import MujocoEnv, MujocoVecEnv


def make_vec(
    env: NativeEnv | GymnasiumEnv | MujocoEnv | str,
    n_envs: int,
    *,
    seed: int = 0,
    threads: int | None = None,
    processes: bool = False,
    **kwargs: Any,
) -> VecEnv | BridgedVecEnv | MujocoVecEnv:
    """Make a vector environment from whatever `resolve` accepts: native if there is a native one, bridged otherwise.

    `threads` concerns native and MuJoCo environments, `processes` bridged ones; `kwargs` go to Gymnasium's constructor.
    """
    spec = resolve(env, **kwargs)
    if isinstance(spec, NativeEnv):
        return VecEnv(spec, n_envs, seed=seed, threads=threads)
    from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv
    from mileage.envs.gymnasium.structured import StructuredEnv, StructuredVecEnv

    if isinstance(spec, StructuredEnv):
        return StructuredVecEnv(spec, n_envs, seed=seed, processes=processes)
    if not isinstance(spec, GymnasiumEnv):
        from mileage.envs.mujoco import MujocoVecEnv

        return MujocoVecEnv(spec, n_envs, seed=seed, threads=threads)
    return BridgedVecEnv(spec, n_envs, seed=seed, processes=processes)
