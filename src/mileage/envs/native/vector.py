"""Native environments, and many copies of one stepped by one call with the interface of Gymnasium's vectors."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mileage.codec import leave_nothing, no_way_out
from mileage.contracts import Step
from mileage.envs import known
from mileage.envs.native.functions import Functions, FunctionSource, Sizes
from mileage.envs.vector import Seed, SpacedSpec, VectorBase, most_threads
from mileage.errors import EnvCompileError, UnknownNameError, UsageError
from mileage.records import Record, named
from mileage.system import ThreadPool, watch
from mileage.types import F32, I64, U8, U64, Array, Bool
from mileage.user_code import split

if TYPE_CHECKING:
    from mileage.envs.native.compile import CompiledEnv

# Handing work to another thread costs about as much as stepping this many environments.
_ENVS_PER_THREAD = 16_384
_MASK = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int64)
_RESET = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 4, ctypes.c_int64)


@dataclasses.dataclass(frozen=True, eq=False)
class NativeEnv(SpacedSpec):
    """A compiled environment: sizes, bounds and the addresses of its two C functions.

    Nothing is compiled before an address is asked for, and what was compiled once is loaded from disk afterwards.
    """

    id: str
    state_size: int
    """Length S of the float32 row that holds one environment's whole state."""
    obs_size: int
    action_size: int
    n_actions: int
    action_low: F32
    action_high: F32
    obs_low: F32
    obs_high: F32
    max_steps: int
    reward_threshold: float | None
    version: str
    """Digest of the environment's source: what compiled code and comparisons are keyed by."""
    functions: Functions = dataclasses.field(repr=False)
    """The plain functions (reset, step, observe)."""
    checked: bool | None = None
    """Whether compiled code looks at every number; None leaves it to MILEAGE_CHECK."""
    branches: tuple[int, ...] = ()
    """How many ways there are to choose each discrete part of an action that has several; empty if it has not."""
    mask_function: types.FunctionType | None = dataclasses.field(default=None, repr=False)
    """The plain function that says what is possible, if there is one."""

    def __post_init__(self) -> None:
        vars(self)["masked"] = self.mask_function is not None

    @functools.cached_property
    def advance_address(self) -> int:
        """Address of the C function `advance`; its signature stands in `mileage.envs.native.compile`."""
        with self._way_out():
            return self._compiled.advance.address

    @functools.cached_property
    def reset_address(self) -> int:
        """Address of the C function `reset`; its signature stands in `mileage.envs.native.compile`."""
        with self._way_out():
            return self._compiled.reset.address

    @functools.cached_property
    def mask_address(self) -> int:
        """Address of the C function `mask`; 0 if everything is always possible."""
        with self._way_out():
            found = self._compiled.mask
            return 0 if found is None else found.address

    @classmethod
    def named(cls, name: str) -> NativeEnv:
        """The native environment called `name`: an id, "path/to/file.py:Name" or "package.module:Name"."""
        place = split(name)
        found = known.load(*place) if place else known.by_id(name)
        if not isinstance(found, NativeEnv):
            raise UnknownNameError("native environment", name, known.registered())
        return found

    def vector(self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False) -> VecEnv:
        """`n_envs` copies on up to `threads` threads; they need no processes."""
        return VecEnv(self, n_envs, seed=seed, threads=threads)

    @property
    def source(self) -> FunctionSource:
        """The plain functions, and the sizes they are compiled for."""
        sizes = Sizes(self.state_size, self.obs_size, self.action_size, self.n_actions > 0)
        return FunctionSource(self.functions, sizes, vars(self)["mask_function"], sum(self.choices))

    @functools.cached_property
    def _compiled(self) -> CompiledEnv:
        from mileage.envs.native.compile import CompiledEnv

        return CompiledEnv(self.source, self.version, checked=self.checked)

    @contextlib.contextmanager
    def _way_out(self) -> Iterator[None]:
        """Say of what cannot be compiled how else to write it."""
        try:
            yield
        except EnvCompileError as error:
            if error.__cause__ is None:
                raise
            spaces, name = "gymnasium.spaces.", "".join(c for c in self.id if c.isalnum() or c == "_") or "Mine"
            action = f"Discrete({self.n_actions})" if self.n_actions else f"Box(-1.0, 1.0, ({self.action_size},))"
            both = f"{spaces}Box(-np.inf, np.inf, ({self.obs_size},)), {spaces}{action}"
            raise EnvCompileError(
                f"{error}; or write a Gymnasium class, with any Python in its reset(self, *, seed=None, options=None) "
                f"and step(self, action):\n\n    class {name}(gymnasium.Env):\n"
                f"        observation_space, action_space = {both}\n"
            ) from error.__cause__


class VecEnv(VectorBase):
    """`n_envs` copies of a native environment over flat arrays that are allocated once.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. An
    episode that ends starts again in the same step (Gymnasium's `AutoresetMode.SAME_STEP`): `obs` then holds the first
    observation of the next episode and `infos["final_obs"]` the last one of the old, in the rows that
    `infos["_final_obs"]` marks; its other rows are left from earlier steps.

    Every environment owns a random stream that depends on nothing but `seed` and its index, so results do not depend
    on `n_envs` or `threads`.
    """

    spec: NativeEnv

    def __init__(
        self, env: NativeEnv | str, n_envs: int, *, seed: int = 0, threads: int | None = None,
        max_steps: int | None = None,
    ) -> None:  # fmt: skip
        """Allocate the arrays; `env` is a native environment, its id or "file.py:Name".

        `threads` is an upper bound (default: all cores), used only where there is enough work for each.
        `max_steps` replaces the environment's own time limit; 0 means none.
        """
        spec = NativeEnv.named(env) if isinstance(env, str) else env
        super().__init__(spec, n_envs)
        if spec.id not in known.BUILT_IN:
            self._distrust(spec)
        most = most_threads(threads)
        self.max_steps = spec.max_steps if max_steps is None else max_steps
        self.state: F32 = np.zeros((n_envs, spec.state_size), np.float32)
        self.elapsed: I64 = np.zeros(n_envs, np.int64)
        self.rng: U64 = np.zeros((n_envs, 2), np.uint64)
        self._chosen: Array = np.empty(0)  # the last actions, at first an array that nobody else has
        self.action: F32 = np.zeros((n_envs, spec.action_size), np.float32)
        self._masks: U8 = np.ones((n_envs, sum(spec.choices) if spec.masked else 0), np.uint8)
        self._seed(seed)
        shards = max(1, min(most, n_envs // _ENVS_PER_THREAD))
        edges = np.linspace(0, n_envs, shards + 1).astype(int)
        self._shards = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
        self._calls = [self._call(shard) for shard in self._shards]
        self._call_all = self._call(slice(0, n_envs))
        self._pool = ThreadPool(shards - 1) if shards > 1 else None
        self._load_step()

    @staticmethod
    def _distrust(spec: NativeEnv) -> None:
        """Try the first steps of a user's environment, and see to it that a loop in it can be ended."""
        from mileage.envs.native.trial import first_steps

        watch()
        first_steps(spec, spec.source)

    def reset(self, *, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[F32, dict[str, Any]]:
        """Start all episodes anew and return (obs (N, O) float32, {}).

        An int seeds all streams; a sequence of N ints seeds each environment by its own, whatever its place; without
        a seed the streams go on. `options={"reset_mask": mask}` with (N,) bool resets (and seeds) only those marked.
        """
        marked = self._marked(options)
        if seed is not None:
            self._seed(seed, marked)
        for start, stop in [(0, self.num_envs)] if marked is None else [(i, i + 1) for i in np.flatnonzero(marked)]:
            rows = (self.state[start:], self.elapsed[start:], self.rng[start:], self.obs[start:])
            if self._reset(*(row.ctypes.data for row in rows), stop - start) < 0:
                self.raise_failure()
        return self.obs, {}

    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once.

        `actions` is (N,) integers if the environment is discrete, (N, A) numbers otherwise; an array that is the same
        as at the last call is not looked at again. Returns obs (N, O) float32, rewards (N,) float32, terminated (N,)
        bool, truncated (N,) bool and infos.
        """
        chosen = self._chosen if actions is self._chosen else self._ready(actions)
        late = self._last_steps(chosen) if self.spec.masked else None
        ended = self._step(self._call_all, chosen) if self._pool is None else self._step_sharded(chosen)
        if ended == 0:
            return self.obs, self.reward, self.terminated, self.truncated, {}
        if ended < 0:
            self.raise_failure()
            raise UsageError(f"actions must be from 0 to {self.spec.n_actions - 1} in environment {self.spec.id!r}")
        found = self._ended()
        if late is not None:
            found[4]["final_masks"] = late
        return found

    @property
    def masks(self) -> U8 | None:
        """What is possible now, (N, M) uint8, the same memory every time; None if the environment does not say."""
        if not self.spec.masked:
            return None
        self._write_masks()
        if leave_nothing(self._masks, self.spec.choices):
            raise no_way_out(self.spec.id)
        return self._masks

    def _write_masks(self) -> None:
        rows = (self.state, self.elapsed, self._masks)
        if _MASK(self.spec.mask_address)(*(row.ctypes.data for row in rows), self.num_envs) < 0:
            self.raise_failure()

    def _last_steps(self, actions: Array) -> U8:
        """What will be possible after this step in the environments that a time limit is about to cut off.

        Their states are gone after it, as the next episode begins in the same step: they take it here first.
        """
        found: U8 = np.ones_like(self._masks)
        rows = np.flatnonzero(self.elapsed + 1 >= self.max_steps) if self.max_steps else ()
        if len(rows):
            ahead = VecEnv(self.spec, len(rows), threads=1, max_steps=0)
            ahead.state[:], ahead.rng[:] = self.state[rows], self.rng[rows]
            ahead.step(actions[rows])
            ahead._write_masks()
            found[rows] = ahead._masks
            found[~found.any(axis=1)] = 1  # nothing needs to be possible where an episode ends anyway
        return found

    def raise_failure(self) -> None:
        """EnvError if a function of an environment raised in compiled code that was called with these arrays."""
        from mileage.envs.native.compile import raise_noted

        raise_noted(self.spec.id, self.elapsed, self._locate)

    def _locate(self, function: int, index: int) -> str:
        """Where an index error is raised in plain Python from the state that compiled code left, in brackets."""
        from mileage.envs.native.trial import locate

        return locate(self.spec, self.spec.source, function, self.state[index], self.rng[index])

    def _ready(self, actions: ArrayLike) -> Array:
        """`actions` as compiled code wants them."""
        chosen = np.ascontiguousarray(self._checked_actions(actions), self._dtype)
        self._check_choices(chosen)
        if chosen is actions:
            self._chosen = chosen
        return chosen

    def saved_arrays(self) -> dict[str, Array]:
        """The whole state: arrays of states, ages, random streams and observations."""
        return {"state": self.state, "elapsed": self.elapsed, "rng": self.rng, "obs": self.obs}

    def frame_fields(self) -> Record:
        """The environments' fields of a kernel frame that steps them (see `mileage.kernels.rollout`)."""
        sizes = {"advance": self.spec.advance_address, "state_size": self.spec.state_size}
        return named(self, "state elapsed rng obs final_obs max_steps") | sizes

    def close(self) -> None:
        """Let go of the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self.closed = True

    def _load_step(self) -> None:
        from mileage.envs.native.compile import step_continuous, step_discrete

        discrete = self.spec.n_actions > 0
        self._step: Callable[[I64, Array], int] = step_discrete if discrete else step_continuous
        self._dtype = np.dtype(np.int64 if discrete else np.float32)
        self._reset = _RESET(self.spec.reset_address)

    def _call(self, shard: slice) -> I64:
        """Address and arguments of `advance` for some of the environments, and how many actions there are."""
        arrays = (
            self.state, self.elapsed, self.rng, self.action, self.obs, self.reward, self.terminated, self.truncated,
            self.final_obs,
        )  # fmt: skip
        pointers = [array[shard].ctypes.data for array in arrays]
        sizes = shard.stop - shard.start, self.max_steps, self.spec.n_actions
        return np.array([self.spec.advance_address, *pointers, *sizes], np.int64)

    def _step_sharded(self, actions: Array) -> int:
        # Before any shard steps; seen as unsigned, a negative index is a huge one.
        if self.spec.n_actions and actions.view(np.uint64).max() >= self.spec.n_actions:
            return -1
        assert self._pool is not None
        first, *others = zip(self._calls, self._shards, strict=True)
        waiting = [self._pool.submit(self._step_shard, actions, *each) for each in others]
        return self._step_shard(actions, *first) + sum(each.result() for each in waiting)

    def _step_shard(self, actions: Array, call: I64, shard: slice) -> int:
        return int(self._step(call, actions[shard]))

    def _seed(self, seed: Seed, marked: Bool | None = None) -> None:
        from mileage.kernels.random import streams

        checked = self._checked_seed(seed)
        if isinstance(checked, int):
            rng = streams(checked, self.num_envs, "env")
        else:
            rng = np.concatenate([streams(item, 1, "env") for item in checked])
        rows = slice(None) if marked is None else marked
        self.rng[rows] = rng[rows]
