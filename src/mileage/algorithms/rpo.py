"""Robust policy optimisation (Rahman and Xue, 2022, arXiv:2212.07536): PPO whose update sees perturbed means.

While a rollout is learned from, every mean of a continuous action is shifted by uniform noise, drawn anew for every
sample in every epoch, which keeps the policy from becoming certain too soon. A Gaussian with a shifted mean gives an
action the density that the unshifted one gives to the action shifted the other way: each epoch is one of PPO's on
shifted actions, by PPO's own kernels.
"""

from __future__ import annotations

import abc
import dataclasses

import numpy as np

from mileage.algorithms.ppo import PPO, PPOConfig
from mileage.algorithms.rollout_learner import RolloutLearner
from mileage.config import Weight
from mileage.contracts import EnvSpec, Policy, VectorEnv
from mileage.description import Call, Description, Stages, Work
from mileage.errors import UsageError
from mileage.kernels import random
from mileage.types import F32, Array, Team


@dataclasses.dataclass(frozen=True)
class RPOConfig(PPOConfig):
    """Hyperparameters of RPO."""

    perturbation: Weight = 0.5
    """How far means are shifted at most, in units of half the action range."""


class PerturbedMeans(RolloutLearner):
    """A learner whose update runs epoch by epoch, each with other noise on the means."""

    def __init__(self, config: RPOConfig, env: VectorEnv, policy: Policy, team: Team, seed: int) -> None:
        self.epochs, self.perturbation = config.epochs, np.float32(config.perturbation)
        self.perturbation_rng = random.streams(seed, config.batch_size, "perturbation")
        super().__init__(dataclasses.replace(config, epochs=1), env, policy, team, seed)
        self._steps_per_epoch = -(-self.batch // min(config.minibatch, self.batch))

    @classmethod
    def check_spec(cls, spec: EnvSpec) -> None:
        """Discrete actions have no means."""
        if spec.choices:
            raise UsageError("rpo needs continuous actions: use ppo for discrete ones")

    def _update_policy(self, rate: float, clip: float) -> None:
        taken, totals = self.actions.copy(), np.zeros_like(self.totals)
        for _ in range(self.epochs):
            draws = random.uniform_rows(self.perturbation_rng, self.policy.action_size)
            self._learn_from(taken - self.perturbation * (np.float32(2.0) * draws - np.float32(1.0)))
            before = self.adam_steps
            self._learn_epoch(rate, clip)
            totals += self.totals
            if self.adam_steps - before < self._steps_per_epoch:  # the KL target ended the update
                break
        self._learn_from(taken)
        self.totals[:] = totals

    @abc.abstractmethod
    def _learn_epoch(self, rate: float, clip: float) -> None:
        """PPO's update, of one epoch."""

    def _learn_from(self, actions: F32) -> None:
        """Let the update see these actions (B, A)."""
        self.actions[:] = actions

    def _learner_arrays(self) -> dict[str, Array]:
        return super()._learner_arrays() | {"perturbation_rng": self.perturbation_rng}


def epoch_by_epoch(found: Description, epochs: int) -> Description:
    """The description of a learner that makes its call to learn so many times."""

    def repeated(work: Work) -> Work:
        return dataclasses.replace(work, repeats=epochs * work.repeats, bytes_touched=epochs * work.bytes_touched)

    def called(call: Call, stages: Stages) -> Call:
        def run(stage: int | None, turn: int) -> None:
            for _ in range(epochs):
                stages.run(stage, turn)

        return dataclasses.replace(call, run=lambda: run(None, 0), stages=Stages(stages.names, run))

    work = {phase: repeated(each) if phase == "learn" else each for phase, each in found.work.items()}
    calls = {phase: called(each, each.stages) if each.stages else each for phase, each in found.calls.items()}
    return dataclasses.replace(found, work=work, calls=calls)


class RPO(PerturbedMeans, PPO):
    """RPO on built parts: a vector environment, a policy, a team of threads."""

    Config = RPOConfig
    _learn_epoch = PPO._update_policy

    def describe(self) -> Description:
        """As PPO's, with as many calls to learn as there are epochs."""
        return epoch_by_epoch(PPO.describe(self), self.epochs)
