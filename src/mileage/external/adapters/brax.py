"""Brax's PPO and SAC, also on MJX and MuJoCo Playground environments.

    with brax.recorded(algorithm="ppo") as hooks:
        ppo.train(environment=env, **hooks.ppo, num_timesteps=1_000_000, ...)

Phases: `compile` (as JAX reports it), `eval` for exams; a training epoch is one compiled call and stays `other`, with
Brax's own evaluations in it, which are claimed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Unpack

import numpy as np

from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module
from mileage.types import Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from brax.training.types import Params as Foreign

NOT_SEPARATED = "stepping, choosing, advantages, updates and Brax's own evaluations are one compiled call: other"


class Hooks:
    """What to give to `train`."""

    def __init__(self, session: Session, make_policy: Callable[..., Foreign] | None) -> None:
        self._session, self._make = session, make_policy
        self._params: Foreign = None

    @property
    def sac(self) -> dict[str, Foreign]:
        """Arguments of SAC's `train`, which tells no parameters: only the policy it returns can be examined."""
        return {"progress_fn": self.progress}

    @property
    def ppo(self) -> dict[str, Foreign]:
        """Arguments of PPO's `train`."""
        return {"progress_fn": self.progress, "policy_params_fn": self.params}

    def progress(self, num_steps: int, metrics: Foreign) -> None:
        """Brax's progress: its figures, claimed; `training/walltime` leaves its evaluations out."""
        session = self._session
        session.steps = int(num_steps)
        seconds = float(metrics.get("training/walltime", 0.0)) + float(metrics.get("eval/walltime", 0.0))
        session.claim(metrics, steps=num_steps, seconds=seconds or None)

    def params(self, num_steps: int, make_policy: Foreign, params: Foreign) -> None:
        """Brax's parameters, before its own evaluation of them."""
        self._session.steps = int(num_steps)
        self._make, self._params = make_policy, params
        if self._session.due():
            self._session.examine(self.policy())

    def finished(self, make_policy: Foreign, params: Foreign) -> None:
        """What `train` returned, where it does not tell parameters on its way."""
        self._make, self._params = make_policy, params

    def policy(self) -> Callable[[Observation], Array]:
        """The policy as it stands: its normalisation is among the parameters."""
        import jax

        assert self._make is not None
        act = jax.jit(self._make(self._params, deterministic=True))
        key = jax.random.PRNGKey(0)
        return lambda observations: np.asarray(act(jax.numpy.asarray(observations, jax.numpy.float32), key)[0])

    def last(self) -> None:
        """The exam at the end."""
        if self._params is not None:
            self._session.examine_last(self.policy())


@contextlib.contextmanager
def recorded(
    *, algorithm: str = "ppo", config: dict[str, object] | None = None, **settings: Unpack[SessionSettings]
) -> Iterator[Hooks]:
    """Record one `train`. Actions of Brax are from -1 to 1, and stand for the bounds in a panel's environment."""
    framework_module("brax", "brax")
    session = Session(
        "brax", settings, algorithm=algorithm, config=config, unit_actions=True, not_separated=NOT_SEPARATED
    )
    hooks = Hooks(session, None)
    with closing(session, hooks.last):
        yield hooks
