"""What can be put back: a learner's arrays and counters, and its environments' where they can be saved."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from mileage._errors import UsageError
from mileage._types import Array
from mileage.contracts import Learner, Saved


class StatefulLearner(Learner):
    """A learner whose state is arrays by name and whole numbers.

    Environments that cannot be saved start anew when it is restored, and their running episodes with them.
    """

    @abc.abstractmethod
    def _learner_arrays(self) -> dict[str, Array]:
        """Live arrays of the policy and of learning."""

    @abc.abstractmethod
    def _episode_arrays(self) -> dict[str, Array]:
        """Live arrays that belong to the environments' running episodes."""

    @abc.abstractmethod
    def counters(self) -> dict[str, int]:
        """The scalars that belong to `state_arrays`."""

    @abc.abstractmethod
    def _set_counters(self, counters: Mapping[str, int]) -> None:
        """Put back what `counters` returned, after all arrays; UsageError if these make no sense."""

    def _env_arrays(self) -> dict[str, Array]:
        return {f"env_{name}": array for name, array in self.env.saved_arrays().items()}

    def _replay_arrays(self) -> dict[str, Array]:
        """What is remembered of earlier steps: as large as that is, and no live memory."""
        return {}

    def state_arrays(self) -> dict[str, Array]:
        """Everything of fixed size that decides how training goes on, by name; the arrays are live."""
        env = self._env_arrays()
        return self._learner_arrays() | (env | self._episode_arrays() if env else {})

    def saved(self) -> Saved:
        """What a checkpoint holds; an environment's arrays are copied, as its memory ends with it."""
        arrays = self.state_arrays() | self._replay_arrays()
        env = {name: arrays[name].copy() for name in self._env_arrays()}
        return Saved(arrays | env, self.counters())

    def restore(self, saved: Saved) -> None:
        """Go on where `saved` was taken; without an environment's arrays its episodes start anew."""
        counters = saved.counters
        if counters.keys() != self.counters().keys() or min(counters.values()) < 0:
            raise UsageError(f"counters cannot be {dict(counters)}")
        env = self._env_arrays()
        resumes = bool(env.keys() & saved.arrays.keys())
        saved.write_to(self.state_arrays() if resumes else self._learner_arrays())
        self._set_counters(counters)
