"""Any Gymnasium environment behind the interface of `VecEnv`: slower, in this process or in one process each."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UnknownNameError, UsageError
from mileage._types import F32, Bool
from mileage.envs.native.vector import Step, VecEnv


@dataclasses.dataclass(frozen=True, eq=False)
class GymnasiumEnv:
    """A Gymnasium environment with the descriptive attributes of `NativeEnv`.

    Observations are flattened to float32 vectors (discrete ones become one-hot); actions are discrete or a box. With
    `image`, observations must be uint8 images and stay so, with their channels in front: (C, H, W).
    """

    leaves = None

    id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    make: Callable[..., gymnasium.Env[Any, Any]] | None = None
    """Makes one environment, if `id` is not one that Gymnasium knows."""
    image: bool = False
    """Whether observations stay images."""

    def __post_init__(self) -> None:
        _ = self._example

    def create(self) -> gymnasium.Env[Any, Any]:
        """Make one environment with flat observations."""
        env = self.make(**self.kwargs) if self.make else gymnasium_make(self.id, self.kwargs)
        if self.image:
            env = channels_first(env, self.id)
        elif not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape or ()) != 1:
            if not env.observation_space.is_np_flattenable:
                raise UsageError(
                    f"environment {self.id!r} has observations {env.observation_space}: wrap it so that they are arrays"
                )
            env = gymnasium.wrappers.FlattenObservation(env)
        if not isinstance(env.action_space, spaces.Discrete | spaces.Box):
            raise UsageError(f"environment {self.id!r} has actions {env.action_space}: wrap it to take Discrete or Box")
        return env

    @functools.cached_property
    def _example(self) -> tuple[Any, Any, Any]:
        env = self.create()
        env.close()
        return env.observation_space, env.action_space, env.spec

    @property
    def observation_space(self) -> Any:
        """The Gymnasium space of one observation: a float32 vector, or a uint8 image."""
        if self.image:
            return self._example[0]
        return spaces.Box(self.obs_low, self.obs_high, dtype=np.float32)

    @property
    def action_space(self) -> Any:
        """The Gymnasium space of one action; a box is flat, a discrete one starts at 0."""
        if self.n_actions:
            return spaces.Discrete(self.n_actions)
        return spaces.Box(self.action_low, self.action_high, dtype=np.float32)

    @property
    def obs_size(self) -> int:
        """Length O of one observation; of an image, the number of its values."""
        return int(np.prod(self.obs_shape))

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of one observation: (O,), or (C, H, W) of an image."""
        return tuple(self._example[0].shape)

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """Type of an observation's values: float32, or uint8 of an image."""
        return np.dtype(np.uint8 if self.image else np.float32)

    @property
    def obs_low(self) -> F32:
        """Lower bounds of an observation, (O,) float32."""
        return _float32(self._example[0].low)

    @property
    def obs_high(self) -> F32:
        """Upper bounds of an observation, (O,) float32."""
        return _float32(self._example[0].high)

    @property
    def n_actions(self) -> int:
        """Number of discrete actions, 0 if continuous."""
        space = self._example[1]
        return int(space.n) if isinstance(space, spaces.Discrete) else 0

    @property
    def action_size(self) -> int:
        """Length A of one action; 1 if discrete."""
        return 1 if self.n_actions else int(np.prod(self._example[1].shape))

    @property
    def action_low(self) -> F32:
        """Lower bounds of a continuous action, (A,) float32; empty if discrete."""
        return _float32(() if self.n_actions else self._example[1].low)

    @property
    def action_high(self) -> F32:
        """Upper bounds of a continuous action, (A,) float32; empty if discrete."""
        return _float32(() if self.n_actions else self._example[1].high)

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated, 0 for no limit."""
        spec = self._example[2]
        return int(spec.max_episode_steps or 0) if spec else 0

    @property
    def reward_threshold(self) -> float | None:
        """Mean return at which the environment counts as solved."""
        spec = self._example[2]
        return spec.reward_threshold if spec else None

    @property
    def version(self) -> str:
        """Digest of what decides the dynamics as far as it can be known: id, options and Gymnasium's version."""
        content = repr((self.id, sorted(self.kwargs.items()), gymnasium.__version__))
        return hashlib.sha256(content.encode()).hexdigest()[:16]


class BridgedVecEnv:
    """`n_envs` copies of a Gymnasium environment with the attributes and conventions of `VecEnv`.

    With `processes`, every environment lives in a process of its own: worth it when a step takes about a millisecond.
    Observations are (N, O) float32, or (N, C, H, W) uint8 if they are images.
    """

    render_mode = None
    closed = False

    def __init__(self, env: GymnasiumEnv | str, n_envs: int, *, seed: int = 0, processes: bool = False) -> None:
        if n_envs < 1:
            raise UsageError(f"n_envs is {n_envs}: use at least 1")
        spec = GymnasiumEnv(env) if isinstance(env, str) else env
        self.spec = spec
        self.num_envs = n_envs
        self.max_steps = spec.max_steps
        kind = AsyncVectorEnv if processes else SyncVectorEnv
        # They are copied here in any case.
        self._envs: Any = kind([spec.create] * n_envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(spec.observation_space, n_envs)
        self.action_space = gymnasium.vector.utils.batch_space(spec.action_space, n_envs)
        self.obs: NDArray[Any] = np.zeros((n_envs, *spec.obs_shape), spec.obs_dtype)
        self.reward: F32 = np.zeros(n_envs, np.float32)
        self.terminated: Bool = np.zeros(n_envs, np.bool_)
        self.truncated: Bool = np.zeros(n_envs, np.bool_)
        self.final_obs: NDArray[Any] = np.zeros_like(self.obs)
        self._first_seed: int | None = seed

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start all episodes anew and return (obs, infos); seeds as in `VecEnv.reset`."""
        chosen = self._first_seed if seed is None else seed
        self._first_seed = None
        obs, infos = self._envs.reset(seed=self._seeds(chosen), options=options)
        np.copyto(self.obs, obs, casting="unsafe")
        return self.obs, infos

    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once; arguments and results as in `VecEnv.step`."""
        obs, reward, terminated, truncated, infos = self._envs.step(self._native_actions(actions))
        np.copyto(self.obs, obs, casting="unsafe")
        np.copyto(self.reward, reward, casting="same_kind")
        np.copyto(self.terminated, terminated)
        # Gymnasium may set both at the time limit; a terminated episode has no future to cut off.
        np.greater(truncated, terminated, out=self.truncated)
        if "final_obs" in infos:
            ended = infos["_final_obs"]
            for i in np.flatnonzero(ended):
                self.final_obs[i] = infos["final_obs"][i]
            infos = {**infos, "final_obs": self.final_obs, "_final_obs": ended}
        return self.obs, self.reward, self.terminated, self.truncated, infos

    def close(self) -> None:
        """Close all environments and end their processes."""
        if not self.closed:
            self._envs.close()
            self.closed = True

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing: a run that is resumed starts its episodes anew."""
        return {}

    @property
    def unwrapped(self) -> BridgedVecEnv:
        """The environment itself."""
        return self

    def _seeds(self, seed: int | Sequence[int] | None) -> list[int] | None:
        if seed is None:
            return None
        if isinstance(seed, int | np.integer):
            # Seeds that are neighbours would otherwise share most of their environments.
            root = np.random.SeedSequence([int(seed), *b"env"])
            return [int(item) for item in root.generate_state(self.num_envs)]
        if len(seed) != self.num_envs:
            raise UsageError(f"seed has {len(seed)} entries for {self.num_envs} environments: give one int or one each")
        return [int(item) for item in seed]

    def _native_actions(self, actions: ArrayLike) -> NDArray[Any]:
        """`actions` as the wrapped environments take them."""
        array = np.asarray(actions)
        space = self._envs.single_action_space
        if isinstance(space, spaces.Discrete):
            if (
                array.shape != (self.num_envs,)
                or array.dtype.kind not in "iu"
                or not self.action_space.contains(array.astype(self.action_space.dtype))
            ):
                raise UsageError(
                    f"actions must be {self.num_envs} integers from 0 to {space.n - 1} in environment {self.spec.id!r}"
                )
            return array + space.start  # type: ignore[no-any-return]
        if array.shape != (self.num_envs, self.spec.action_size) or array.dtype.kind not in "iuf":
            raise UsageError(
                f"actions are {array.dtype} of shape {array.shape}: environment {self.spec.id!r} takes numbers "
                f"of shape {(self.num_envs, self.spec.action_size)}"
            )
        return array.reshape(self.num_envs, *space.shape).astype(space.dtype)


class NativeVectorEnv(VecEnv, VectorEnv):  # type: ignore[misc,override]
    """`VecEnv` as a subclass of Gymnasium's `VectorEnv`, which Gymnasium's vector wrappers insist on."""


def _float32(values: Any) -> F32:
    return np.asarray(values, np.float32).reshape(-1)


def channels_first(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
    """Observe (C, H, W); from (H, W), (H, W, 1|3|4), a stack of one of them, or what has its channels in front."""
    space = env.observation_space
    shape = space.shape or ()
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(shape) not in (2, 3, 4):
        raise UsageError(f"environment {name!r} has observations {space}: image=True needs images of uint8")
    if len(shape) == 2:
        reorder = functools.partial(np.expand_dims, axis=0)
    elif shape[-1] not in (1, 3, 4):
        return env
    else:
        reorder = _front  # type: ignore[assignment]
    low, high = reorder(space.low), reorder(space.high)
    return gymnasium.wrappers.TransformObservation(env, reorder, spaces.Box(low, high, dtype=np.uint8))


def _front(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(H, W, C) to (C, H, W), and a stack (S, H, W, C) to (S * C, H, W)."""
    moved = np.moveaxis(images, -1, -3)
    return moved.reshape(-1, *moved.shape[-2:])


def gymnasium_make(name: str, kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment that Gymnasium knows, with its errors as one sentence."""
    from mileage.envs.registry import registered

    try:
        return gymnasium.make(name, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"environment {name!r} needs a package that is not installed: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        known = {*registered(), *gymnasium.registry}
        raise UnknownNameError("environment", name, known) from error
    except gymnasium.error.Error as error:
        raise UsageError(f"environment {name!r} cannot be made: {str(error).splitlines()[0]}") from error
    except TypeError as error:
        raise UsageError(f"environment {name!r} does not take these options: {error}") from error
