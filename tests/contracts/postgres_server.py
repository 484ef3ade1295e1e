"""A PostgreSQL server of one's own: in a temporary directory, on a free loopback port, started and stopped here."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from waiting import MINUTES, until


def find_binaries() -> Path | None:
    """Return the directory of `initdb` and `postgres`, None if PostgreSQL is not installed."""
    for directory in [*sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True), *os.environ["PATH"].split(":")]:
        if all(os.access(Path(directory) / name, os.X_OK) for name in ("initdb", "postgres")):
            return Path(directory)
    return None


class PostgresServer:
    """PostgreSQL refuses to run as root, so root starts it as user `postgres`."""

    def __init__(self) -> None:
        binaries = find_binaries()
        assert binaries is not None
        self.binaries = binaries
        # Not below pytest's own directories: those are closed to other users.
        self.directory = Path(tempfile.mkdtemp(prefix="mileage-postgres-"))
        self.data = self.directory / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        if self.owner is not None:
            os.chown(self.directory, self.owner.pw_uid, self.owner.pw_gid)
        self._run("initdb", "-D", str(self.data), "-U", "tester", "--auth=trust", "--no-sync", "-E", "UTF8")

    @property
    def url(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def _identity(self) -> dict[str, object]:
        if self.owner is None:
            return {}
        return {"user": self.owner.pw_uid, "group": self.owner.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            check=True, capture_output=True, cwd=self.directory, env={"LC_ALL": "C"}, **self._identity(),
        )  # type: ignore[call-overload]  # fmt: skip

    def start(self) -> None:
        self.process = subprocess.Popen(
            [str(self.binaries / "postgres"), "-D", str(self.data), "-p", str(self.port), "-c", "fsync=off",
             "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.directory}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.directory, **self._identity(),
        )  # type: ignore[call-overload]  # fmt: skip
        import psycopg

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=60).close()
                return True
            return False

        until(answers)

    def kill(self) -> None:
        """End the server without a shutdown, as a power failure would."""
        assert self.process is not None
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        for pid in [self.process.pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)  # nothing is worth a checkpoint
            self.process.wait(timeout=MINUTES)

    def empty_ledger(self, name: str) -> str:
        """Return an address with nothing in it: a namespace of its own, which costs less than a database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"'.encode())
        return f"{self.url}?options=-csearch_path%3D{name}"

    def remove(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def cannot_serve() -> str | None:
    """What is missing here for a server, if anything is."""
    if importlib.util.find_spec("psycopg") is None:
        return "the postgres extra is not installed (psycopg)"
    if find_binaries() is None:
        return "PostgreSQL's initdb and postgres are not installed"
    if os.getuid() == 0 and "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
        return "running as root without a user called postgres"
    return None
