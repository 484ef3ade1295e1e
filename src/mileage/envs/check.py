"""Whether an environment keeps its word, point by point: what `mileage env check` reports.

A native one is played in plain Python first, then compiled so that it looks at every number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from mileage.contracts import EnvSpec, VectorEnv
from mileage.envs.native.compile import place
from mileage.envs.native.trial import TrialTimeoutError, at_most, play, random_actions
from mileage.envs.native.vector import NativeEnv
from mileage.envs.vector import SpacedSpec
from mileage.errors import EnvCompileError, EnvError, MileageError
from mileage.types import Array

DEFAULT_STEPS = 10_000
"""Steps of all environments together."""
_PLAIN_STEPS, _PLAIN_SECONDS = 1000, 5.0
_ROUND_SECONDS, _LOOK_SECONDS = 20.0, 0.05
_N_ENVS = 4


@dataclasses.dataclass(frozen=True)
class Point:
    """One thing that was looked at."""

    name: str
    problem: str = ""
    """What is wrong, in a sentence; empty if nothing is."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem


def check(spec: EnvSpec, *, steps: int = DEFAULT_STEPS, seed: int = 0) -> Iterator[Point]:
    """Look at an environment from all sides; ends after the first point that leaves nothing to look at."""
    if isinstance(spec, NativeEnv):
        native = dataclasses.replace(spec, checked=True)
        plain = _point("runs in plain Python within its rows", lambda: _play_plain(native, seed))
        yield plain
        compiled = _point("compiles", lambda: native.advance_address)
        yield compiled
        if not plain.ok or not compiled.ok:
            return
        spec = native
    episodes = _Played(spec, steps, seed)
    played = _point("plays on, with finite rewards and observations", episodes.play_watched)
    yield played
    if played.ok:
        yield Point("keeps to its observation space", episodes.outside)
        yield Point("ends its episodes", episodes.endless)
        yield _point("repeats itself with the same seed", episodes.play_again)


def _point(name: str, look: Callable[[], object]) -> Point:
    try:
        look()
    except MileageError as error:
        return Point(name, str(error))
    return Point(name)


def _play_plain(spec: NativeEnv, seed: int) -> None:
    """EnvError for whatever goes wrong in plain Python."""
    try:
        with at_most(_PLAIN_SECONDS):
            play(spec, spec.source, seed, _PLAIN_STEPS)
    except (EnvError, EnvCompileError):
        raise
    except TrialTimeoutError as error:
        if len(place(error)) and not _gets_on(spec, seed):
            raise EnvError(
                f"{spec.id!r} takes more than {_PLAIN_SECONDS:g} s in plain Python{place(error)}: "
                "a loop that does not end?"
            ) from error
    except Exception as error:
        raise EnvError(f"{spec.id!r} raised {type(error).__name__}: {error}{place(error)}") from error


def _gets_on(spec: NativeEnv, seed: int) -> bool:
    """Whether a few steps are within reach."""
    try:
        with at_most(_PLAIN_SECONDS):
            play(spec, spec.source, seed, 10)
    except Exception:
        return False
    return True


class _Played:
    """Random episodes, and what was seen in them."""

    def __init__(self, spec: EnvSpec, steps: int, seed: int) -> None:
        self._spec, self._seed = spec, seed
        self._rounds = max(1, steps // _N_ENVS)
        self._trace: list[bytes] = []
        self.outside = self.endless = ""

    def play_watched(self) -> None:
        """`play`, but EnvError for a round that does not end: no native call can be ended from outside."""
        raised: list[BaseException] = []
        clocks: list[int] = []

        def play() -> None:
            # Its own, as long as it lives: nobody may ask for the clock of a thread that has ended.
            clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
            try:
                self.play()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        began = (0, 0.0)
        while thread.is_alive():
            thread.join(_LOOK_SECONDS)
            with contextlib.suppress(IndexError, OSError):  # it has not begun, or has ended meanwhile
                computed = time.clock_gettime(clocks[0])
                if len(self._trace) != began[0]:
                    began = (len(self._trace), computed)
                if computed - began[1] > _ROUND_SECONDS:
                    raise EnvError(
                        f"{self._spec.id!r} has computed for {_ROUND_SECONDS:g} s in round {began[0] + 1}: "
                        "a loop that does not end?"
                    )
        if raised:
            raise raised[0]

    def play(self) -> None:
        """EnvError for what is not finite; fills `outside` and `endless`."""
        ended = False
        for steps, (env, obs, reward, done) in enumerate(self._episodes(self._rounds), start=1):
            for label, array in (("observation", obs), ("reward", reward)):
                if not np.isfinite(array).all():
                    where = tuple(int(index) for index in np.argwhere(~np.isfinite(array))[0])
                    raise EnvError(
                        f"the {label} of {self._spec.id!r} is {array[where]} in environment {where[0]}, round {steps}"
                    )
            self._trace.append(obs.tobytes() + reward.tobytes())
            ended = ended or bool(done.any())
            self.outside = self.outside or self._beyond(env, obs, steps)
        if not ended:
            self.endless = (
                f"no episode of {self._spec.id!r} ended in {self._rounds} steps: give it max_steps, or let step() "
                "return True as its second value"
            )

    def play_again(self) -> None:
        """EnvError if the same seed and actions lead elsewhere."""
        again = (obs.tobytes() + reward.tobytes() for _, obs, reward, _ in self._episodes(self._rounds))
        for steps, (now, before) in enumerate(zip(again, self._trace, strict=True), start=1):
            if now != before:
                raise EnvError(f"{self._spec.id!r} went another way in round {steps} with the same seed and actions")

    def _episodes(self, rounds: int) -> Iterator[tuple[VectorEnv, Array, Array, Array]]:
        env = self._spec.vector(_N_ENVS, seed=self._seed, threads=1)
        rng = np.random.default_rng(self._seed)
        try:
            env.reset(seed=self._seed)
            for _ in range(rounds):
                masks = env.masks if self._spec.masked else None
                obs, reward, terminated, truncated, _ = env.step(random_actions(self._spec, _N_ENVS, rng, masks))
                yield env, np.asarray(obs), np.asarray(reward), np.asarray(terminated | truncated)
        finally:
            env.close()

    def _beyond(self, env: VectorEnv, obs: Array, steps: int) -> str:
        spec = self._spec
        if not isinstance(spec, SpacedSpec) or spec.leaves is not None or obs.shape[1:] != spec.obs_low.shape:
            return ""
        beyond = np.argwhere((obs < spec.obs_low) | (obs > spec.obs_high))
        if not len(beyond):
            return ""
        row, entry = (int(index) for index in beyond[0])
        bounds = f"{spec.obs_low[entry]:g} to {spec.obs_high[entry]:g}"
        return f"entry {entry} of the observation is {obs[row, entry]:g} in round {steps}, which is not in {bounds}"
