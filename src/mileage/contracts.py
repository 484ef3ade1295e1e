"""What the parts of a training run ask of each other: environments, policies, learners.

    EnvSpec      describes an environment and makes vector environments of it
    VectorEnv    many copies of an environment stepped by one call
    Policy       chooses actions; what a checkpoint keeps of it
    Learner      an algorithm on built parts: collects and learns, can be saved, says what it does

and `LearnerConfig`, `Saved`, `IterationStats`: what a learner is told, what it leaves, what it reports.

A class of yours that derives from one of these works wherever the library's own do; docs/extending.md has an example of
each. Methods without a body must be written; the others have defaults that suit the simple case.

Arrays are C-contiguous; N counts environments, O the entries of an observation, A those of an action.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mileage.codec import Codec
from mileage.errors import UsageError
from mileage.records import Record
from mileage.types import F32, U8, Array, Bool, Memory, ObsLeaf
from mileage.types import Team as Team

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from mileage.description import Description

Step = tuple[Array, F32, Bool, Bool, Record]
"""Observations (N, ...), rewards (N,) float32, terminated (N,) bool, truncated (N,) bool, infos."""


class Clock(Protocol):
    """Whoever measures a run: at any instant exactly one phase is open."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Context manager that spends its body in phase `name`; may be kept and entered again."""


class EnvSpec(abc.ABC):
    """An environment described: what it is called, what it shows and takes, and how to make many of it.

    Observations are rows of `obs_size` entries. Actions are discrete, `n_actions` of them, counted from 0, or a box of
    `action_size` numbers between `action_low` and `action_high`, or have several parts: choices (`branches`), whose
    bounds are infinite, before the numbers. `codec` has the form that users of the environment know.
    """

    id: str
    """The name that users know it by."""
    obs_size: int
    """Entries O of one observation row."""
    n_actions: int
    """Number of discrete actions; 0 if actions are continuous."""
    action_size: int
    """Entries A of one action; 1 if discrete."""
    action_low: F32
    """Lower bounds of a continuous action, (A,) float32; empty if discrete."""
    action_high: F32
    """Upper bounds of a continuous action, (A,) float32; empty if discrete."""
    max_steps: int
    """Steps after which an episode is truncated; 0 for no limit."""
    reward_threshold: float | None
    """Mean return at which the environment counts as solved."""
    version: str
    """Digest of what decides the dynamics; part of a panel's identity."""
    branches: tuple[int, ...] = ()
    """How many ways there are to choose each discrete part of an action that has several; empty if it has not."""
    masked: bool = False
    """Whether it says which choices are possible: then vectors of it have `masks`."""

    @property
    def codec(self) -> Codec:
        """What its observations and actions look like outside, and how they become rows."""
        return Codec(self.obs_size, self.choices, self.leaves)

    @property
    def choices(self) -> tuple[int, ...]:
        """How many ways there are to choose each discrete part of an action, be it one or several."""
        return self.branches or ((self.n_actions,) if self.n_actions else ())

    @property
    def leaves(self) -> tuple[ObsLeaf, ...] | None:
        """The arrays that an observation row of bytes packs; None if rows are float32 vectors."""
        return None

    def flat(self) -> EnvSpec:
        """The same environment with observation rows that are float32 vectors; itself if they are."""
        return self

    @abc.abstractmethod
    def vector(self, n_envs: int, *, seed: int = 0, threads: int | None = None, processes: bool = False) -> VectorEnv:
        """`n_envs` copies; `threads` and `processes` are upper bounds and wishes, which a back end may not have."""


class VectorEnv(abc.ABC):
    """Many copies of an environment over arrays that are allocated once and overwritten by every step.

    An episode that ends starts again in the same step: `obs` then holds the first observation of the next episode and
    `infos["final_obs"]` the last one of the old, in the rows that `infos["_final_obs"]` marks. What environment i goes
    through depends on the seed and on i alone.
    """

    spec: EnvSpec
    num_envs: int
    obs: Array
    """What all environments show now, (N, O) float32, or rows of bytes if the spec has `leaves`."""

    @property
    def masks(self) -> U8 | None:
        """What is possible now, (N, M) uint8 with an entry for every way to choose; None if the spec is not `masked`.

        A step in which episodes end tells what was possible after it in `infos["final_masks"]`, (N, M).
        """
        return None

    @abc.abstractmethod
    def reset(self, *, seed: int | Sequence[int] | None = None, options: Record | None = None) -> tuple[Array, Record]:
        """Start all episodes anew; an int seeds all environments, a sequence each by its own."""

    @abc.abstractmethod
    def step(self, actions: ArrayLike) -> Step:
        """Step every environment once: `actions` is (N,) integers if discrete, (N, A) numbers otherwise.

        Of actions with several parts, the first numbers are the indices of choices.
        """

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Let go of threads, processes and windows."""

    @property
    def resets(self) -> tuple[int, float]:
        """How often steps have started episodes anew so far, and the seconds that took, as far as it is known."""
        return 0, 0.0

    pausable: bool = False
    """Whether environments can be stepped one without the other: it then has `begin` and `step_some`."""

    def begin(self, row: int, seed: int) -> None:
        """Start an episode in environment `row` from `seed`; the others stay as they are."""
        raise NotImplementedError

    def step_some(self, actions: ArrayLike, playing: Bool) -> Step:
        """Step the environments that `playing` (N,) marks; what is returned of others is left from before.

        An episode that ends is not started again. What environments say about success is `infos["is_success"]`, (N,)
        bool, where one does.
        """
        raise NotImplementedError

    def saved_arrays(self) -> dict[str, Array]:
        """Live arrays that decide how the episodes under way go on, by name: writing to them puts a state back.

        In a checkpoint their names begin with `env_`, so that they meet no others. None by default: then a run that is
        resumed starts its environments anew, and their running episodes with them.
        """
        return {}


class Policy(abc.ABC):
    """Chooses actions for observation rows, and knows what of it a checkpoint must hold."""

    obs_size: int
    """Entries of one observation row."""
    n_actions: int
    """Number of discrete actions; 0 if actions are continuous."""
    action_size: int
    """Entries A of one action; 1 if discrete."""
    low: F32
    """Lower bounds of continuous actions, (A,) float32."""
    high: F32
    """Upper bounds of continuous actions, (A,) float32."""
    obs_mean: F32
    """Subtracted from observations, (O,) float32."""
    obs_scale: F32
    """Multiplies what is left, (O,) float32."""
    obs_limit: float
    """Normalised observations are kept within plus and minus this; infinite where nothing is normalised."""
    leaves: tuple[ObsLeaf, ...] | None = None
    """The arrays that an observation row of bytes packs; None if rows are float32 vectors."""
    most_threads: int | None = None
    """How many threads choosing actions may use; None for as many as there are cores."""
    structured_actions: bool = False
    """Whether actions have several parts or masks, which are then passed to it; kernels are others for that too."""

    @abc.abstractmethod
    def live_arrays(self) -> dict[str, Array]:
        """What a checkpoint holds of the policy, by name; call `loaded` after writing to it."""

    def loaded(self) -> None:  # noqa: B027 (arrays that are the policy's own memory need nothing)
        """Take over what was written to `live_arrays`."""

    @abc.abstractmethod
    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions for observation rows: the best ones, or drawn where `rng` is given, among what `masks` (N, M) allow.

        Discrete: indices (N,) int64; others: (N, A) float32, indices of choices before numbers within the bounds.
        """

    @property
    def row_by_row(self) -> bool:
        """Whether an action depends on its own observation row alone: not on others, nor on what was before."""
        return True

    def player(self, n: int) -> Callable[..., Array]:
        """A function like `actions` that plays `n` episodes from their start, with a memory if the policy has one."""
        return self.actions

    def predict(
        self,
        observation: Array,
        state: Memory,
        episode_start: ArrayLike | None,
        rng: np.random.Generator | None,
        masks: U8 | None = None,
    ) -> tuple[Array, Memory]:
        """Actions for observation rows, and the memory for the next call; `state` is what the last call returned.

        A policy without a memory needs none of its own.
        """
        return self.actions(observation, rng, *(() if masks is None else (masks,))), None

    def distribution(self, obs: Array, masks: U8 | None = None) -> Distribution:
        """What it says about observation rows; UsageError if it does not tell."""
        raise UsageError(f"{type(self).__name__} does not tell its distribution")


@dataclass(frozen=True)
class Distribution:
    """What a policy says about observations: N rows of each array, or none where there was a single observation."""

    probabilities: tuple[F32, ...] = ()
    """Of every way to choose each discrete part of an action, (N, n) each; 0 for what is masked."""
    mean: F32 | None = None
    """Of the numbers in an action, (N, G), where -1 and 1 stand for their bounds; None if there are none."""
    deviation: F32 | None = None
    """Of these numbers, (N, G); None if the policy has none."""
    value: F32 | None = None
    """Expected return, (N,); None if the policy has no critic of observations."""
    action_values: F32 | None = None
    """Expected return of every action, (N, n); None if the policy does not estimate it."""

    def first(self) -> Distribution:
        """That of the first observation alone."""

        def row(array: F32 | None) -> F32 | None:
            return None if array is None else array[0]

        return Distribution(
            tuple(each[0] for each in self.probabilities),
            row(self.mean),
            row(self.deviation),
            row(self.value),
            row(self.action_values),
        )


class IterationStats(Protocol):
    """What every iteration reports, beside whatever else a learner has to say."""

    @property
    def episodes(self) -> int:
        """Training episodes that ended in this iteration."""

    @property
    def episode_return(self) -> float:
        """Their mean return; NaN if there were none."""

    @property
    def episode_length(self) -> float:
        """Their mean length; NaN if there were none."""

    @property
    def truncations(self) -> int | None:
        """How many of them a time limit ended; None if the learner does not know."""


@dataclass(frozen=True)
class Saved:
    """Everything that decides how training goes on."""

    arrays: Mapping[str, Array]
    counters: Mapping[str, int]

    def write_to(self, live: Mapping[str, Array]) -> None:
        """Copy arrays into the `live` ones of their names, all or none; UsageError names one that does not fit."""
        for name, target in live.items():
            found = self.arrays.get(name)
            if found is None:
                raise UsageError(f"array {name!r} is missing")
            if found.shape != target.shape or found.dtype != target.dtype:
                raise UsageError(
                    f"array {name!r} is {found.dtype} of shape {found.shape}, "
                    f"not {target.dtype} of shape {target.shape}"
                )
        for name, target in live.items():
            target[...] = self.arrays[name]


class LearnerConfig(Protocol):
    """Hyperparameters: a frozen dataclass whose fields all have a default, which says of what type they are."""

    __dataclass_fields__: ClassVar[Record]

    @property
    def n_envs(self) -> int:
        """Environments stepped side by side."""

    @property
    def batch_size(self) -> int:
        """Samples that one update learns from."""


class Learner(abc.ABC):
    """An algorithm on built parts: a vector environment, a policy, a team of threads.

    The class says how it is configured and what policy it learns; it is called with a configuration and the built
    parts. Name it to the library with `mileage.register_algorithm`.
    """

    Config: ClassVar[type]
    """Of its configurations; an instance is a `LearnerConfig`."""
    image_defaults: ClassVar[Record] = {}
    """Hyperparameters whose defaults are others where the network is a convolutional one."""
    own_threads: ClassVar[bool] = False
    """Whether it has threads of its own that work while it does; `rest` ends them."""
    config: LearnerConfig
    env: VectorEnv
    policy: Policy
    team: Team
    steps_per_iteration: int
    """Environment steps that one iteration takes."""

    def __init__(self, config: LearnerConfig, env: VectorEnv, policy: Policy, team: Team, seed: int) -> None:
        """Bind to parts that are built; `seed` decides everything random."""
        self.config, self.env, self.policy, self.team, self.seed = config, env, policy, team, seed

    @classmethod  # noqa: B027 (most algorithms learn anywhere)
    def check_spec(cls, spec: EnvSpec) -> None:
        """UsageError if this algorithm cannot learn in such an environment."""

    @classmethod
    @abc.abstractmethod
    def make_policy(cls, config: Any, spec: EnvSpec, seed: int) -> Policy:
        """A fresh policy for an environment; `config` is an instance of `Config`."""

    @classmethod
    def kernels(cls, native: bool) -> tuple[str, ...]:
        """Kernels that a run needs, by their names in `mileage.kernels.machine.precompile`, in halves of like size.

        `native` says whether the environment is one that kernels can step.
        """
        return ()

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """Environment steps taken so far."""

    @abc.abstractmethod
    def iterate(self, clock: Clock, progress: float) -> IterationStats:
        """Collect and learn once, each part in its phase of `clock`, after a share `progress` of the training."""

    @abc.abstractmethod
    def saved(self) -> Saved:
        """What a checkpoint holds. Arrays may be the learner's own memory: copy what you keep while it goes on."""

    @abc.abstractmethod
    def restore(self, saved: Saved) -> None:
        """Go on where `saved` was taken; UsageError if it does not fit."""

    def stop(self, *, finish: bool = True) -> None:  # noqa: B027 (most learners have no threads of their own)
        """End threads of one's own; what they are at is finished first, or abandoned."""

    def summary(self) -> Record:
        """What is worth telling at the end of a run, beside what every run tells."""
        return {}

    def describe(self) -> Description | None:
        """Which calls an iteration makes, in which stages, and how much work they are; None if it does not tell."""
        return None
