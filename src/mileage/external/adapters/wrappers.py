"""Wrappers between a policy and the environment that it was trained in: in an exam it sees and acts through them too.

What a wrapper has learned (means and deviations of observations) is used as it stands and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorActionWrapper, VectorObservationWrapper, VectorWrapper

from mileage.envs.registry import resolve
from mileage.errors import UsageError
from mileage.external.exam.actors import Function
from mileage.ledger.panels import Panel
from mileage.types import Action, Array, Observation

Foreign = Any
"""A wrapper or an environment of any kind."""
_PASSING = frozenset((
    "Autoreset", "HumanRendering", "Monitor", "NormalizeReward", "OrderEnforcing", "PassiveEnvChecker",
    "RecordEpisodeStatistics", "RecordVideo", "RenderCollection", "TimeLimit", "TransformReward",
))  # fmt: skip
"""Wrappers that neither change what is shown nor what is done."""


class View:
    """How a policy sees an environment and acts in it."""

    def __init__(self, env: Foreign, panel: Panel) -> None:
        """`env` is what training stepped; UsageError if one of its wrappers cannot be applied to other episodes."""
        around, one = [], env
        while isinstance(env, VectorWrapper | gymnasium.Wrapper):
            around.append(env)
            env = env.env
        several = isinstance(env, gymnasium.vector.VectorEnv) or "envs" in vars(env)
        if several and not vars(env).get("envs"):
            raise UsageError(
                f"{type(env).__name__} has its environments in other processes, where their wrappers cannot be seen: "
                "train with gymnasium.vector.SyncVectorEnv"
            )
        singles, around = (env.envs, around) if several else ([one], [])
        chains = [_chain(each) for each in singles]
        own = _beyond(chains[0], panel)
        # Of each wrapper, the same one of every environment; innermost last.
        self._wrappers = [[each] for each in around] + [[chain[at] for chain in chains] for at in range(own)]
        self._wrappers = [each for each in self._wrappers if _matters(each[0])]

    def through(self, policy: Function) -> Function:
        """`policy` as a function of the bare environment's observations, to its actions."""
        if not self._wrappers:
            return policy
        return lambda observations: self.actions(policy(self.observations(observations)))

    def observations(self, shown: Observation) -> Observation:
        """Observations (N, …) as the policy sees them."""
        for same in reversed(self._wrappers):
            shown = _observed(same, shown)
        return shown

    def actions(self, taken: Action) -> Action:
        """Actions (N, …) as the environment gets them."""
        for wrapper, *_ in self._wrappers:
            if isinstance(wrapper, VectorActionWrapper):
                taken = wrapper.actions(taken)
            elif isinstance(wrapper, gymnasium.ActionWrapper):
                taken = np.stack([wrapper.action(each) for each in np.asarray(taken)])
        return taken


def _chain(env: Foreign) -> list[Foreign]:
    """A single environment's wrappers, outermost first, and the environment itself."""
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def _beyond(chain: list[Foreign], panel: Panel) -> int:
    """How many wrappers the panel's environment does not have; 0 if it has others in their place."""
    make = vars(resolve(panel.env_id, **panel.env_kwargs)).get("make")
    if make is None and panel.env_id not in gymnasium.registry:  # one of our own kind, which has no wrappers
        return len(chain) - 1
    env = make(**panel.env_kwargs) if make else gymnasium.make(panel.env_id, **panel.env_kwargs)
    own = [type(each).__name__ for each in _chain(env)]
    env.close()
    for name in ("observation_space", "action_space"):
        theirs, panels = (vars(each.unwrapped)[name] for each in (chain[-1], env))
        if _form(theirs) != _form(panels):
            raise UsageError(f"the {name} of the panel's {panel.env_id} is {panels}, that of training {theirs}")
    rest = [type(each).__name__ for each in chain]
    while own and rest and own[-1] == rest[-1]:
        own.pop()
        rest.pop()
    return 0 if set(own) - _PASSING else min(len(rest), len(chain) - 1)


def _form(space: Foreign) -> tuple[object, ...]:
    return type(space), space.shape, vars(space).get("n")


def _matters(wrapper: Foreign) -> bool:
    kind = type(wrapper)
    if kind.__name__ in _PASSING or isinstance(wrapper, gymnasium.RewardWrapper):
        return False
    if "obs_rms" in vars(wrapper) or isinstance(
        wrapper,
        gymnasium.ObservationWrapper | gymnasium.ActionWrapper | VectorObservationWrapper | VectorActionWrapper,
    ):
        return True
    base = VectorWrapper if isinstance(wrapper, VectorWrapper) else gymnasium.Wrapper
    if kind.step is not base.step or kind.reset is not base.reset:
        raise UsageError(
            f"wrapper {kind.__name__} stands between policy and environment and cannot be applied to other episodes: "
            "make it part of the panel's environment"
        )
    return False


def _observed(same: Sequence[Foreign], shown: Observation) -> Observation:
    """Observations through one wrapper, which every environment has one of."""
    wrapper = same[0]
    if "obs_rms" in vars(wrapper):
        means, variances = (np.array([vars(vars(each)["obs_rms"])[name] for each in same]) for name in ("mean", "var"))
        mean = means.mean(axis=0)  # each has seen as many observations as any other
        variance = (variances + means**2).mean(axis=0) - mean**2
        return np.asarray((_array(shown) - mean) / np.sqrt(variance + wrapper.epsilon), np.float32)
    if isinstance(wrapper, gymnasium.ObservationWrapper):
        return np.stack([wrapper.observation(each) for each in _array(shown)])
    return np.asarray(wrapper.observations(shown)) if isinstance(wrapper, VectorObservationWrapper) else shown


def _array(shown: Observation) -> Array:
    if not isinstance(shown, np.ndarray):
        raise UsageError("wrappers of observations with several parts cannot be applied in an exam")
    return shown
