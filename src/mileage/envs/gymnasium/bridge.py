"""Any Gymnasium environment behind the interface of `VecEnv`, held against what Gymnasium and its spaces promise."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import traceback
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NoReturn, SupportsFloat

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import ArrayLike

from mileage.contracts import Step
from mileage.envs import known
from mileage.envs.native.compile import in_words, place
from mileage.envs.native.vector import VecEnv
from mileage.envs.spaces import SpaceCodec
from mileage.envs.vector import Seed, SpacedSpec, VectorBase
from mileage.errors import EnvError, MileageError, UnknownNameError, UsageError
from mileage.records import Record
from mileage.types import U8, Action, Array, Bool

# --- What a Gymnasium environment does, held against what Gymnasium's interface and its own spaces promise ---
_STEP = "(observation, reward, terminated, truncated, info)"
_RESET = "(observation, info)"
_NUMBERS = (int, float, np.number, np.bool_)

Info = dict[str, Any]


class Tally:
    """How often environments were reset, and the seconds that took."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0


class Formed(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """An environment that says in a sentence what it raised, or what is wrong with the form of what it returns."""

    def __init__(
        self, env: gymnasium.Env[Array, Array | int], name: str, index: int = 0, tally: Tally | None = None
    ) -> None:
        """`name` is what messages call it, `index` its number among several; `tally` is told of every reset."""
        if not isinstance(env, gymnasium.Env):
            raise UsageError(f"environment {name!r} must be a gymnasium.Env, not {type(env).__name__}")
        super().__init__(env)
        self._name, self._index, self._elapsed = name, index, 0
        self._tally = tally or Tally()
        space = env.observation_space
        self._shape = space.shape if isinstance(space, spaces.Box) else None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Array, Info]:
        """Start an episode."""
        self._elapsed = 0
        began = perf_counter()
        try:
            result = self.env.reset(seed=seed, options=options)
        except Exception as error:
            self._explain(error, "reset", _RESET)
        self._tally.count += 1
        self._tally.seconds += perf_counter() - began
        self._check("reset", result, 2, _RESET)
        return result

    def step(self, action: Array | int) -> tuple[Array, SupportsFloat, bool, bool, Info]:
        """Go on."""
        self._elapsed += 1
        try:
            result = self.env.step(action)
        except Exception as error:
            self._explain(error, "step", _STEP)
        self._check("step", result, 5, _STEP)
        if not isinstance(result[1], _NUMBERS) and not _is_number(result[1]):
            raise EnvError(f"{self._whose('step')} must return a reward that is a number, not {result[1]!r}")
        return result

    def _whose(self, verb: str) -> str:
        return f"{verb} of environment {self._name!r}"

    def _check(self, verb: str, result: object, size: int, form: str) -> None:
        if not isinstance(result, tuple) or len(result) != size:
            found = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
            raise EnvError(f"{self._whose(verb)} must return {form}, not {found}")
        if self._shape is not None and np.shape(result[0]) != self._shape:
            raise EnvError(
                f"{self._whose(verb)} must return an observation of shape {self._shape}, as its "
                f"observation_space says, not {np.shape(result[0])}"
            )
        if not isinstance(result[-1], Mapping):
            raise EnvError(f"{self._whose(verb)} must return {form}, whose last is a dict, not {result[-1]!r}")

    def _explain(self, error: Exception, verb: str, form: str) -> NoReturn:
        """What the environment raised, or what Gymnasium's wrappers stumbled over, in a sentence."""
        if isinstance(error, MileageError):
            raise error
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        home = str(last.f_globals.get("__name__"))
        if home.split(".")[0] == "gymnasium" and not home.startswith("gymnasium.envs."):
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise EnvError(f"{self._whose(verb)} must return {form}: {said}") from error
        when = f"in step {self._elapsed} of its episode" if self._elapsed else "at the start of an episode"
        raise EnvError(
            f"{self._whose(verb)} raised {in_words(error)}{place(error)} in environment {self._index}, {when}"
        ) from error


def _is_number(value: object) -> bool:
    """Whether something else than Python's and NumPy's numbers is one, such as a tensor of one entry."""
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return np.ndim(value) == 0 and not isinstance(value, str | bytes)  # type: ignore[arg-type]


Env = gymnasium.Env[Array, Array | int]


@dataclasses.dataclass(frozen=True, eq=False)
class GymnasiumEnv(SpacedSpec):
    """A Gymnasium environment described as every other is.

    Observations are flattened to float32 vectors (discrete ones become one-hot), whatever they are made of; actions are
    discrete, a box, or have several parts. With `image`, observations must be uint8 images and stay so, with their
    channels in front: (C, H, W). An environment whose `info` has `action_mask`, or that has a method `action_masks`, is
    `masked`.
    """

    id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    make: Callable[..., Env] | None = None
    """Makes one environment, if `id` is not one that Gymnasium knows."""
    image: bool = False
    """Whether observations stay images."""
    obs_shape: tuple[int, ...] = dataclasses.field(init=False)
    """Shape of one observation: (O,), or (C, H, W) of an image."""

    space_codec: SpaceCodec = dataclasses.field(init=False, repr=False)
    """Between the environment's own spaces and rows."""

    def __post_init__(self) -> None:
        env = self.made()
        codec = self._make_codec(env)
        vars(self).update(self._described(env, codec), space_codec=codec)
        vars(self)["masked"] = bool(self.choices) and tells_masks(env)
        env.close()

    @property
    def codec(self) -> SpaceCodec:
        """Between the environment's own spaces and rows."""
        return self.space_codec

    def made(self, index: int = 0, tally: Tally | None = None) -> Env:
        """One environment as its author made it, resets told to `tally`; images have their channels in front.

        `index` is its number among several.
        """
        try:
            own = self.make(**self.kwargs) if self.make else gymnasium_make(self.id, self.kwargs)
        except MileageError:
            raise
        except Exception as error:
            raise EnvError(f"environment {self.id!r} cannot be made: {in_words(error)}{place(error)}") from error
        env = Formed(own, self.id, index, tally)
        return channels_first(env, self.id) if self.image else env

    def create(self, index: int = 0, tally: Tally | None = None) -> Env:
        """Make one environment with flat observations unless they are images, and flat masks if it has any."""
        env = self.made(index, tally)
        space, codec = env.observation_space, self._make_codec(env)
        if not self.image and (not isinstance(space, spaces.Box) or len(space.shape) != 1):
            flatten = functools.partial(_flattened, codec.flatten, self.id)
            env = gymnasium.wrappers.TransformObservation(env, flatten, codec.flat_space)
        return FlatMasks(env, codec, self.id) if self.masked else env

    def flat(self) -> GymnasiumEnv:
        """The same environment with observations as vectors."""
        return GymnasiumEnv(self.id, self.kwargs, self.make) if self.image else self

    def vector(
        self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False
    ) -> BridgedVecEnv:
        """`n_envs` copies, in a process each if `processes`; Gymnasium's environments have no threads."""
        return BridgedVecEnv(self, n_envs, seed=seed, processes=processes)

    @property
    def obs_dtype(self) -> np.dtype[np.generic]:
        """Type of an observation's values: float32, or uint8 of an image."""
        return np.dtype(np.uint8 if self.image else np.float32)

    def _make_codec(self, env: Env) -> SpaceCodec:
        return SpaceCodec(self.id, env.observation_space, env.action_space)

    def _described(self, env: Env, codec: SpaceCodec) -> dict[str, object]:
        """The attributes of a spec as one environment shows them."""
        shown, own = env.observation_space, env.spec
        content = repr((self.id, sorted(self.kwargs.items()), gymnasium.__version__))
        found: dict[str, object] = {
            "obs_shape": shown.shape if self.image else (codec.obs_size,),
            "obs_size": codec.obs_size,
            "n_actions": codec.n_actions,
            "action_size": len(codec.action_low) or 1,
            "action_low": codec.action_low,
            "action_high": codec.action_high,
            "branches": () if codec.n_actions else codec.branches,
            "max_steps": int(own.max_episode_steps or 0) if own else 0,
            "reward_threshold": own.reward_threshold if own else None,
            "version": hashlib.sha256(content.encode()).hexdigest()[:16],
        }
        if self.image:
            found["observation_space"] = shown
        flat = codec.flat_space
        return found | {"obs_low": flat.low, "obs_high": flat.high}


class BridgedVecEnv(VectorBase):
    """`n_envs` copies of a Gymnasium environment with the attributes and conventions of `VecEnv`.

    With `processes`, every environment lives in a process of its own: worth it when a step takes about a millisecond.
    Observations are (N, O) float32, or (N, C, H, W) uint8 if they are images. What goes on inside a Gymnasium
    environment cannot be saved: a resumed run starts its episodes anew.
    """

    spec: GymnasiumEnv

    def __init__(self, env: GymnasiumEnv | str, n_envs: int, *, seed: int = 0, processes: bool = False) -> None:
        spec = GymnasiumEnv(env) if isinstance(env, str) else env
        super().__init__(spec, n_envs, obs_shape=spec.obs_shape, obs_dtype=spec.obs_dtype)
        self.max_steps = spec.max_steps
        kind = AsyncVectorEnv if processes else SyncVectorEnv
        self.pausable = not processes
        # They are copied here in any case.
        self._tally = Tally()
        makers = [functools.partial(spec.create, index, self._tally) for index in range(n_envs)]
        self._envs = kind(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        size = sum(spec.choices) if spec.masked else 0
        self._masks: U8 = np.ones((n_envs, size), np.uint8)
        self._final_masks: U8 = np.ones((n_envs, size), np.uint8)
        self._first_seed: int | None = seed

    def reset(self, *, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all episodes anew and return (obs, infos); seeds as in `VecEnv.reset`."""
        chosen = self._first_seed if seed is None else seed
        self._first_seed = None
        seeds: list[int | None] | None = None if chosen is None else [*self._seeds(chosen)]
        obs, infos = self._envs.reset(seed=seeds, options=options)
        self._take(obs)
        _take_masks(infos, self._masks)
        return self.obs, infos

    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once; arguments and results as in `VecEnv.step`."""
        obs, reward, terminated, truncated, infos = self._envs.step(self._native_actions(actions))
        self._take(obs)
        _take_masks(infos, self._masks)
        np.copyto(self.reward, reward, casting="same_kind")
        np.copyto(self.terminated, terminated)
        # Gymnasium may set both at the time limit; a terminated episode has no future to cut off.
        np.greater(truncated, terminated, out=self.truncated)
        if "final_obs" in infos:
            ended = infos["_final_obs"]
            for i in np.flatnonzero(ended):
                self._take_final(int(i), infos["final_obs"][i])
            infos = {**infos, "final_obs": self.final_obs, "_final_obs": ended}
            if self.spec.masked:
                _take_masks(infos["final_info"], self._final_masks)
                infos["final_masks"] = self._final_masks
        return self.obs, self.reward, self.terminated, self.truncated, infos

    def begin(self, row: int, seed: int) -> None:
        """Start an episode in one environment; only where they are in this process."""
        obs, info = self._single(row).reset(seed=seed)
        self._take_row(row, obs, info)

    def step_some(self, actions: ArrayLike, playing: Bool) -> Step:
        """Step the environments that `playing` (N,) marks; only where they are in this process."""
        chosen = [*iterate(self._envs.action_space, self._native_actions(actions))]
        successes: dict[int, bool] = {}
        for row in map(int, np.flatnonzero(playing)):
            obs, reward, terminated, truncated, info = self._single(row).step(chosen[row])
            self._take_row(row, obs, info)
            self.reward[row] = reward
            self.terminated[row], self.truncated[row] = terminated, truncated and not terminated
            if "is_success" in info:
                successes[row] = bool(info["is_success"])
        infos = {"is_success": np.array([successes.get(row, False) for row in range(self.num_envs)])}
        return self.obs, self.reward, self.terminated, self.truncated, infos if successes else {}

    def _single(self, row: int) -> Env:
        """One of the environments in this process."""
        assert isinstance(self._envs, SyncVectorEnv)
        return self._envs.envs[row]

    def _take_row(self, row: int, obs: Array, info: Record) -> None:
        """Keep what one environment shows now."""
        self._take_final(row, obs)
        _take_masks(info, self._masks[row])
        self.obs[row] = self.final_obs[row]

    def close(self) -> None:
        """Close all environments and end their processes."""
        if not self.closed:
            self._envs.close()
            self.closed = True

    def _take(self, obs: Array) -> None:
        """Keep what the environments show now."""
        np.copyto(self.obs, obs, casting="unsafe")

    def _take_final(self, row: int, obs: Array) -> None:
        """Keep the last observation of an episode."""
        self.final_obs[row] = obs

    @property
    def resets(self) -> tuple[int, float]:
        """How often episodes were started anew so far, and the seconds that took; of processes, nothing is known."""
        return self._tally.count, self._tally.seconds

    @property
    def masks(self) -> U8 | None:
        """What is possible now, (N, M) uint8, the same memory every time; None if the environment does not say."""
        return self._masks if self.spec.masked else None

    def _native_actions(self, actions: ArrayLike) -> Action:
        """`actions` as the wrapped environments take them."""
        array = self._checked_actions(actions)
        self._check_choices(array)
        if self.spec.n_actions and not ((array >= 0) & (array < self.spec.n_actions)).all():
            raise UsageError(f"actions must be from 0 to {self.spec.n_actions - 1} in environment {self.spec.id!r}")
        return self.spec.codec.actions(array, False, apart=True)


class NativeVectorEnv(VecEnv, VectorEnv):  # type: ignore[misc,override]
    """`VecEnv` as a subclass of Gymnasium's `VectorEnv`, which Gymnasium's vector wrappers insist on."""


def tells_masks(env: Env) -> bool:
    """Whether an environment says which actions are possible, by a method or in its infos."""
    if env.has_wrapper_attr("action_masks"):
        return True
    try:
        _, info = env.reset(seed=0)
    except Exception:  # whatever is wrong with it is told where a run begins, with the run's name
        return False
    return isinstance(info, Mapping) and "action_mask" in info


class FlatMasks(gymnasium.Wrapper[Array, Array | int, Array, Array | int]):
    """Tells in every info what is possible, `action_mask` (M,) uint8, wherever the environment says it."""

    def __init__(self, env: Env, codec: SpaceCodec, name: str) -> None:
        super().__init__(env)
        self._codec, self._name = codec, name
        self._ask = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else None

    def reset(self, *, seed: int | None = None, options: Record | None = None) -> tuple[Array, Record]:
        """Start an episode."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with_mask(info)

    def step(self, action: Array | int) -> tuple[Array, SupportsFloat, bool, bool, Record]:
        """Go on."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with_mask(info, over=bool(terminated))

    def _with_mask(self, info: Record, over: bool = False) -> Record:
        """`info` with a mask; nothing needs to be possible where an episode is `over`."""
        try:
            given = self._ask() if self._ask is not None else info.get("action_mask")
        except Exception as error:
            raise EnvError(
                f"action_masks of environment {self._name!r} raised {in_words(error)}{place(error)}"
            ) from error
        everything = np.ones(sum(self._codec.branches), np.uint8)
        try:
            return {**info, "action_mask": everything if given is None or over else self._codec.masks(given, 1)[0]}
        except UsageError as error:
            raise EnvError(f"environment {self._name!r} has a mask that does not do: {error}") from error


def _flattened(flatten: Callable[[Any], Array], name: str, observation: Any) -> Array:
    """`flatten` of an observation; EnvError if it is not one of its space."""
    try:
        return flatten(observation)
    except Exception as error:
        raise EnvError(
            f"environment {name!r} must return observations of its observation_space, not {observation!r} "
            f"({in_words(error)})"
        ) from error


def _take_masks(infos: Record, out: U8) -> None:
    """Keep the masks in the infos of a step, if there are any."""
    if out.size and "action_mask" in infos:
        np.copyto(out, infos["action_mask"])


def channels_first(env: Env, name: str) -> Env:
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


def _front(images: U8) -> U8:
    """(H, W, C) to (C, H, W), and a stack (S, H, W, C) to (S * C, H, W)."""
    moved = np.moveaxis(images, -1, -3)
    return moved.reshape(-1, *moved.shape[-2:])


def gymnasium_make(name: str, kwargs: Mapping[str, Any]) -> Env:
    """Make an environment that Gymnasium knows, with its errors as one sentence."""
    try:
        return gymnasium.make(name, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UsageError(f"environment {name!r} needs a package that is not installed: {error}") from error
    except gymnasium.error.UnregisteredEnv as error:
        raise UnknownNameError("environment", name, {*known.registered(), *gymnasium.registry}) from error
    except gymnasium.error.Error as error:
        raise UsageError(f"environment {name!r} cannot be made: {str(error).splitlines()[0]}") from error
    except TypeError as error:
        raise UsageError(f"environment {name!r} does not take these options: {error}") from error
