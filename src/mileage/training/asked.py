"""What users ask of an agent, checked: numbers of steps, panels, names of networks."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from typing import Any

from mileage._cores import usable_cores
from mileage._errors import UsageError, require
from mileage._records import ReadRecord, Record
from mileage.algorithms.backends import NETWORKS
from mileage.contracts import EnvSpec
from mileage.envs.known import HIGHEST_RETURNS
from mileage.envs.native.vector import NativeEnv
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Target

EPISODE_LIMIT = 1000
"""Steps after which a held-out episode is cut off in an environment that has no time limit."""
EPISODES = 100
"""Held-out episodes, where nothing else was asked for and they cost next to nothing."""
_FEWEST = 5
# Steps of training for one held-out episode, over the longest that it may be.
_STEPS_PER_LIMIT = 30


def whole(name: str, value: object, least: int) -> int:
    """`value` as an int of at least `least`; 1e6 is a whole number, 1.5 and "10" are not."""
    right = not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)
    if not right or int(value) != value:  # type: ignore[call-overload]
        raise UsageError(f"{name} must be a whole number, not {value!r}")
    number: int = int(value)  # type: ignore[call-overload]
    require(number >= least, name, value, f"at least {least}" if least else "0 or more")
    return number


def usual_policy(policy: object, env: object) -> object:
    """The network, where none was asked for: a convolutional one for the images of Atari games."""
    return "cnn" if policy is None and isinstance(env, str) and env.startswith("ALE/") else policy


def threads(number: int | None) -> int:
    """How many threads are used at most, where so many were asked for."""
    require(number is None or number >= 1, "threads", number, "at least 1")
    return usable_cores() if number is None else number


def say_beyond(spec: EnvSpec, target: Target | None) -> None:
    """Say that no episode of a built-in environment returns as much as a target asks for."""
    highest = HIGHEST_RETURNS.get(spec.id) if isinstance(spec, NativeEnv) else None
    if target is not None and target.aggregate != "success_rate" and target.threshold > (highest or math.inf):
        said = f"target {target} cannot be reached: no episode of {spec.id} returns more than {highest:g}"
        print(f"mileage: {said}", file=sys.stderr)


def episode_limit(spec: EnvSpec) -> int | None:
    """The limit of held-out episodes in an environment that has none; None where it has one."""
    return None if spec.max_steps else EPISODE_LIMIT


def usual_episodes(spec: EnvSpec, steps: int) -> int:
    """Held-out episodes of a training of `steps` that Python steps, where nobody asked for a number.

    From 5 to 100, as many as take a thirtieth of the training's steps if all are as long as they may be.
    """
    return min(EPISODES, max(_FEWEST, steps // (_STEPS_PER_LIMIT * (spec.max_steps or EPISODE_LIMIT))))


def default_panel(
    env_id: str, spec: EnvSpec, env_kwargs: ReadRecord, target: Target | None, episodes: int, success: str | None
) -> Panel:
    """The held-out exam of an environment: `episodes` episodes whose seeds training cannot use."""
    return Panel.default(
        env_id, episodes, env_kwargs=env_kwargs, env_version=str(spec.version), success=success,
        aggregate="mean_return" if target is None else str(target.aggregate), max_episode_steps=episode_limit(spec),
    )  # fmt: skip


def say_cut(spec: EnvSpec, panel: Panel, cut: int) -> None:
    """Say that `cut` held-out episodes were ended by the default limit of an environment that has none."""
    if cut and not spec.max_steps and panel.max_episode_steps == EPISODE_LIMIT:
        warnings.warn(
            f"environment {panel.env_id!r} has no time limit: {cut} of {len(panel.seeds)} held-out episodes were ended "
            f"after {panel.max_episode_steps:,} steps, as the panel's max_episode_steps says",
            stacklevel=2,
        )


def check_callbacks(callbacks: tuple[object, ...]) -> None:
    """UsageError unless all can be called."""
    for each in callbacks:
        if not callable(each):
            raise UsageError(f"callback must be a function, or several, not {each!r}")


def env_and_policy(first: Any, second: Any, env: Any, policy: Any) -> tuple[Any, Any]:
    """Environment and network of `PPO(env)`, and of `PPO("MlpPolicy", env)` as Stable-Baselines3 has it."""
    given = [each for each in (first, second, env) if each is not None]
    if len(given) == 2 and isinstance(given[0], str) and given[0] in NETWORKS:
        if policy is not None:
            raise UsageError(f"give the network once: it is {given[0]!r} and policy={policy!r}")
        return given[1], given[0]
    if len(given) > 1:
        named = " and ".join(map(repr, given))
        raise UsageError(f"give one environment, after the name of a network if you like, not {named}")
    if given and isinstance(given[0], str) and given[0] in NETWORKS:
        raise UsageError(f"{given[0]!r} is the name of a network: give the environment too")
    return (given or [None])[0], policy


def checked_panel(panel: object, env_id: str, spec: EnvSpec, env_kwargs: Record) -> Panel:
    """`panel` if it is one of this environment."""
    if not isinstance(panel, Panel):
        raise UsageError(
            f"panel must be a mileage.Panel, not {panel!r}: for a number of episodes give default_panel(episodes=...)"
        )
    if panel.env_id not in (env_id, spec.id):
        raise UsageError(f"panel is of environment {panel.env_id!r}, not {env_id!r}: another exam proves nothing here")
    if panel.env_version and panel.env_version != spec.version:
        raise UsageError(f"panel is of another version of environment {env_id!r} than the one that is here")
    if panel.env_kwargs and panel.env_kwargs != Panel(env_id, panel.seeds[:1], env_kwargs).env_kwargs:
        raise UsageError(f"panel has env_kwargs {dict(panel.env_kwargs)}, the agent's are {env_kwargs}")
    return panel


def check_same_spaces(now: EnvSpec, then: EnvSpec) -> None:
    """UsageError if an environment shows or takes something else than the one that it is to replace."""
    for name in ("obs_size", "n_actions", "action_size", "leaves"):
        if getattr(now, name) != getattr(then, name):
            raise UsageError(f"{name} of {then.id!r} is {getattr(then, name)}, not {getattr(now, name)} as before")
    for name in ("action_low", "action_high"):
        if list(getattr(now, name)) != list(getattr(then, name)):
            raise UsageError(f"{name} of {then.id!r} is {getattr(then, name)}, not {getattr(now, name)} as before")
