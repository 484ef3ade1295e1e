"""What an agent says about observations: actions, the distribution they come from, and how an exam goes."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

from mileage.contracts import Distribution, EnvSpec, Policy
from mileage.errors import DivergedError, UsageError
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation, Target
from mileage.records import Record
from mileage.training import evaluation
from mileage.types import U8, Action, ActionMask, Array, Memory, Observation


class Acting:
    """A policy for the observations and actions of an environment, in the environment's own form."""

    policy: Policy
    spec: EnvSpec
    env_id: str
    env_kwargs: Record
    threads: int
    seed: int
    _sound = False
    """Whether the policy's numbers were looked at since they last changed."""

    def predict(
        self,
        observation: Observation,
        state: Memory = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,
        action_masks: ActionMask = None,
    ) -> tuple[Action, Memory]:
        """Actions for one observation or a batch, and the memory of a recurrent policy for the next call, else None.

        Observations are as the environment gives them, or flat (O,) or (N, O); actions are as it takes them. `state`
        and `episode_start` (N,) bool are for recurrent policies. `action_masks` say what is possible, true or 1 for
        every way to choose, (M,) or (N, M); without them everything is.
        """
        rows, single = self._rows(observation)
        rng = None if deterministic else self._predict_rng
        masks = self._masks(action_masks, len(rows))
        given = () if masks is None else (masks,)
        chosen, state = self.policy.predict(rows, state, episode_start, rng, *given)
        return self.spec.codec.actions(chosen, single), state

    def distribution(self, observation: Observation, action_masks: ActionMask = None) -> Distribution:
        """What the policy says about one observation or a batch: probabilities, means, deviations and values.

        Arguments as for `predict`. What the arrays are stands in `mileage.contracts.Distribution`.
        """
        rows, single = self._rows(observation)
        found = self.policy.distribution(rows, self._masks(action_masks, len(rows)))
        return found.first() if single else found

    def _checked(self, panel: object) -> Panel:
        return evaluation.checked_panel(panel, self.env_id, self.spec, self.env_kwargs)

    def default_panel(
        self, target: Target | None = None, episodes: int = evaluation.EPISODES, success: str | None = None
    ) -> Panel:
        """The held-out exam of this environment: `episodes` episodes whose seeds training cannot use."""
        return evaluation.default_panel(self.env_id, self.spec, self.env_kwargs, target, episodes, success)

    def evaluate(self, panel: Panel | None = None) -> Evaluation:
        """Play a held-out panel with the policy as it is."""
        from mileage.kernels.machine.blas import single_threaded_blas
        from mileage.kernels.machine.team import Team
        from mileage.training.evaluation import make_evaluator

        self._sound = False
        self._check_sound()
        team = Team(self.threads, adaptive=True)
        try:
            with single_threaded_blas():
                exam = self.default_panel() if panel is None else self._checked(panel)
                return make_evaluator(self.policy, self.spec, exam, team)()
        finally:
            team.close()

    def _check_sound(self) -> None:
        """DivergedError if the policy holds a number that is none: what it says would mean nothing."""
        if self._sound:
            return
        for name, array in self.policy.live_arrays().items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise DivergedError(
                    f"{name} of the policy holds numbers that are not finite, as training leaves them that diverged: "
                    "load an earlier checkpoint"
                )
        self._sound = True

    def _rows(self, observation: Observation) -> tuple[Array, bool]:
        """Observations as the policy takes them, and whether there is one alone; UsageError for what is not finite."""
        self._check_sound()
        rows, single = self.spec.codec.rows(observation)
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise UsageError("observation must be finite numbers: an action for another would mean nothing")
        return rows, single

    def _masks(self, given: ActionMask, n: int) -> U8 | None:
        return None if given is None else self.spec.codec.masks(given, n)

    @functools.cached_property
    def _predict_rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, 2])
