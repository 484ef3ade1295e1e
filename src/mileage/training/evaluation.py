"""Held-out evaluation: what users ask for, checked, and a policy that plays every episode of a panel once."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from mileage.algorithms.registry import NETWORKS
from mileage.codec import no_way_out
from mileage.contracts import EnvSpec, Policy, Step
from mileage.envs.known import HIGHEST_RETURNS
from mileage.envs.native.vector import NativeEnv, VecEnv
from mileage.envs.registry import make_vec
from mileage.errors import EnvError, UsageError, require
from mileage.kernels import actor_critic, random
from mileage.kernels import rollout as kernels
from mileage.kernels.machine.frames import Frame
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation, Target
from mileage.policies.mlp import FlatPolicy
from mileage.records import ReadRecord, Record, named
from mileage.system import usable_cores
from mileage.types import I64, Array, Bool, Team

# --- What users ask of an agent, checked: numbers of steps, panels, names of networks ---
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
        if policy.structured_actions:
            shown = np.ones((n, sum(policy.branches)), np.uint8)
            masks = {"masks": shown, "mask": spec.mask_address, "faults": self._faults}
        self._frame = Frame(
            kernels.MASKED_EVALUATE if policy.structured_actions else kernels.EVALUATE, **masks,
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
        found = _finite(Evaluation.of(self.panel.seeds, self._returns, self._lengths, successes), self.panel)
        say_cut(env.spec, self.panel, int(self._cut.sum()))
        return found


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
        masked = env.spec.masked and self.policy.structured_actions
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
