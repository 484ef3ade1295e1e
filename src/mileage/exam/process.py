"""The process that holds an exam: it alone has the panel's seeds and environments.

It is started by `mileage.exam.Examiner` as `python -m mileage.exam.process FD`, and ends with whoever started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection

from mileage._errors import MileageError
from mileage._records import Record
from mileage._types import I64, Array, Shown, Taken
from mileage.contracts import EnvSpec
from mileage.exam import wire
from mileage.exam.actors import Actor
from mileage.exam.sitting import Sitting, spec_of
from mileage.exam.sources import Kind, Source
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation


class _GoneError(Exception):
    """Whoever asked for the exam no longer wants it."""


class _Asking(Actor):
    """A policy that lives in the process that asked for the exam; only observations go there."""

    def __init__(self, other: Connection, remembers: bool, samples: bool) -> None:
        self._other, self.remembers, self.samples = other, remembers, samples

    def begin(self, episodes: int, deterministic: bool) -> None:
        """Say what is about to be played."""
        wire.send(self._other, {"begin": {"episodes": episodes, "deterministic": deterministic}})

    def act(self, observations: Shown, episodes: I64) -> Taken:
        """Ask for actions."""
        arrays: list[Array] = [episodes]
        form = wire.taken_apart(observations, arrays)
        try:
            wire.send(self._other, {"act": form}, arrays)
            return wire.receive(self._other)[1][0]
        except (EOFError, OSError):
            raise _GoneError from None


def serve(other: Connection) -> None:
    """Hold exams until nobody asks for another."""
    panel: Panel | None = None
    spec: EnvSpec | None = None
    while True:
        try:
            message, _ = wire.receive(other)
        except (EOFError, OSError):
            return
        try:
            if "panel" in message:
                panel = Panel.from_dict(message["panel"])
                spec = spec_of(panel)
                wire.send(other, {"ready": True})
                continue
            assert panel is not None
            assert spec is not None
            found = _examined(other, message, spec, panel)
        except MileageError as error:
            wire.send(other, {"error": str(error), "kind": type(error).__name__})
            continue
        except _GoneError:
            return
        except Exception as error:  # whatever a policy of somebody else's raises
            wire.send(other, {"error": f"{type(error).__name__}: {error}", "kind": "policy"})
            continue
        told = [found.returns, found.lengths, *([] if found.successes is None else [found.successes])]
        wire.send(other, {"evaluation": True}, told)


def _examined(other: Connection, message: Record, spec: EnvSpec, panel: Panel) -> Evaluation:
    asked: Record = message["examine"]
    source = None if asked["source"] is None else Source.from_dict(asked["source"])
    if source is not None and source.kind is Kind.CHECKPOINT:
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
