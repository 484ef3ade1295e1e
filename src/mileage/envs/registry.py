"""Environments by name (a native id, one of MuJoCo's or Gymnasium's, a user's file) or as an object of the user's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mileage.contracts import EnvSpec, VectorEnv
from mileage.envs import known, mujoco
from mileage.envs.known import is_native, registered
from mileage.envs.native.vector import NativeEnv
from mileage.errors import UsageError
from mileage.records import Record
from mileage.types import Array
from mileage.user_code import split

if TYPE_CHECKING:
    import gymnasium


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
    make = known.load(*place) if place else mujoco.find(name, kwargs)
    if isinstance(make, EnvSpec):
        return make
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    return GymnasiumEnv(name, kwargs, make=make)


# --- One way to make any environment ---
def make_vec(
    env: EnvSpec | str, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False,
    **kwargs: Any,
) -> VectorEnv:  # fmt: skip
    """A vector environment of whatever `resolve` accepts: native if there is a native one, bridged otherwise.

    `threads` concerns native and MuJoCo environments, `processes` bridged ones; `kwargs` go to Gymnasium's constructor.
    """
    return resolve(env, **kwargs).vector(n_envs, seed=seed, threads=threads, processes=processes)


# --- Environments that users hand over as objects: Gymnasium's, single or vectors, Stable-Baselines3's, functions ---
if TYPE_CHECKING:
    Env = gymnasium.Env[Array, Array | int]

# What only says how an environment is shown.
_SHOWN_BY = ("render_mode",)


def described(env: object, kwargs: Record) -> tuple[EnvSpec, str, Record, int | None]:
    """What an environment given as `env` is: its spec, its name, its options, and how many of it were given.

    Args:
        env: what `resolve` takes, a Gymnasium environment, a vector of them, a function that makes one, or a list of
            such functions.
        kwargs: for the constructor of a Gymnasium environment.
    """
    if isinstance(env, str):
        return resolve(env, **kwargs), env, kwargs, None
    if isinstance(env, EnvSpec):
        return env, env.id, kwargs, None
    if isinstance(env, VectorEnv):
        return env.spec, env.spec.id, kwargs, env.num_envs
    made, options, n = _of_object(env, kwargs)
    return made, made.id, options, n


def _of_object(env: object, kwargs: Record) -> tuple[EnvSpec, Record, int | None]:
    import gymnasium

    if isinstance(env, gymnasium.Env):
        return (*_of_instance(env, kwargs), None)
    if isinstance(env, gymnasium.vector.VectorEnv):
        if not isinstance(env, gymnasium.vector.SyncVectorEnv):
            raise UsageError(
                f"env is a {type(env).__name__}, whose environments cannot be taken out: give one of them, or a "
                "function that makes one, and n_envs"
            )
        return (*_of_instance(env.envs[0], kwargs), env.num_envs)
    if _is_from(env, "stable_baselines3", "VecEnv"):
        if type(env).__name__ != "DummyVecEnv":
            raise UsageError(
                f"env is Stable-Baselines3's {type(env).__name__}, whose environments cannot be taken out: give one "
                "of them, or a function that makes one, and n_envs (normalise_observations for VecNormalize)"
            )
        inner_envs = vars(env)["envs"]
        return (*_of_instance(_without_monitor(inner_envs[0]), kwargs), len(inner_envs))
    if isinstance(env, Sequence) and len(env) and callable(env[0]):
        return (*_of_function(env[0], kwargs), len(env))
    if callable(env):
        return (*_of_function(env, kwargs), None)
    raise UsageError(
        f"env must be an id, an environment, or a function that makes one of Gymnasium's, not {type(env).__name__}"
    )


def _of_instance(env: Env, kwargs: Record) -> tuple[EnvSpec, Record]:
    """As the id that it was made by where that is all there is to it, otherwise as copies of it."""
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    if kwargs:
        raise UsageError("env_kwargs are for an environment that is given by its id: this one is made already")
    own = env.spec
    if own is None:
        return GymnasiumEnv(type(env.unwrapped).__name__, make=_Copies(env)), {}
    options = {name: value for name, value in own.kwargs.items() if name not in _SHOWN_BY}
    wrappers = [each.name for each in own.additional_wrappers]
    if not wrappers and not _changed(env):
        return resolve(own.id, **options), options
    return GymnasiumEnv("+".join([own.id, *wrappers]), make=_Copies(env)), {}


def _changed(env: Env) -> bool:
    """Whether an environment has another time limit than the one registered under its id."""
    import gymnasium

    own = env.spec
    registered = gymnasium.registry.get(own.id) if own is not None else None
    return registered is None or own is None or registered.max_episode_steps != own.max_episode_steps


def _of_function(function: Callable[..., Any], kwargs: Record) -> tuple[EnvSpec, Record]:
    from mileage.envs.gymnasium.bridge import GymnasiumEnv

    try:
        env = function(**kwargs)
    except TypeError as error:
        raise UsageError(f"env is a function that cannot be called for an environment: {error}") from error
    if isinstance(env, EnvSpec):
        return env, kwargs
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"env is a function that makes a {type(env).__name__}, not one of Gymnasium's environments")
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    env.close()
    return GymnasiumEnv(name, kwargs, make=function), kwargs


class _Copies:
    """Makes environments like one that is there: anew from its spec if it has one, else as deep copies."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def __call__(self) -> Env:
        """One more."""
        import gymnasium

        try:
            if self._env.spec is not None:
                return gymnasium.make(self._env.spec)
            return copy.deepcopy(self._env)
        except Exception as error:
            raise UsageError(
                f"environment {type(self._env.unwrapped).__name__} cannot be copied: give a function that makes one "
                f"({error})"
            ) from error


def _is_from(thing: object, package: str, name: str) -> bool:
    """Whether a thing is of a class of that name and package, which need not be imported."""
    return any(kind.__name__ == name and kind.__module__.startswith(package) for kind in type(thing).__mro__)


def _without_monitor(env: Env) -> Env:
    """What Stable-Baselines3's `Monitor` wraps, if it does: what it measures is measured here anyway."""
    return env.get_wrapper_attr("env") if _is_from(env, "stable_baselines3", "Monitor") else env
