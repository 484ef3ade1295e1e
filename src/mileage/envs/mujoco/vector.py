"""Many copies of a MuJoCo environment stepped in native threads, with the conventions of `VecEnv`."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UsageError
from mileage._types import F32, I64, Bool
from mileage.envs.mujoco._batch import Batch
from mileage.envs.mujoco.spec import MujocoEnv
from mileage.envs.native.vector import Step


class MujocoVecEnv:
    """`n_envs` copies of a MuJoCo environment over arrays that are allocated once.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. An
    episode that ends starts again in the same step, as in `VecEnv`. Environment i reset with seed s goes through the
    same episodes, one after the other, as Gymnasium's environment reset with seed s, whatever i, `n_envs` and `threads`
    are.
    """

    render_mode = None
    closed = False

    def __init__(
        self,
        env: MujocoEnv | str,
        n_envs: int,
        *,
        seed: int = 0,
        threads: int | None = None,
        max_steps: int | None = None,
    ) -> None:
        """Allocate simulations and arrays.

        `threads` is an upper bound (default: all cores). `max_steps` replaces the environment's own time limit; 0 means
        none.
        """
        if n_envs < 1:
            raise UsageError(f"n_envs is {n_envs}: use at least 1")
        if threads is not None and threads < 1:
            raise UsageError(f"threads is {threads}: use at least 1")
        spec = MujocoEnv(env) if isinstance(env, str) else env
        self.spec = spec
        self.num_envs = n_envs
        self.max_steps = spec.max_steps if max_steps is None else max_steps
        self.threads = min(threads or os.cpu_count() or 1, n_envs)
        self._task = spec.task()
        kind = type(self._task)
        self._sim = Batch(spec.model, n_envs, self.threads, kind.outputs, contact_forces=kind.contact_forces)
        self._substeps = spec.frame_skip
        self._shape = (n_envs, spec.action_size)
        self.elapsed: I64 = np.zeros(n_envs, np.int64)
        self.obs: F32 = np.zeros((n_envs, spec.obs_size), np.float32)
        self.reward: F32 = np.zeros(n_envs, np.float32)
        self.terminated: Bool = np.zeros(n_envs, np.bool_)
        self.truncated: Bool = np.zeros(n_envs, np.bool_)
        self.final_obs: F32 = np.zeros((n_envs, spec.obs_size), np.float32)
        self._done: Bool = np.zeros(n_envs, np.bool_)
        self._rngs: list[np.random.Generator] = []
        self._seed(seed, np.arange(n_envs))

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start all episodes anew and return (obs (N, O) float32, {}).

        An int seeds all environments; a sequence of N ints seeds each as Gymnasium's environment would be; without a
        seed the streams go on. `options={"reset_mask": mask}` with (N,) bool resets (and seeds) only those marked.
        """
        rows = self._marked((options or {}).get("reset_mask"))
        if seed is not None:
            self._seed(seed, rows)
        self._restart(rows)
        return self.obs, {}

    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once.

        `actions` is (N, A) numbers; like Gymnasium, values beyond the bounds count as they are in the cost of control,
        and act like the bounds. Returns obs (N, O) float32, rewards (N,) float32, terminated (N,) bool, truncated (N,)
        bool and infos.
        """
        chosen = self._checked_actions(actions)
        sim, task = self._sim, self._task
        task.remember(sim)
        sim.ctrl[:] = chosen
        sim.step(self._substeps)
        task.observe(sim, self.obs)
        task.judge(sim, chosen, self.reward, self.terminated)
        self.elapsed += 1
        np.equal(self.elapsed, self.max_steps, out=self.truncated)
        np.greater(self.truncated, self.terminated, out=self.truncated)
        np.logical_or(self.terminated, self.truncated, out=self._done)
        if not self._done.any():
            return self.obs, self.reward, self.terminated, self.truncated, {}
        np.copyto(self.final_obs, self.obs, where=self._done[:, None])
        self._restart(np.flatnonzero(self._done))
        infos = {"final_obs": self.final_obs, "_final_obs": self._done}
        return self.obs, self.reward, self.terminated, self.truncated, infos

    def close(self) -> None:
        """Free simulations and threads."""
        if not self.closed:
            self._sim.close()
            self.closed = True

    def saved_arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing: a run that is resumed starts its episodes anew."""
        return {}

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """What Gymnasium's wrappers ask: the autoreset mode."""
        from gymnasium.vector import AutoresetMode

        return {"autoreset_mode": AutoresetMode.SAME_STEP}

    @functools.cached_property
    def single_observation_space(self) -> Any:
        """The Gymnasium space of one observation."""
        return self.spec.observation_space

    @functools.cached_property
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
    def unwrapped(self) -> MujocoVecEnv:
        """The environment itself, which wraps nothing."""
        return self

    def _restart(self, rows: I64) -> None:
        """Begin new episodes in `rows` (R,)."""
        self._open()
        starts = [self._task.first_state(self._rngs[i]) for i in rows]
        self._sim.start(rows, np.array([qpos for qpos, _ in starts]), np.array([qvel for _, qvel in starts]))
        self.elapsed[rows] = 0
        # The others are written again as they are, which is cheaper than to pick out the new ones.
        self._task.observe(self._sim, self.obs)

    def _open(self) -> None:
        if self.closed:
            raise UsageError(f"environment {self.spec.id!r} is closed: make a new one")

    def _checked_actions(self, actions: ArrayLike) -> NDArray[np.float32]:
        self._open()
        array = np.asarray(actions)
        if array.shape != self._shape or array.dtype.kind not in "iuf":
            raise UsageError(
                f"actions are {array.dtype} of shape {array.shape}: {self.spec.id!r} with {self.num_envs} environments "
                f"takes numbers of shape {self._shape}"
            )
        return array.astype(np.float32, copy=False)

    def _marked(self, mask: Any) -> I64:
        if mask is None:
            return np.arange(self.num_envs)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UsageError(f"options['reset_mask'] must be a bool array of shape ({self.num_envs},)")
        return np.flatnonzero(mask)

    def _seed(self, seed: int | Sequence[int], rows: I64) -> None:
        if isinstance(seed, int | np.integer):
            if seed < 0:
                raise UsageError(f"seed {seed} is negative: use 0 or more")
            # Seeds that are neighbours would otherwise share most of their environments.
            root = np.random.SeedSequence([int(seed), *b"env"])
            seeds = [int(item) for item in root.generate_state(self.num_envs)]
        else:
            seeds = [int(item) for item in seed]
        if len(seeds) != self.num_envs:
            raise UsageError(
                f"seed has {len(seeds)} entries for {self.num_envs} environments: give one int or one each"
            )
        if min(seeds) < 0:
            raise UsageError(f"seed {min(seeds)} is negative: use 0 or more")
        if not self._rngs:
            self._rngs = [np.random.default_rng(0)] * self.num_envs
        for i in rows:
            # Gymnasium's own generator.
            self._rngs[i] = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds[i])))
