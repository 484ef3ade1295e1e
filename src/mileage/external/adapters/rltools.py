"""RLtools' Python interface.

    module = rltools_package.SAC(env_factory)
    with rltools.recorded(module.State(seed), panel="Pendulum-v1", target="mean_return>=-200") as run:
        while not run.step():
            pass

A step of its loop is one compiled call: stepping, choosing and learning are `other`, but for an environment that is
Python's. Compilation by the C++ compiler comes before, in `init`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module
from mileage.external.exam import Actor
from mileage.types import I64, Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from rltools import SAC as Foreign  # noqa: N811

NOT_SEPARATED = "a step of its loop is one compiled call: stepping, choosing and learning are other"


class Loop:
    """RLtools' loop state, recorded."""

    def __init__(self, state: Foreign, session: Session, steps_per_call: int) -> None:
        self.state, self._session, self._width = state, session, steps_per_call

    def step(self) -> bool:
        """One step of the loop; whether it has ended, or the target is met."""
        session = self._session
        ended = bool(self.state.step())
        session.steps += 0 if ended else self._width  # the call that says so takes none
        if session.due():
            session.examine(RLtoolsPolicy(self.state))
        return ended or session.stop

    def last(self) -> None:
        """The exam at the end."""
        self._session.claim({}, steps=self._session.steps)
        self._session.examine_last(RLtoolsPolicy(self.state))


class RLtoolsPolicy(Actor):
    """Actions of a loop state, which come one observation at a time and stand for the bounds from -1 to 1."""

    def __init__(self, state: Foreign) -> None:
        self._state = state

    def act(self, observations: Observation, episodes: I64) -> Array:
        """Ask for each."""
        rows = np.asarray(observations, np.float64)
        return np.asarray([np.asarray(self._state.action(row)).reshape(-1) for row in rows])


@contextlib.contextmanager
def recorded(
    state: Foreign, *, steps_per_call: int = 1, algorithm: str = "", **settings: Unpack[SessionSettings]
) -> Iterator[Loop]:
    """Record the loop over `state.step()`; `steps_per_call` environment steps are in one, N_ENVIRONMENTS of SAC."""
    framework_module("rltools", "rltools")
    session = Session("rltools", settings, algorithm=algorithm, unit_actions=True, not_separated=NOT_SEPARATED)
    loop = Loop(state, session, steps_per_call)
    with closing(session, loop.last):
        yield loop
