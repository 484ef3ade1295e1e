"""Held-out evaluation: a policy plays every episode of a panel once."""

from __future__ import annotations

import math

import numpy as np

from mileage._errors import UsageError
from mileage._records import Record, named
from mileage._types import Array
from mileage.codec import no_way_out
from mileage.contracts import EnvSpec, Policy, Team
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
        if self._faults[0]:
            raise no_way_out(self._env.spec.id)
        successes = self.panel.successes(self._returns, self._lengths, ~self._cut, self._cut)
        return Evaluation.of(self.panel.seeds, self._returns, self._lengths, successes)


class BridgeEvaluator:
    """Plays a panel step by step: through Gymnasium or MuJoCo, or where the policy is not one that kernels can run."""

    def __init__(self, policy: Policy, spec: EnvSpec, panel: Panel) -> None:
        self.policy, self.panel = policy, panel
        if isinstance(spec, NativeEnv):
            _check_episodes_end(spec, panel)
        self._env = make_vec(spec, len(panel.seeds))

    def __call__(self) -> Evaluation:
        """Play all episodes with the policy as it is now."""
        env, n = self._env, len(self.panel.seeds)
        obs, _ = env.reset(seed=list(self.panel.seeds))
        rng = None if self.panel.deterministic else np.random.default_rng(self.panel.seeds)
        returns, lengths = np.zeros(n), np.zeros(n, np.int64)
        ended: Record = {name: np.zeros(n, np.bool_) for name in ("terminated", "truncated", "reported")}
        alive = np.ones(n, np.bool_)
        says_success = False
        limit = self.panel.max_episode_steps or math.inf
        # A policy with a memory needs one per episode; the others are the function that they are.
        act = self.policy.player(n)
        masked = env.spec.masked and self.policy.in_parts
        while alive.any():
            chosen = act(obs, rng, env.masks) if masked else act(obs, rng)
            obs, reward, terminated, truncated, infos = env.step(chosen)
            returns[alive] += reward[alive]
            lengths[alive] += 1
            truncated = truncated | (lengths >= limit)
            done = alive & (terminated | truncated)
            ended["terminated"][done], ended["truncated"][done] = terminated[done], truncated[done]
            final = infos.get("final_info", infos)
            if done.any() and "is_success" in final:
                says_success = True
                ended["reported"][done] = np.asarray(final["is_success"])[done]
            alive &= ~done
        reported = ended["reported"] if says_success else None
        successes = self.panel.successes(returns, lengths, ended["terminated"], ended["truncated"], reported)
        return Evaluation.of(self.panel.seeds, returns, lengths, successes)
