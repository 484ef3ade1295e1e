"""A function of this process, called from others: for trainers that score in worker processes.

A Unix socket that only this user can open, a key that only this process's children know, JSON both ways. One thread for
each caller; calls of several run at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from mileage._errors import InfraError
from mileage._records import Record

KEY_BYTES = 32


class Server:
    """Answers records with records until it is closed."""

    def __init__(self, answer: Callable[[Record], object]) -> None:
        self._answer = answer
        self._directory = Path(tempfile.mkdtemp(prefix="mileage-pool-"))
        self.address = str(self._directory / "socket")
        self.key = os.urandom(KEY_BYTES)
        self._listener = Listener(self.address, family="AF_UNIX", backlog=64, authkey=self.key)
        self._open = True
        threading.Thread(target=self._accept, name="pool-server", daemon=True).start()

    def _accept(self) -> None:
        while self._open:
            # A caller that does not know the key, or leaves at once, is no reason to stop.
            with contextlib.suppress(Exception):
                connection = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), name="pool-caller", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            while True:
                question = json.loads(connection.recv_bytes())
                try:
                    answer = {"answer": self._answer(question)}
                except Exception as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                connection.send_bytes(json.dumps(answer).encode())

    def close(self) -> None:
        """Take no more calls."""
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.close()
            self._directory.rmdir()


def ask(address: str, key: bytes, question: Record) -> object:
    """What the server at `address` answers."""
    try:
        with Client(address, family="AF_UNIX", authkey=key) as connection:
            connection.send_bytes(json.dumps(question, default=str).encode())
            answer = json.loads(connection.recv_bytes())
    except (OSError, EOFError) as error:
        raise InfraError(f"the pool does not answer: {error}") from None
    if "error" in answer:
        raise InfraError(f"the pool failed: {answer['error']}")
    return answer["answer"]
