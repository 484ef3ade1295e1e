"""Exams that a training program asks for: the process that holds the seeds, and the episodes it plays.

A program connects to a socket and asks to be examined after so many steps; observations go out, actions come back,
one line of JSON each. All evaluations are played by the code that plays those of our own runs. The program learns
whether it may stop, and nothing else; the time is on its clock.

It is started by `mileage.external.exam.Examiner` as
`python -m mileage.external.exam.server FD`, and ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from mileage.contracts import EnvSpec, Policy
from mileage.envs.registry import resolve
from mileage.errors import MileageError, UsageError
from mileage.external.exam import protocol
from mileage.external.exam.actors import Actor, chosen
from mileage.external.exam.client import ADDRESS
from mileage.external.exam.sources import PolicySource, SourceKind
from mileage.external.record import Exams
from mileage.ledger.panels import Panel
from mileage.ledger.recorder import RunRecorder
from mileage.ledger.targets import Evaluation
from mileage.records import ReadRecord, Record, strict_json
from mileage.training.evaluation import BridgeEvaluator, Episodes, checked_panel
from mileage.types import I64, U8, Action, Array, Observation

LONGEST_LINE = 1 << 24
"""Bytes of a line; a program that sends more is not listened to any more."""
_POLL_SECONDS = 0.1
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


class ExamError(Exception):
    """The program said something that is no answer, or has gone."""


class _Absent(Policy):
    """A policy that lives in another process."""

    def __init__(self, spec: EnvSpec) -> None:
        self.obs_size, self.n_actions, self.action_size = spec.obs_size, spec.n_actions, spec.action_size
        self.low, self.high = spec.action_low, spec.action_high
        self.line: _Line | None = None

    @property
    def row_by_row(self) -> bool:
        """False: a question costs a journey, so that all episodes are asked about at once."""
        return False

    def live_arrays(self) -> dict[str, Array]:
        """None: what it is made of stays where it is."""
        return {}

    def actions(self, obs: Array, rng: np.random.Generator | None = None, masks: U8 | None = None) -> Array:
        """What the program answers; without one, the first action there is."""
        if self.line is None:
            shape = (len(obs),) if self.n_actions else (len(obs), self.action_size)
            return np.zeros(shape, np.int64 if self.n_actions else np.float32)
        self.line.say({"observations": obs.tolist(), "deterministic": rng is None})
        return self._checked(self.line.hear().get("actions"), len(obs))

    def _checked(self, given: object, n: int) -> Array:
        kind = "whole numbers" if self.n_actions else f"lists of {self.action_size} numbers"
        problem = f"actions must be {n} {kind}"
        try:
            found = np.asarray(given, np.float64)
        except (TypeError, ValueError, OverflowError):
            raise ExamError(problem) from None
        if self.n_actions:
            whole = found.reshape(n) if found.size == n else np.full(1, np.nan)
            if not np.isfinite(whole).all() or (whole != np.rint(whole)).any():
                raise ExamError(problem)
            if whole.min() < 0 or whole.max() >= self.n_actions:
                raise ExamError(f"actions must be from 0 to {self.n_actions - 1}")
            return whole.astype(np.int64)
        if found.size != n * self.action_size or not np.isfinite(found).all():
            raise ExamError(problem)
        return np.clip(found.reshape(n, self.action_size), self.low, self.high).astype(np.float32)


class _Line:
    """A connection to the program, read line by line and never for longer than the attempt may last."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection = connection
        self._deadline = deadline
        self._rest = b""

    def fileno(self) -> int:
        """For `select`."""
        return self.connection.fileno()

    def say(self, message: ReadRecord) -> None:
        data = memoryview(strict_json(message).encode() + b"\n")
        while data:
            self._wait(writing=True)
            try:
                data = data[self.connection.send(data) :]
            except OSError:
                raise ExamError("the program has gone") from None

    def hear(self) -> Record:
        while b"\n" not in self._rest:
            self._wait()
            try:
                more = self.connection.recv(1 << 20)
            except OSError:
                more = b""
            if not more:
                raise ExamError("the program has gone")
            self._rest += more
            if len(self._rest) > LONGEST_LINE:
                raise ExamError(f"a line must not be longer than {LONGEST_LINE:,} bytes")
        text, self._rest = self._rest.split(b"\n", 1)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ExamError("a line must be JSON") from None
        if not isinstance(found, dict):
            raise ExamError("a line must be a JSON object")
        return found

    def _wait(self, writing: bool = False) -> None:
        """Until the program has said or taken something; not beyond its time, nor when somebody wants to stop."""
        while True:
            ready = select.select([] if writing else [self], [self] if writing else [], [], _POLL_SECONDS)
            if ready[0] or ready[1]:
                return
            if time.monotonic() > self._deadline or signal.sigpending() & _ENDING:
                raise ExamError("there is no time left")


class AskedExams(Exams):
    """Examines the policies of programs that ask for it, one program after the other, on the same panel."""

    def __init__(self, panel: Panel) -> None:
        """Make the environments of `panel` and play it once, so that no attempt pays for what is done once."""
        spec = resolve(panel.env_id, **panel.env_kwargs)
        if spec.branches or spec.leaves is not None:
            raise UsageError(
                f"observations and actions of {panel.env_id} must be plain rows for a program to be examined"
            )
        self.panel = panel
        self._policy = _Absent(spec)
        self._evaluate = BridgeEvaluator(self._policy, spec, panel)
        self._evaluate()
        self._sitting: _Sitting | None = None

    def environment(self) -> Mapping[str, str]:
        """What the program must find in its environment; an examination can begin from here on."""
        self.close()
        self._sitting = _Sitting()
        return {ADDRESS: str(self._sitting.path)}

    def begin(self, run: RunRecorder, limit_seconds: float | None) -> None:
        """Answer who asks from now on, and write what is found to `run`."""
        assert self._sitting is not None
        self._sitting.start(run, limit_seconds)

    @property
    def about(self) -> ReadRecord:
        """What the program said of itself."""
        return {} if self._sitting is None else self._sitting.about

    def tick(self, latest: Callable[[], int]) -> None:
        """Examine whoever asks; a program names the step itself."""
        if self._sitting is not None:
            self._sitting.serve(self._examined)

    def close(self) -> None:
        """Stop listening."""
        if self._sitting is not None:
            self._sitting.close()
            self._sitting = None

    def _examined(self, line: _Line) -> Evaluation:
        self._policy.line = line
        try:
            return self._evaluate()
        finally:
            self._policy.line = None


class _Sitting:
    """The socket of one attempt, and the thread that wakes the clock's thread when something comes."""

    def __init__(self) -> None:
        self.about: Record = {}
        self._folder = Path(tempfile.mkdtemp(prefix="mileage-exam-"))  # ours alone: nobody else can connect
        self.path = self._folder / "socket"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(self.path))
        self._listening.listen()
        self._lines: list[_Line] = []
        self._run: RunRecorder | None = None
        self._deadline = float("inf")
        self._served, self._over = threading.Event(), threading.Event()
        self._owner = threading.get_ident()

    def start(self, run: RunRecorder, limit_seconds: float | None) -> None:
        self._run = run
        self._deadline = float("inf") if limit_seconds is None else time.monotonic() + limit_seconds
        threading.Thread(target=self._watch, name="mileage-examiner", daemon=True).start()

    def _watch(self) -> None:
        """Wake the thread that waits for the program's end, which does so for the signal of a child's."""
        while not self._over.is_set():
            try:
                if self._ready(_POLL_SECONDS):
                    self._served.clear()
                    signal.pthread_kill(self._owner, signal.SIGCHLD)
                    self._served.wait(_POLL_SECONDS)
            except (OSError, ValueError):  # closed meanwhile
                return

    def _ready(self, seconds: float) -> Sequence[Any]:
        waiting: list[Any] = [self._listening, *self._lines]
        return select.select(waiting, [], [], seconds)[0]

    def serve(self, examined: Callable[[_Line], Evaluation]) -> None:
        for ready in self._ready(0.0):
            if ready is self._listening:
                connection, _ = self._listening.accept()
                connection.setblocking(False)
                self._lines.append(_Line(connection, self._deadline))
                continue
            try:
                self._answer(ready, examined)
            except ExamError as error:
                self._drop(ready, str(error))
        self._served.set()

    def _answer(self, line: _Line, examined: Callable[[_Line], Evaluation]) -> None:
        message = line.hear()
        if isinstance(about := message.get("about"), dict):
            self.about |= about
            line.say({"exam": 1})
            return
        step, claimed = message.get("step"), message.get("claimed") or {}
        if (
            not isinstance(step, int)
            or isinstance(step, bool)
            or not 0 <= step < 2**62
            or not isinstance(claimed, dict)
        ):
            raise ExamError("a request needs step, a whole number of environment steps")
        assert self._run is not None
        with self._run.phase("eval"):
            found = examined(line)
        self._run.checkpoint(step, found, claimed=claimed or None)
        line.say({"stop": self._run.reached})

    def _drop(self, line: _Line, why: str) -> None:
        with contextlib.suppress(ExamError):
            line.say({"error": why})
        self._lines.remove(line)
        line.connection.close()

    def close(self) -> None:
        self._over.set()
        for each in (self._listening, *(line.connection for line in self._lines)):
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)


# --- Sitting an exam: any actor plays the episodes of a panel, by the code that evaluates policies of our own ---
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


# --- The process that holds an exam: it alone has the panel's seeds and environments ---
class _GoneError(Exception):
    """Whoever asked for the exam no longer wants it."""


class _Asking(Actor):
    """A policy that lives in the process that asked for the exam; only observations go there."""

    def __init__(self, other: Connection, remembers: bool, samples: bool) -> None:
        self._other, self.remembers, self.samples = other, remembers, samples

    def begin(self, episodes: int, deterministic: bool) -> None:
        """Say what is about to be played."""
        protocol.send(self._other, {"begin": {"episodes": episodes, "deterministic": deterministic}})

    def act(self, observations: Observation, episodes: I64) -> Action:
        """Ask for actions."""
        arrays: list[Array] = [episodes]
        form = protocol.taken_apart(observations, arrays)
        try:
            protocol.send(self._other, {"act": form}, arrays)
            return protocol.receive(self._other)[1][0]
        except (EOFError, OSError):
            raise _GoneError from None


def serve(other: Connection) -> None:
    """Hold exams until nobody asks for another."""
    panel: Panel | None = None
    spec: EnvSpec | None = None
    while True:
        try:
            message, _ = protocol.receive(other)
        except (EOFError, OSError):
            return
        try:
            if "panel" in message:
                panel = Panel.from_dict(message["panel"])
                spec = spec_of(panel)
                protocol.send(other, {"ready": True})
                continue
            assert panel is not None
            assert spec is not None
            found = _examined(other, message, spec, panel)
        except MileageError as error:
            protocol.send(other, {"error": str(error), "kind": type(error).__name__})
            continue
        except _GoneError:
            return
        except Exception as error:  # whatever a policy of somebody else's raises
            protocol.send(other, {"error": f"{type(error).__name__}: {error}", "kind": "policy"})
            continue
        told = [found.returns, found.lengths, *([] if found.successes is None else [found.successes])]
        protocol.send(other, {"evaluation": True}, told)


def _examined(other: Connection, message: Record, spec: EnvSpec, panel: Panel) -> Evaluation:
    asked: Record = message["examine"]
    source = None if asked["source"] is None else PolicySource.from_dict(asked["source"])
    if source is not None and source.kind is SourceKind.CHECKPOINT:
        from mileage.training.agents import load

        with load(source.place, env=panel.env_id if ":" in panel.env_id else None) as agent:
            return agent.evaluate(panel)
    actor = source.open(panel.deterministic) if source else _Asking(other, asked["remembers"], asked["samples"])
    sitting = None
    try:
        sitting = Sitting(actor, spec, panel, bool(asked["unit_actions"]))
        return sitting()
    finally:
        actor.close()
        if sitting is not None:
            sitting.close()


def _end_with(parent: int) -> None:
    """End this process when the one that started it has gone, whatever a policy is at."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Serve the other end of the file descriptor in the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asked
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    serve(Connection(int(sys.argv[1])))
    # Threads and exit handlers of somebody's policy are not waited for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
