"""Held-out evaluation: a policy plays every episode of a panel once."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mileage._errors import EnvError, UsageError
from mileage._records import Record, named
from mileage._types import I64, Array, Bool
from mileage.codec import no_way_out
from mileage.contracts import EnvSpec, Policy, Step, Team
from mileage.envs.make import make_vec
from mileage.envs.native.env import NativeEnv
from mileage.envs.native.vector import VecEnv
from mileage.kernels.arrays import random
from mileage.kernels.learners import actor_critic
from mileage.kernels.learners import rollout as kernels
from mileage.kernels.machine.pointers import Frame
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from mileage.policies.mlp import FlatPolicy
from mileage.training.asked import say_cut

# Environments that play a panel side by side where they can be stepped one without the other.
_WIDTH = 32
# Steps of an episode after which it is held to be one that does not end, where nothing says how long they may be.
_ENDLESS = 100_000


def make_evaluator(policy: Policy, spec: EnvSpec, panel: Panel, team: Team) -> NativeEvaluator | BridgeEvaluator:
    """The evaluator for a panel: native where its environment `spec` is, else through Gymnasium."""
    if panel.perturbations:
        raise UsageError(f"panel perturbation {panel.perturbations[0]!r} is not known")
    if isinstance(spec, NativeEnv) and isinstance(policy, FlatPolicy):
        return NativeEvaluator(policy, spec, panel, team)
    return BridgeEvaluator(policy, spec, panel)


def _check_episodes_end(spec: NativeEnv, panel: Panel) -> int:
    """Steps after which an episode of the panel ends at the latest."""
    limit = panel.max_episode_steps or spec.max_steps
    if limit < 1:
        raise UsageError(f"a panel on {panel.env_id} needs max_episode_steps, as its episodes may never end")
    return limit


def _finite(evaluation: Evaluation, panel: Panel) -> Evaluation:
    """`evaluation`, whose returns must be numbers to compare with."""
    odd = np.flatnonzero(~np.isfinite(evaluation.returns))
    if len(odd):
        raise EnvError(
            f"held-out episode {odd[0]} of {panel.env_id} returned {evaluation.returns[odd[0]]}: "
            "its rewards must be finite"
        )
    return evaluation


class NativeEvaluator:
    """Plays a panel in one native call; memory is allocated once, so that it can be called after every update."""

    def __init__(self, policy: FlatPolicy, spec: NativeEnv, panel: Panel, team: Team) -> None:
        self.policy, self.panel, self.team = policy, panel, team
        n = len(panel.seeds)
        limit = _check_episodes_end(spec, panel)
        self._env = VecEnv(spec, n, max_steps=limit)
        self._env.reset(seed=panel.seeds)
        env = self._env
        # Where every episode starts, kept so that evaluating again is a copy.
        self._start = [array.copy() for array in (env.state, env.elapsed, env.rng, env.obs)]
        self._action_rng = np.concatenate([random.streams(seed, 1, "panel action") for seed in panel.seeds])
        self._action_rng_start = self._action_rng.copy()
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)
        self._cut = np.zeros(n, np.bool_)
        block = kernels.block_size(n)
        self._blocks = -(-n // block)
        work_floats = actor_critic.work_floats(block, policy.actor_sizes)
        self._faults = np.zeros(1, np.int64)
        masks: Record = {}
        if policy.in_parts:
            shown = np.ones((n, sum(policy.branches)), np.uint8)
            masks = {"masks": shown, "mask": spec.mask_address, "faults": self._faults}
        self._frame = Frame(
            kernels.MASKED_EVALUATE if policy.in_parts else kernels.EVALUATE, **masks,
            **(policy.acting_fields() | env.frame_fields() | named(env, "terminated truncated")),
            action_rng=self._action_rng, env_action=env.action, n_envs=n, block=block,
            actions=np.zeros((n, policy.action_size), np.float32), rewards=env.reward, returns=self._returns,
            lengths=self._lengths, cut=self._cut, works=np.zeros((team.n_ranks, work_floats), np.float32),
            deterministic=int(panel.deterministic), work_floats=work_floats,
        )  # fmt: skip

    def __call__(self) -> Evaluation:
        """Play all episodes with the policy as it is now."""
        env = self._env
        live: tuple[Array, ...] = (env.state, env.elapsed, env.rng, env.obs)
        for array, start in zip(live, self._start, strict=True):
            array[:] = start
        self._action_rng[:] = self._action_rng_start
        self._frame.set(limit=self.policy.obs_limit)
        self.team.run(kernels.evaluate, self._frame.record, self._blocks)
        env.raise_failure()
        if self._faults[0]:
            raise no_way_out(self._env.spec.id)
        successes = self.panel.successes(self._returns, self._lengths, ~self._cut, self._cut)
        return _finite(Evaluation.of(self.panel.seeds, self._returns, self._lengths, successes), self.panel)


class BridgeEvaluator:
    """Plays a panel step by step: through Gymnasium or MuJoCo, or where the policy is not one that kernels can run.

    Where environments can be stepped one without the other, only those are that still play, and one whose episode has
    ended takes the next of the panel. Where draws or a policy's memory belong to a row, every episode has its own.
    """

    def __init__(self, policy: Policy, spec: EnvSpec, panel: Panel) -> None:
        self.policy, self.panel = policy, panel
        self._limit = panel.max_episode_steps or spec.max_steps or math.inf
        if isinstance(spec, NativeEnv):
            _check_episodes_end(spec, panel)
        self._env = make_vec(spec, len(panel.seeds) if self._in_place(policy, panel) else _WIDTH)
        if not self._env.pausable and self._env.num_envs < len(panel.seeds):
            self._env.close()
            self._env = make_vec(spec, len(panel.seeds))

    @staticmethod
    def _in_place(policy: Policy, panel: Panel) -> bool:
        """Whether every episode needs a row of its own."""
        return len(panel.seeds) <= _WIDTH or not panel.deterministic or not policy.row_by_row

    def __call__(self) -> Evaluation:
        """Play all episodes with the policy as it is now."""
        panel, env = self.panel, self._env
        episodes = Episodes(panel, env.num_envs)
        rng = None if panel.deterministic else np.random.default_rng(panel.seeds)
        # A policy with a memory needs one per episode; the others are the function that they are.
        act = self.policy.player(env.num_envs)
        if env.pausable:
            for row, episode in enumerate(episodes.of_row):
                env.begin(row, panel.seeds[episode])
        else:
            env.reset(seed=list(panel.seeds))
        while episodes.playing.any():
            actions = self._choose(act, rng, episodes)
            step = env.step_some(actions, episodes.playing) if env.pausable else env.step(actions)
            for row in episodes.take(step, self._limit):
                env.begin(row, panel.seeds[episodes.of_row[row]])
        found = _finite(episodes.evaluation(), panel)
        say_cut(env.spec, panel, int((found.lengths >= self._limit).sum()))
        return found

    def _choose(self, act: Callable[..., Array], rng: np.random.Generator | None, episodes: Episodes) -> Array:
        """Actions for all rows; those of rows that no longer play are not used."""
        env = self._env
        masked = env.spec.masked and self.policy.in_parts
        return act(env.obs, rng, env.masks) if masked else act(env.obs, rng)

    def close(self) -> None:
        """Let go of the environments."""
        self._env.close()


class Episodes:
    """The episodes of a panel in the rows of a vector environment, of which there may be fewer."""

    def __init__(self, panel: Panel, rows: int) -> None:
        n = len(panel.seeds)
        self._panel, self._says_success = panel, False
        self.of_row: I64 = np.arange(rows)
        """Which episode each row plays."""
        self.playing: Bool = np.ones(rows, np.bool_)
        """Rows whose episode goes on."""
        self._next = rows
        self._returns, self._lengths = np.zeros(n), np.zeros(n, np.int64)
        self._ended: Record = {name: np.zeros(n, np.bool_) for name in ("terminated", "truncated", "reported")}

    def take(self, step: Step, limit: float) -> list[int]:
        """Note a step of the rows that play; those whose episode ended and that got another one."""
        _, reward, terminated, truncated, infos = step
        rows = np.flatnonzero(self.playing)
        which = self.of_row[rows]
        self._returns[which] += reward[rows]
        self._lengths[which] += 1
        if math.isinf(limit) and self._lengths[which].max() >= _ENDLESS:
            raise UsageError(
                f"a held-out episode of {self._panel.env_id} has not ended after {_ENDLESS:,} steps: give its panel "
                "max_episode_steps"
            )
        cut = (truncated[rows] | (self._lengths[which] >= limit)) & ~terminated[rows]
        over = terminated[rows] | cut
        done, ended = rows[over], which[over]
        if not len(done):
            return []
        self._ended["terminated"][ended], self._ended["truncated"][ended] = terminated[done], cut[over]
        final = infos.get("final_info", infos)
        if "is_success" in final:
            self._says_success = True
            self._ended["reported"][ended] = np.asarray(final["is_success"])[done]
        following = range(self._next, min(self._next + len(done), len(self._panel.seeds)))
        refilled = [int(row) for row in done[: len(following)]]
        self.of_row[refilled] = following
        self._next += len(following)
        self.playing[done[len(following) :]] = False
        return refilled

    def evaluation(self) -> Evaluation:
        """What all episodes came to."""
        ended = self._ended
        reported = ended["reported"] if self._says_success else None
        judged = (self._returns, self._lengths, ended["terminated"], ended["truncated"], reported)
        return Evaluation.of(self._panel.seeds, self._returns, self._lengths, self._panel.successes(*judged))
