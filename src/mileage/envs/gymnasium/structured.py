"""Gymnasium environments whose observations keep their form: images of bytes, dicts of arrays.

All arrays of an observation are packed into one row of bytes. Rollouts, replay buffers and checkpoints then store rows,
whatever is in them, and whoever computes with an observation looks at its arrays through views.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from gymnasium import spaces

from mileage._errors import UsageError
from mileage._types import U8, Array, ObsLeaf
from mileage.contracts import EnvSpec
from mileage.envs.gymnasium.bridge import BridgedVecEnv, Env, GymnasiumEnv

Observation = Array | Mapping[str, Array]
"""As an environment gives it: one array, or several by name."""

# Views of float32 start at multiples of their size; rows at multiples of a cache word.
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredEnv(GymnasiumEnv):
    """A Gymnasium environment with packed observations, (B,) uint8 each; `leaves` says what is where."""

    packed: tuple[ObsLeaf, ...] = dataclasses.field(init=False)
    """The arrays of one observation."""

    def create(self) -> Env:
        """Make one environment whose observations are arrays or a dict of arrays."""
        if self.image:
            return super().create()
        env = self.made()
        _leaves(env.observation_space, self.id)
        if not isinstance(env.action_space, spaces.Discrete | spaces.Box):
            raise UsageError(f"environment {self.id!r} has actions {env.action_space}: wrap it to take Discrete or Box")
        return env

    @property
    def leaves(self) -> tuple[ObsLeaf, ...]:
        """The arrays of one observation."""
        return self.packed

    @property
    def obs_dtype(self) -> np.dtype[np.generic]:
        """Rows are bytes, whatever they hold."""
        return np.dtype(np.uint8)

    def _described(self, env: Env) -> dict[str, object]:
        leaves = _leaves(env.observation_space, self.id)
        size = -(-leaves[-1].stop // _ALIGNMENT) * _ALIGNMENT
        own = {"packed": leaves, "obs_shape": (size,), "obs_size": size, "observation_space": env.observation_space}
        return super()._described(env) | own

    def vector(
        self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False
    ) -> StructuredVecEnv:
        """As for any Gymnasium environment."""
        return StructuredVecEnv(self, n_envs, seed=seed, processes=processes)


def structured(spec: EnvSpec) -> EnvSpec:
    """`spec` with its observations as they are, if they would lose their form when flattened; else `spec` itself."""
    if not isinstance(spec, GymnasiumEnv) or isinstance(spec, StructuredEnv):
        return spec
    try:
        whole = StructuredEnv(spec.id, spec.kwargs, spec.make, spec.image)
    except UsageError:
        return spec
    space: object = whole.observation_space
    formed = isinstance(space, spaces.Dict) or (isinstance(space, spaces.Box) and len(space.shape) > 1)
    return whole if formed else spec


def _leaves(space: object, env_id: str) -> tuple[ObsLeaf, ...]:
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    leaves, start = [], 0
    for name, part in parts.items():
        if isinstance(part, spaces.Box):
            shape, dtype = part.shape, "uint8" if part.dtype == np.uint8 else "float32"
        elif isinstance(part, spaces.Discrete) and part.start == 0:
            shape, dtype = (int(part.n),), "float32"
        else:
            raise UsageError(f"environment {env_id!r} has observations {part}: wrap it so that they are arrays")
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        leaves.append(ObsLeaf(name, shape, dtype, start, stop))
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
    return tuple(leaves)


def pack(leaves: Sequence[ObsLeaf], obs: Observation, out: U8) -> None:
    """Write observations, (N, *shape) or a dict of such, as rows into `out` (N, B) uint8.

    Discrete parts, (N,) integers, become one-hot.
    """
    for leaf in leaves:
        values = np.asarray(obs[leaf.name] if isinstance(obs, Mapping) else obs)
        view = view_of(leaf, out)
        if values.ndim == 1 and view.ndim == 2 and values.dtype.kind in "iu":
            view[:] = values[:, None] == np.arange(view.shape[1])
        else:
            view[:] = values


def view_of(leaf: ObsLeaf, rows: U8) -> Array:
    """The array (N, *shape) inside packed rows (N, B) uint8; not a copy."""
    part = rows[:, leaf.start : leaf.stop].view(leaf.dtype)
    strides = [np.dtype(leaf.dtype).itemsize]
    for size in reversed(leaf.shape[1:]):
        strides.insert(0, strides[0] * size)
    shape = (len(rows), *leaf.shape)
    return np.lib.stride_tricks.as_strided(part, shape, (part.strides[0], *strides[: len(leaf.shape)]))


class StructuredVecEnv(BridgedVecEnv):
    """`n_envs` copies of a `StructuredEnv`; `obs` and `final_obs` are packed rows, (N, B) uint8."""

    spec: StructuredEnv

    def _take(self, obs: Observation) -> None:
        pack(self.spec.leaves, obs, self.obs)

    def _take_final(self, row: int, obs: Observation) -> None:
        pack(self.spec.leaves, _batch_of_one(obs), self.final_obs[row : row + 1])


def _batch_of_one(obs: Observation) -> Observation:
    if isinstance(obs, Mapping):
        return {name: np.asarray(part)[None] for name, part in obs.items()}
    return np.asarray(obs)[None]
