"""What the environments of this package share, native, simulated or bridged: spaces, arrays, checks of arguments."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mileage.contracts import EnvSpec, Step, VectorEnv
from mileage.errors import UsageError, require
from mileage.types import F32, Array, Bool

if TYPE_CHECKING:
    from gymnasium.spaces import Box, Discrete, Space

Seed = int | Sequence[int]
"""One for all environments, or one for each."""


def most_threads(threads: int | None) -> int:
    """How many threads may be used: all cores unless told."""
    require(threads is None or threads >= 1, "threads", threads, "at least 1")
    return threads or os.cpu_count() or 1


class SpacedSpec(EnvSpec):
    """A spec that can say in Gymnasium's words what it shows and takes."""

    obs_low: F32
    """Lower bounds of an observation, (O,) float32."""
    obs_high: F32
    """Upper bounds of an observation, (O,) float32."""

    @functools.cached_property
    def observation_space(self) -> Space[Array]:
        """The Gymnasium space of one observation."""
        from gymnasium import spaces

        return spaces.Box(self.obs_low, self.obs_high, dtype=np.float32)

    @functools.cached_property
    def action_space(self) -> Box | Discrete:
        """The Gymnasium space of one action row: a flat box, or numbers from 0."""
        from gymnasium import spaces

        if self.n_actions:
            return spaces.Discrete(self.n_actions)
        low, high, choices = self.action_low.copy(), self.action_high.copy(), len(self.branches)
        low[:choices], high[:choices] = 0.0, np.array(self.branches, np.float32) - 1.0
        return spaces.Box(low, high, dtype=np.float32)


class VectorBase(VectorEnv):
    """`n_envs` copies of an environment over arrays that are allocated once, with Gymnasium's attributes.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. Rows
    of `final_obs` that no end has marked are left from earlier steps.
    """

    render_mode = None
    closed = False
    spec: SpacedSpec

    def __init__(
        self, spec: SpacedSpec, n_envs: int, obs_shape: tuple[int, ...] | None = None, obs_dtype: DTypeLike = np.float32
    ) -> None:
        """Allocate; `obs_shape` is that of one observation, (O,) unless given."""
        require(n_envs >= 1, "n_envs", n_envs, "at least 1")
        self.spec = spec
        self.num_envs = n_envs
        self.obs: Array = np.zeros((n_envs, *(obs_shape or (spec.obs_size,))), obs_dtype)
        self.reward: F32 = np.zeros(n_envs, np.float32)
        self.terminated: Bool = np.zeros(n_envs, np.bool_)
        self.truncated: Bool = np.zeros(n_envs, np.bool_)
        self.final_obs: Array = np.zeros_like(self.obs)
        self._done: Bool = np.zeros(n_envs, np.bool_)
        self._actions_shape = (n_envs,) if spec.n_actions else (n_envs, spec.action_size)

    def __reduce__(self) -> NoReturn:
        raise UsageError(f"environments {self.spec.id!r} are neither copied nor pickled: make others with make_vec")

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What Gymnasium's wrappers ask: the autoreset mode."""
        from gymnasium.vector import AutoresetMode

        return {"autoreset_mode": AutoresetMode.SAME_STEP}

    @functools.cached_property
    def single_observation_space(self) -> Space[Array]:
        """The Gymnasium space of one observation."""
        return self.spec.observation_space

    @functools.cached_property
    def single_action_space(self) -> Box | Discrete:
        """The Gymnasium space of one action."""
        return self.spec.action_space

    @functools.cached_property
    def observation_space(self) -> Space[Array]:
        """The Gymnasium space of a batch of observations."""
        from gymnasium.vector.utils import batch_space

        return batch_space(self.single_observation_space, self.num_envs)

    @functools.cached_property
    def action_space(self) -> Space[Array]:
        """The Gymnasium space of a batch of actions."""
        from gymnasium.vector.utils import batch_space

        return batch_space(self.single_action_space, self.num_envs)

    @property
    def unwrapped(self) -> VectorBase:
        """The environment itself, which wraps nothing."""
        return self

    def _ended(self) -> Step:
        """What a step returns in which episodes ended; `final_obs` is filled."""
        np.logical_or(self.terminated, self.truncated, out=self._done)
        infos = {"final_obs": self.final_obs, "_final_obs": self._done}
        return self.obs, self.reward, self.terminated, self.truncated, infos

    def _checked_actions(self, actions: ArrayLike) -> Array:
        """`actions` as an array of the right shape and kind of number."""
        array = np.asarray(actions)
        discrete = self.spec.n_actions > 0
        if array.shape != self._actions_shape or array.dtype.kind not in ("iu" if discrete else "iuf"):
            raise UsageError(
                f"actions must be {'integers' if discrete else 'numbers'} of shape {self._actions_shape} for "
                f"{self.num_envs} environments {self.spec.id!r}, not {array.dtype} of shape {array.shape}"
            )
        return array

    def _check_choices(self, rows: Array) -> None:
        """UsageError unless the first entries of action rows (N, A) are indices of choices that there are."""
        branches = self.spec.branches
        choices = rows[:, : len(branches)] if branches else rows
        if branches and not ((choices >= 0) & (choices < branches) & (choices == np.floor(choices))).all():
            raise UsageError(
                f"actions must begin with whole numbers from 0 to below {branches} in environment {self.spec.id!r}"
            )

    def _marked(self, options: dict[str, Any] | None) -> Bool | None:
        """Which environments `options={"reset_mask": mask}` asks to reset, (N,) bool; None for all."""
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return None
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UsageError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},)")
        return mask

    def _checked_seed(self, seed: Seed) -> int | list[int]:
        """`seed` itself, or one for each environment."""
        given = [seed] if isinstance(seed, int | np.integer) else list(seed)
        require(min(given, default=0) >= 0, "seed", min(given, default=0), "0 or more")
        if isinstance(seed, int | np.integer):
            return int(seed)
        if len(given) != self.num_envs:
            raise UsageError(
                f"seed must be one int or one for each of {self.num_envs} environments, not {len(given)} of them"
            )
        return [int(item) for item in given]

    def _seeds(self, seed: Seed) -> list[int]:
        """One seed for each environment; those of an int have nothing in common with its neighbours'."""
        checked = self._checked_seed(seed)
        if isinstance(checked, list):
            return checked
        return [int(item) for item in np.random.SeedSequence([checked, *b"env"]).generate_state(self.num_envs)]
