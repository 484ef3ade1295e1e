"""Gymnasium environments whose observations keep their form: images of bytes, dicts of arrays.

All arrays of an observation are packed into one row of bytes. Rollouts, replay buffers and checkpoints then store rows,
whatever is in them, and whoever computes with an observation looks at its arrays through views.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from gymnasium import spaces

from mileage.contracts import EnvSpec
from mileage.envs.gymnasium.bridge import BridgedVecEnv, Env, FlatMasks, GymnasiumEnv, Tally
from mileage.envs.spaces import SpaceCodec
from mileage.types import Observation, ObsLeaf


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredEnv(GymnasiumEnv):
    """A Gymnasium environment with packed observations, (B,) uint8 each; `leaves` says what is where."""

    @property
    def leaves(self) -> tuple[ObsLeaf, ...]:
        """The arrays of one observation."""
        return tuple(self.codec.leaves or ())

    def create(self, index: int = 0, tally: Tally | None = None) -> Env:
        """Make one environment with observations as they are, and flat masks if it has any."""
        env = self.made(index, tally)
        return FlatMasks(env, self._make_codec(env), self.id) if self.masked else env

    def flat(self) -> GymnasiumEnv:
        """The same environment with observations as vectors."""
        return GymnasiumEnv(self.id, self.kwargs, self.make)

    @property
    def obs_dtype(self) -> np.dtype[np.generic]:
        """Rows are bytes, whatever they hold."""
        return np.dtype(np.uint8)

    def _make_codec(self, env: Env) -> SpaceCodec:
        return SpaceCodec(self.id, env.observation_space, env.action_space, packed=True)

    def _described(self, env: Env, codec: SpaceCodec) -> dict[str, object]:
        own = {"obs_shape": (codec.obs_size,), "observation_space": env.observation_space}
        return super()._described(env, codec) | own

    def vector(
        self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False
    ) -> StructuredVecEnv:
        """As for any Gymnasium environment."""
        return StructuredVecEnv(self, n_envs, seed=seed, processes=processes)


def structured(spec: EnvSpec) -> EnvSpec:
    """`spec` with its observations as they are, if they would lose their form when flattened; else `spec` itself."""
    if not isinstance(spec, GymnasiumEnv) or isinstance(spec, StructuredEnv):
        return spec
    whole = StructuredEnv(spec.id, spec.kwargs, spec.make, spec.image)
    space: object = whole.observation_space
    formed = isinstance(space, spaces.Dict | spaces.Tuple) or (isinstance(space, spaces.Box) and len(space.shape) > 1)
    return whole if formed else spec


class StructuredVecEnv(BridgedVecEnv):
    """`n_envs` copies of a `StructuredEnv`; `obs` and `final_obs` are packed rows, (N, B) uint8."""

    spec: StructuredEnv

    def _take(self, obs: Observation) -> None:
        self.spec.codec.take(obs, self.obs)

    def _take_final(self, row: int, obs: Observation) -> None:
        self.final_obs[row] = self.spec.codec.rows(obs)[0][0]
