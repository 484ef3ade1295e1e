"""Gymnasium's MuJoCo environments, and many copies of one stepped in native threads, with `VecEnv`'s conventions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import ArrayLike

from mileage._errors import UnknownNameError, UsageError, require
from mileage._types import I64, Array, Bool
from mileage.contracts import Step
from mileage.envs._vector_base import Seed, SpacedSpec, VectorBase, most_threads
from mileage.envs.mujoco import model
from mileage.envs.mujoco._batch import Batch, library
from mileage.envs.mujoco.generators import Generators
from mileage.envs.mujoco.task import Task
from mileage.envs.mujoco.tasks import TASKS, task_class

_COMMON = ("xml_file", "frame_skip", "max_episode_steps")


@dataclasses.dataclass(frozen=True, eq=False)
class MujocoEnv(SpacedSpec):
    """One of Gymnasium's MuJoCo environments, stepped natively.

    `kwargs` are those of Gymnasium's constructor, without the ones for rendering, and `max_episode_steps`.
    """

    id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    model: mujoco.MjModel = dataclasses.field(init=False)
    """The compiled model."""
    frame_skip: int = dataclasses.field(init=False)
    """Simulation steps per environment step."""

    def __post_init__(self) -> None:
        self._check()
        kind, given = task_class(self.id), self.kwargs
        path = model.find(str(given.get("xml_file", kind.model_file)))
        compiled = model.compiled(path)
        content = repr((self.id, sorted(given.items()), mujoco.__version__)).encode()
        vars(self).update(
            model=compiled, frame_skip=given.get("frame_skip", kind.frame_skip), n_actions=0,
            action_size=int(compiled.nu), action_low=compiled.actuator_ctrlrange[:, 0].astype(np.float32),
            action_high=compiled.actuator_ctrlrange[:, 1].astype(np.float32),
            max_steps=given.get("max_episode_steps", kind.max_steps), reward_threshold=kind.reward_threshold,
            version=hashlib.sha256(content + path.read_bytes()).hexdigest()[:16],
        )  # fmt: skip
        try:
            size = self.task().obs_size()
        except KeyError as error:  # a body that the task needs
            raise UsageError(f"xml_file {str(path)!r} does not fit {self.id!r}: {error.args[0]}") from error
        vars(self).update(obs_size=size, obs_low=np.full(size, -np.inf, np.float32))
        vars(self).update(obs_high=-self.obs_low)

    def _check(self) -> None:
        if self.id not in TASKS:
            raise UnknownNameError("MuJoCo environment", self.id, TASKS)
        if library() is None:
            raise UsageError(f"MuJoCo {mujoco.__version__} cannot simulate batches: install version 4.0 or later")
        known = {*task_class(self.id).options, *_COMMON}
        unknown = sorted(self.kwargs.keys() - known)
        if unknown:
            raise UsageError(
                f"environment {self.id!r} does not take the option {unknown[0]!r} when it is stepped natively: choose "
                f"from {', '.join(sorted(known))}, or use mileage.envs.GymnasiumEnv"
            )
        for name in ("frame_skip", "max_episode_steps"):
            value = self.kwargs.get(name, 1)
            require(isinstance(value, int) and value >= 1, name, value, "a whole number of at least 1")

    def task(self) -> Task:
        """Observations and rewards, with memory of their own."""
        options = {name: value for name, value in self.kwargs.items() if name not in _COMMON}
        return task_class(self.id)(self.model, options, self.frame_skip)

    def vector(
        self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False
    ) -> MujocoVecEnv:
        """`n_envs` copies on up to `threads` threads; they need no processes."""
        return MujocoVecEnv(self, n_envs, seed=seed, threads=threads)


class MujocoVecEnv(VectorBase):
    """`n_envs` copies of a MuJoCo environment over arrays that are allocated once.

    What `reset` and `step` return are these arrays themselves, overwritten by the next step: copy what you keep. An
    episode that ends starts again in the same step, as in `VecEnv`. Environment i reset with seed s goes through the
    same episodes, one after the other, as Gymnasium's environment reset with seed s, whatever i, `n_envs` and `threads`
    are.
    """

    spec: MujocoEnv
    pausable = True

    def __init__(
        self, env: MujocoEnv | str, n_envs: int, *, seed: int = 0, threads: int | None = None,
        max_steps: int | None = None,
    ) -> None:  # fmt: skip
        """Allocate simulations and arrays.

        `threads` is an upper bound (default: all cores). `max_steps` replaces the environment's own time limit; 0 means
        none.
        """
        spec = MujocoEnv(env) if isinstance(env, str) else env
        super().__init__(spec, n_envs)
        self.max_steps = spec.max_steps if max_steps is None else max_steps
        self.threads = min(most_threads(threads), n_envs)
        self._task = spec.task()
        kind = type(self._task)
        self._sim = Batch(spec.model, n_envs, self.threads, kind.outputs, contact_forces=kind.contact_forces)
        self.elapsed: I64 = np.zeros(n_envs, np.int64)
        self._generators = Generators(n_envs)
        self._seed(seed, np.arange(n_envs))

    def reset(self, *, seed: Seed | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all episodes anew and return (obs (N, O) float32, {}).

        An int seeds all environments; a sequence of N ints seeds each as Gymnasium's environment would be; without a
        seed the streams go on. `options={"reset_mask": mask}` with (N,) bool resets (and seeds) only those marked.
        """
        marked = self._marked(options)
        rows = np.arange(self.num_envs) if marked is None else np.flatnonzero(marked)
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
        self._advance(actions)
        np.logical_or(self.terminated, self.truncated, out=self._done)
        if not self._done.any():
            return self.obs, self.reward, self.terminated, self.truncated, {}
        np.copyto(self.final_obs, self.obs, where=self._done[:, None])
        self._restart(np.flatnonzero(self._done))
        return self._ended()

    def begin(self, row: int, seed: int) -> None:
        """Start an episode in one environment; the others stay as they are."""
        self._generators.seed(row, seed)
        self._restart(np.array([row]))

    def step_some(self, actions: ArrayLike, playing: Bool) -> Step:
        """Step the environments that `playing` (N,) marks."""
        self._advance(actions, np.flatnonzero(playing))
        return self.obs, self.reward, self.terminated, self.truncated, {}

    def _advance(self, actions: ArrayLike, rows: I64 | None = None) -> None:
        """Step all environments, or those of `rows` (R,); what the others show stays."""
        self._check_open()
        chosen = self._checked_actions(actions).astype(np.float32, copy=False)
        sim, task = self._sim, self._task
        task.remember(sim)
        sim.ctrl[:] = chosen
        sim.step(self.spec.frame_skip, rows)
        task.observe(sim, self.obs)
        task.judge(sim, chosen, self.reward, self.terminated)
        self.elapsed[slice(None) if rows is None else rows] += 1
        np.equal(self.elapsed, self.max_steps, out=self.truncated)
        np.greater(self.truncated, self.terminated, out=self.truncated)

    def saved_arrays(self) -> dict[str, Array]:
        """The whole state: simulations, what was computed of them last, ages, random generators and observations."""
        self._check_open()
        own = {"elapsed": self.elapsed, "rng": self._generators.rows, "obs": self.obs}
        return {"state": self._sim.state, **self._sim.outputs, **own}

    def close(self) -> None:
        """Free simulations and threads; the arrays stay."""
        self._sim.close()
        self.closed = True

    def _restart(self, rows: I64) -> None:
        """Begin new episodes in `rows` (R,)."""
        self._check_open()
        starts = [self._generators.draw(int(row), self._task.first_state) for row in rows]
        self._sim.start(rows, np.array([qpos for qpos, _ in starts]), np.array([qvel for _, qvel in starts]))
        self.elapsed[rows] = 0
        # The others are written again as they are, which is cheaper than to pick out the new ones.
        self._task.observe(self._sim, self.obs)

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(f"environment {self.spec.id!r} is closed: make a new one")

    def _seed(self, seed: Seed, rows: I64) -> None:
        seeds = self._seeds(seed)
        for row in rows:
            self._generators.seed(int(row), seeds[row])
