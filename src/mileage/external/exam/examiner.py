"""Asking for an exam: the process that holds it, and the answers of a policy that lives here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from mileage import errors
from mileage.errors import EnvError, MileageError, UsageError
from mileage.external.exam import protocol
from mileage.external.exam.actors import Actor, Function
from mileage.external.exam.sources import PolicySource, as_actor
from mileage.ledger.panels import Panel
from mileage.ledger.targets import Evaluation
from mileage.records import Record
from mileage.system import helpers
from mileage.types import Array

Examined = str | Path | PolicySource | Function | Actor
"""A policy: a file or a name as in `Source.parse`, a function of a batch of observations, or an `Actor`."""
# Processes of a recorded program are known by it; this one is none of them.
_RECORDED = "MILEAGE_RECORDED_RUN"


class Examiner:
    """A panel in a process of its own, which any number of policies can sit, one after the other.

    Environments and seeds are in that process alone. A policy in a file is read there too; of one that lives here, a
    function or an `Actor`, only actions are asked.
    """

    def __init__(self, panel: Panel, *, python: str | None = None) -> None:
        """`python` is the interpreter that holds the exam, if it is not this one; it must have mileage."""
        self.panel = panel
        self._python = python or sys.executable
        self._process: subprocess.Popen[bytes] | None = None
        self._other: Connection | None = None

    def examine(
        self, policy: Examined, *, unit_actions: bool = False, timeout: float | None = None, loader: str | None = None
    ) -> Evaluation:
        """Play the panel's episodes with a policy.

        Args:
            policy: a file or a name as in `Source.parse`, a function of a batch of observations, or an `Actor`.
            unit_actions: whether its numbers from -1 to 1 stand for the bounds of actions.
            timeout: seconds after which the exam is given up.
            loader: `module:function` that reads the file, where it is one that says nothing by itself.
        """
        until = None if timeout is None else time.monotonic() + timeout
        source = policy if isinstance(policy, PolicySource) else None
        if isinstance(policy, str | Path):
            source = PolicySource.parse(policy, loader)
        actor = as_actor(policy) if source is None else None
        other = self._ready(until)
        asked: Record = {"source": None if source is None else source.as_dict(), "unit_actions": unit_actions}
        if actor is not None:
            asked |= {"remembers": actor.remembers, "samples": actor.samples}
        try:
            protocol.send(other, {"examine": asked})
            message, arrays = self._next(other, until)
            while "evaluation" not in message and "error" not in message:
                _answer(other, actor, message, arrays)
                message, arrays = self._next(other, until)
        except (EOFError, ConnectionError):
            raise UsageError(f"the exam's process ended with exit code {self._ended()} while a policy sat it") from None
        except BaseException:
            self.close()  # it would go on waiting for an answer
            raise
        _raised(message)
        return Evaluation.of(self.panel.seeds, *arrays)

    def close(self) -> None:
        """End the process."""
        if self._other is not None:
            self._other.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        self._process = self._other = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the process and let it build its environments; else the first exam does."""
        self._ready(None)

    def _ready(self, until: float | None) -> Connection:
        if self._other is not None:
            return self._other
        here, there = socket.socketpair()
        # The threads of numerical libraries are of no use in steps of an environment.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment.pop(_RECORDED, None)
        if self._python == sys.executable:  # the same mileage, wherever this process has it from
            home = str(Path(errors.__file__).parents[1])
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        with there:
            command = [self._python, "-m", "mileage.external.exam.server", str(there.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[there.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        helpers.add(self._process.pid)
        self._other = Connection(here.detach())
        try:
            protocol.send(self._other, {"panel": self.panel.as_dict()})
            _raised(self._next(self._other, until)[0])
        except (EOFError, ConnectionError):
            raise UsageError(f"the exam's process ended with exit code {self._ended()} as it began") from None
        except BaseException:
            self.close()
            raise
        return self._other

    def _next(self, other: Connection, until: float | None) -> tuple[Record, list[Array]]:
        if until is not None and not other.poll(max(until - time.monotonic(), 0.0)):
            self.close()
            raise UsageError("the exam was given up: it took longer than its timeout")
        return protocol.receive(other)

    def _ended(self) -> int | None:
        code = None if self._process is None else self._process.wait()
        self.close()
        return code


def examine(policy: Examined, panel: Panel, **how: object) -> Evaluation:
    """One exam of one policy, in a process of its own; `how` is what `Examiner.examine` takes."""
    with Examiner(panel) as examiner:
        sit: Callable[..., Evaluation] = examiner.examine
        return sit(policy, **how)


def _answer(other: Connection, actor: Actor | None, message: Record, arrays: list[Array]) -> None:
    """Answer what the exam asks of a policy that lives here."""
    assert actor is not None
    if "begin" in message:
        actor.begin(**message["begin"])
        return
    answer = actor.act(protocol.put_together(message["act"], arrays), arrays[0])
    try:
        found = np.asarray(answer)
    except ValueError:
        found = np.empty(0, dtype=np.object_)
    if found.dtype.kind not in "biuf":
        raise UsageError(f"a policy must answer with actions that are numbers, not {type(answer).__name__}")
    protocol.send(other, {"actions": True}, [found])


def _raised(message: Record) -> None:
    """Raise here what went wrong there."""
    if "error" not in message:
        return
    kind = vars(errors).get(message["kind"], EnvError if message["kind"] != "policy" else UsageError)
    text = message["error"] if message["kind"] != "policy" else f"the policy failed: {message['error']}"
    usual = isinstance(kind, type) and issubclass(kind, MileageError) and kind.__init__ is Exception.__init__
    raise (kind if usual else UsageError)(text)
