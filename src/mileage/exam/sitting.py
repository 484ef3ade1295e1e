"""Sitting an exam: any actor plays the episodes of a panel, by the code that evaluates policies of our own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mileage._errors import UsageError
from mileage._types import I64, U8, Array
from mileage.contracts import EnvSpec, Policy
from mileage.envs.registry import resolve
from mileage.exam.actors import Actor, chosen
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from mileage.training.asked import checked_panel
from mileage.training.evaluation import BridgeEvaluator, Episodes


class Sitting(BridgeEvaluator):
    """An actor before a panel; only episodes that go on are shown to it."""

    policy: _Seat

    def __init__(self, actor: Actor, spec: EnvSpec, panel: Panel, unit_actions: bool) -> None:
        if not panel.deterministic and not actor.samples:
            raise UsageError("the panel asks for sampled actions: this policy has only its best ones")
        super().__init__(_Seat(actor, spec, unit_actions), spec, panel)

    def __call__(self) -> Evaluation:
        """Play all episodes."""
        self.policy.actor.begin(len(self.panel.seeds), self.panel.deterministic)
        return super().__call__()

    def _choose(self, act: Callable[..., Array], rng: np.random.Generator | None, episodes: Episodes) -> Array:
        playing = np.flatnonzero(episodes.playing)
        rows = self.policy.choose(self._env.obs[playing], episodes.of_row[playing], rng)
        actions = np.zeros((self._env.num_envs, *rows.shape[1:]), rows.dtype)
        actions[playing] = rows
        return actions


class _Seat(Policy):
    """An actor in the place of a policy."""

    def __init__(self, actor: Actor, spec: EnvSpec, unit_actions: bool) -> None:
        self.actor, self._spec, self._unit = actor, spec, unit_actions
        self.obs_size, self.n_actions, self.action_size = spec.obs_size, spec.n_actions, spec.action_size

    def choose(self, obs: Array, episodes: I64, rng: np.random.Generator | None) -> Array:
        """Action rows for observation rows."""
        answer = self.actor.act(self._spec.codec.shown(obs), episodes)
        return chosen(answer, self._spec, len(obs), rng, self._unit)

    @property
    def row_by_row(self) -> bool:
        """Whether episodes may follow each other in a row."""
        return not self.actor.remembers

    def live_arrays(self) -> dict[str, Array]:
        """Nothing that is ours."""
        return {}

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """Actions for rows that are each an episode."""
        return self.choose(obs, np.arange(len(obs)), rng)


def spec_of(panel: Panel) -> EnvSpec:
    """The environment of a panel; UsageError if the one that is here is another version."""
    spec = resolve(panel.env_id, **panel.env_kwargs)
    checked_panel(panel, panel.env_id, spec, dict(panel.env_kwargs))
    if panel.perturbations:
        raise UsageError(f"panel perturbation {panel.perturbations[0]!r} is not known")
    return spec
