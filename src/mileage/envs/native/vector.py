"""Many copies of a native environment stepped by one call, with the interface of a Gymnasium vector environment."""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UsageError
from mileage._types import F32, I64, U64, Bool
from mileage.envs.native.env import NativeEnv

# Handing work to another thread costs about as much as stepping this many environments.
_ENVS_PER_THREAD = 16_384
_RESET = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64)

Step = tuple[F32, F32, Bool, Bool, dict[str, Any]]


class _Step:
    """Step every environment once.

    `actions` is (N,) integers if the environment is discrete, (N, A) numbers otherwise. Returns obs (N, O) float32,
    rewards (N,) float32, terminated (N,) bool, truncated (N,) bool and infos.

    A descriptor, because the method is made for each environment when it is first asked for: see
    `mileage.envs.native.step_entry`.
    """

    @overload
    def __get__(self, env: None, kind: type[VecEnv]) -> _Step: ...

    @overload
    def __get__(self, env: VecEnv, kind: type[VecEnv]) -> Callable[[ArrayLike], Step]: ...

    def __get__(self, env: VecEnv | None, kind: type[VecEnv]) -> _Step | Callable[[ArrayLike], Step]:
        if env is None:
            return self
        from mileage.envs.native import step_entry as _step_entry

        step: Callable[[ArrayLike], Step] = env._step_checked
        # Long steps let other threads run meanwhile, which compiled code called by Python itself does not.
        if env._pool is None and env.num_envs < _ENVS_PER_THREAD and _step_entry.supported():
            step = _step_entry.build(env, step, env._dtype, env._shape)
        if kind.step is self:  # a subclass with a step of its own keeps it
            env.__dict__["step"] = step
        return step


class VecEnv:
    """`n_envs` copies of a native environment over flat arrays that are allocated once.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. An
    episode that ends starts again in the same step (Gymnasium's `AutoresetMode.SAME_STEP`): `obs` then holds the first
    observation of the next episode and `infos["final_obs"]` the last one of the old, in the rows that
    `infos["_final_obs"]` marks; its other rows are left from earlier steps.

    Every environment owns a random stream that depends on nothing but `seed` and its index, so results do not depend
    on `n_envs` or `threads`.
    """

    render_mode = None
    closed = False

    def __init__(
        self,
        env: NativeEnv | str,
        n_envs: int,
        *,
        seed: int = 0,
        threads: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        """Allocate the arrays; `env` is a native environment, its id or "file.py:Name".

        `threads` is an upper bound (default: all cores), used only where there is enough work for each.
        `max_steps` replaces the environment's own time limit; 0 means none.
        """
        from mileage.envs.registry import native

        if n_envs < 1:
            raise UsageError(f"n_envs is {n_envs}: use at least 1")
        if threads is not None and threads < 1:
            raise UsageError(f"threads is {threads}: use at least 1")
        spec = native(env) if isinstance(env, str) else env
        self.spec = spec
        self.num_envs = n_envs
        self.max_steps = spec.max_steps if max_steps is None else max_steps
        self.state: F32 = np.zeros((n_envs, spec.state_size), np.float32)
        self.elapsed: I64 = np.zeros(n_envs, np.int64)
        self.rng: U64 = np.zeros((n_envs, 2), np.uint64)
        self.action: F32 = np.zeros((n_envs, spec.action_size), np.float32)
        self.obs: F32 = np.zeros((n_envs, spec.obs_size), np.float32)
        self.reward: F32 = np.zeros(n_envs, np.float32)
        self.terminated: Bool = np.zeros(n_envs, np.bool_)
        self.truncated: Bool = np.zeros(n_envs, np.bool_)
        self.final_obs: F32 = np.zeros((n_envs, spec.obs_size), np.float32)
        self._done: Bool = np.zeros(n_envs, np.bool_)
        self._seed(seed)
        shards = max(1, min(threads or os.cpu_count() or 1, n_envs // _ENVS_PER_THREAD))
        edges = np.linspace(0, n_envs, shards + 1).astype(int)
        self._shards = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        self._calls = [self._call(shard) for shard in self._shards]
        self._call_all = self._call(slice(0, n_envs))
        self._pool = ThreadPoolExecutor(shards - 1) if shards > 1 else None
        self._load_step()

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start all episodes anew and return (obs (N, O) float32, {}).

        An int seeds all streams; a sequence of N ints seeds each environment by its own, whatever its place; without
        a seed the streams go on. `options={"reset_mask": mask}` with (N,) bool resets (and seeds) only those marked.
        """
        mask = (options or {}).get("reset_mask")
        marked = None if mask is None else self._checked_mask(mask)
        if seed is not None:
            self._seed(seed, marked)
        for start, stop in [(0, self.num_envs)] if marked is None else [(i, i + 1) for i in np.flatnonzero(marked)]:
            rows = (self.state[start:], self.elapsed[start:], self.rng[start:], self.obs[start:])
            self._reset(*(row.ctypes.data for row in rows), stop - start)
        return self.obs, {}

    step = _Step()

    def _step_checked(self, actions: ArrayLike) -> Step:
        """Step by way of Python: what `step` does with actions that are not yet as compiled code wants them."""
        if actions.__class__ is not np.ndarray or actions.dtype != self._dtype or actions.shape != self._shape:
            actions = self._checked_actions(actions)
        if self._pool is None:
            ended = self._step(self._call_all, actions, self.action, self.spec.n_actions)
        else:
            ended = self._step_sharded(actions)
        if ended == 0:
            return self.obs, self.reward, self.terminated, self.truncated, {}
        if ended < 0:
            raise UsageError(f"actions must be from 0 to {self.spec.n_actions - 1} in environment {self.spec.id!r}")
        np.logical_or(self.terminated, self.truncated, out=self._done)
        infos = {"final_obs": self.final_obs, "_final_obs": self._done}
        return self.obs, self.reward, self.terminated, self.truncated, infos

    def close(self) -> None:
        """Let go of the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.closed = True

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Live arrays that decide how the episodes under way go on, by name."""
        return {"state": self.state, "elapsed": self.elapsed, "rng": self.rng, "obs": self.obs}

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What Gymnasium's wrappers ask: the autoreset mode."""
        from gymnasium.vector import AutoresetMode

        return {"autoreset_mode": AutoresetMode.SAME_STEP}

    @property
    def single_observation_space(self) -> Any:
        """The Gymnasium space of one observation."""
        return self.spec.observation_space

    @property
    def single_action_space(self) -> Any:
        """The Gymnasium space of one action."""
        return self.spec.action_space

    @functools.cached_property
    def observation_space(self) -> Any:
        """The Gymnasium space of a batch of observations."""
        from gymnasium.vector.utils import batch_space

        return batch_space(self.single_observation_space, self.num_envs)

    @functools.cached_property
    def action_space(self) -> Any:
        """The Gymnasium space of a batch of actions."""
        from gymnasium.vector.utils import batch_space

        return batch_space(self.single_action_space, self.num_envs)

    @property
    def unwrapped(self) -> VecEnv:
        """The environment itself, which wraps nothing."""
        return self

    def _load_step(self) -> None:
        from mileage.envs.native.vector_step import step_continuous, step_discrete

        discrete = self.spec.n_actions > 0
        self._step: Any = step_discrete if discrete else step_continuous
        self._dtype = np.dtype(np.int64 if discrete else np.float32)
        self._shape = (self.num_envs,) if discrete else (self.num_envs, self.spec.action_size)
        self._reset = _RESET(self.spec.reset_address)

    def _call(self, shard: slice) -> I64:
        """Address and arguments of `advance` for some of the environments; the action's pointer comes at the call."""
        arrays = (
            self.state, self.elapsed, self.rng, self.obs, self.reward, self.terminated, self.truncated, self.final_obs
        )  # fmt: skip
        pointers = [array[shard].ctypes.data for array in arrays]
        return np.array([self.spec.advance_address, *pointers, shard.stop - shard.start, self.max_steps], np.int64)

    def _step_sharded(self, actions: Any) -> int:
        # Before any shard steps; seen as unsigned, a negative index is a huge one.
        if self.spec.n_actions and actions.view(np.uint64).max() >= self.spec.n_actions:
            return -1
        work: list[Any] = [
            (call, actions[shard], self.action[shard], self.spec.n_actions)
            for call, shard in zip(self._calls, self._shards, strict=True)
        ]
        assert self._pool is not None
        others = [self._pool.submit(self._step, *arguments) for arguments in work[1:]]
        return int(self._step(*work[0]) + sum(other.result() for other in others))

    def _checked_actions(self, actions: ArrayLike) -> NDArray[Any]:
        array = np.asarray(actions)
        kinds = "iu" if self.spec.n_actions else "iuf"
        if array.shape != self._shape or array.dtype.kind not in kinds:
            wanted = "integers" if self.spec.n_actions else "numbers"
            raise UsageError(
                f"actions are {array.dtype} of shape {array.shape}: {self.spec.id!r} with {self.num_envs} environments "
                f"takes {wanted} of shape {self._shape}"
            )
        return np.ascontiguousarray(array, self._dtype)

    def _checked_mask(self, mask: Any) -> Bool:
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UsageError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},)")
        return mask

    def _seed(self, seed: int | Sequence[int], marked: Bool | None = None) -> None:
        from mileage.kernels.arrays.random import streams

        seeds = [seed] if isinstance(seed, int | np.integer) else list(seed)
        if any(item < 0 for item in seeds):
            raise UsageError(f"seed {min(seeds)} is negative: use 0 or more")
        if isinstance(seed, int | np.integer):
            rng = streams(int(seed), self.num_envs, "env")
        elif len(seeds) == self.num_envs:
            rng = np.concatenate([streams(int(item), 1, "env") for item in seeds])
        else:
            raise UsageError(
                f"seed has {len(seeds)} entries for {self.num_envs} environments: give one int or one each"
            )
        rows = slice(None) if marked is None else marked
        self.rng[rows] = rng[rows]
