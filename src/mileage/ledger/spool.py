"""An append-only file per run that rows are written to before they are delivered to the database.

The file is what survives: a killed process, a database server that is away, a process that ends before delivery. Rows
carry their run id and sequence number, so delivering a file twice changes nothing. The first line says which columns
each kind of row has, so that a later version can read what an earlier one left behind.

The file's times are the run's heartbeat on this host. The modification time is set by hand: to the run's start plus
the seconds that its own clock has counted, which is what a run that disappears is billed for, whatever happened to the
system's clock meanwhile. The change time, which only the system sets, says when that was.

A file may begin with a row that was written before much was known about the run; the last row of a run is the one that
counts.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mileage.ledger.rows import FORMAT_VERSION, KIND_OF, ROW_TYPES, End, Row, Run, check_run_id

_encode = json.JSONEncoder(separators=(",", ":")).encode
SUFFIX = ".rows"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""What a disk says that takes nothing more; another one may."""


def spool_dir(url: str) -> Path:
    """Where the rows for the database at `url` wait: beside an SQLite file, otherwise in the user's state."""
    if url.startswith("sqlite:///"):
        return Path(url.removeprefix("sqlite:///") + ".spool")
    override = os.environ.get("MILEAGE_SPOOL")
    if override:
        base = Path(override)
    else:
        import platformdirs  # only for servers

        base = platformdirs.user_state_path("mileage") / "spool"
    return base / hashlib.sha256(_without_user(url).encode()).hexdigest()[:16]


def spool_dirs(url: str) -> list[Path]:
    """Everywhere rows for the database at `url` may wait: where they belong, and where there may still be room."""
    name = hashlib.sha256(_without_user(url).encode()).hexdigest()[:16]
    return [spool_dir(url), *(room / name for room in _rooms())]


def _rooms() -> list[Path]:
    """Directories of this user's alone, as a rule on other file systems, for rows that find no room elsewhere."""
    import tempfile

    places = dict.fromkeys((tempfile.gettempdir(), "/dev/shm"))
    rooms = [Path(place) / f"mileage-spool-{os.getuid()}" for place in places]
    return [room for room in rooms if not room.exists() or _is_ours(room)]


def _is_ours(room: Path) -> bool:
    """Whether a directory that anyone could have made is this user's."""
    return not room.is_symlink() and room.stat().st_uid == os.getuid()


def _without_user(url: str) -> str:
    return url.rsplit("@", 1)[-1]  # user and password may change


def encode(rows: Iterable[Row]) -> bytes:
    """`rows` as lines."""
    return "".join([_encode([KIND_OF[type(row)], row]) + "\n" for row in rows]).encode("ascii")


class _File:
    """One file that rows are appended to, whole or not at all."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        # A command that is about to train has written a first line before this was imported.
        self.size = os.fstat(self.fd).st_size
        self.headed = False
        """Whether the columns of rows are written down in it."""

    def append(self, data: bytes) -> None:
        try:
            written = os.write(self.fd, data)
            while written < len(data):
                written += os.write(self.fd, data[written:])
        except OSError:
            os.ftruncate(self.fd, self.size)
            raise
        self.size += len(data)
        self.headed = True

    def close(self, *, remove: bool) -> None:
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self.fd)

    def clear(self) -> None:
        os.ftruncate(self.fd, 0)
        self.size = 0
        self.headed = False

    def restore(self) -> None:
        """Put the file back under its name if it is not there any more."""
        try:
            if os.path.samestat(os.stat(self.path), os.fstat(self.fd)):
                return
        except FileNotFoundError:
            pass
        again = _File(self.path)
        if self.size:
            again.append(os.pread(self.fd, self.size, 0))
        os.close(self.fd)
        self.fd, self.size = again.fd, again.size


class Spool:
    """What one running run keeps on disk: a file, and one in another directory where the first finds no room."""

    def __init__(self, directory: Path, run_id: str, *others: Path) -> None:
        """Open the file in `directory`; `others` are where rows go when nothing more fits there."""
        self._name = check_run_id(run_id) + SUFFIX
        self._others = list(others)
        self._header = _header_line()
        self._run: Run | None = None
        self._files: list[_File] = []
        try:
            self._files.append(_File(directory / self._name))
        except OSError as error:
            if error.errno not in _NO_ROOM or not self._open_another():
                raise

    @property
    def path(self) -> Path:
        """The file that is written to."""
        return self._files[-1].path

    @property
    def paths(self) -> list[Path]:
        """All files."""
        return [file.path for file in self._files]

    @property
    def size(self) -> int:
        """Bytes written and not yet given back."""
        return sum(file.size for file in self._files)

    def append(self, rows: Sequence[Row]) -> None:
        """Write `rows` completely or not at all; an OSError (no room anywhere) leaves the files as they were."""
        self._run = next((row for row in reversed(rows) if isinstance(row, Run)), self._run)
        data = encode(rows)
        while True:
            try:
                self._files[-1].append(data if self._files[-1].headed else self._beginning(rows) + data)
                return
            except OSError as error:
                if error.errno not in _NO_ROOM or not self._open_another():
                    raise

    def _beginning(self, rows: Sequence[Row]) -> bytes:
        """What a file begins with: the columns of rows, and the run that they belong to."""
        known = self._run is None or any(isinstance(row, Run) for row in rows)
        return self._header + (b"" if known or self._run is None else encode([self._run]))

    def _open_another(self) -> bool:
        """Go on in the next directory that takes a file, which begins with the run."""
        while self._others:
            directory = self._others.pop(0)
            with contextlib.suppress(OSError):
                directory.parent.mkdir(mode=0o700, exist_ok=True)
                if not _is_ours(directory.parent):
                    continue
                file = _File(directory / self._name)
                try:
                    file.append(self._header + (encode([self._run]) if self._run else b""))
                except OSError:
                    file.close(remove=True)
                    continue
                self._files.append(file)
                return True
        return False

    def beat(self, at: float) -> None:
        """Say that the run is alive; `at` is its start plus what its own clock has counted since."""
        for file in self._files:
            os.utime(file.fd, (at, at))

    def restore(self) -> None:
        """Put files that somebody removed back under their names."""
        for file in self._files:
            file.restore()

    def clear(self) -> None:
        """Give the space back after everything has been delivered."""
        for file in self._files:
            file.clear()

    def close(self, *, remove: bool) -> None:
        """Close the files; `remove` them if all of it has been delivered."""
        for file in self._files:
            file.close(remove=remove)


@dataclass(frozen=True)
class SpoolContent:
    """What the spool files of one run hold; its rows are read when they are asked for, one at a time."""

    paths: tuple[Path, ...]
    run: Run | None
    """The run row that was written last, unless it has been delivered and cleared."""
    complete: bool
    """Whether the run wrote its end."""
    beat_at: float
    """Modification time: the run's start plus what its own clock had counted at its last sign of life."""
    seen_at: float
    """Change time: when that was by the system's clock."""

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return list(self.each())

    def each(self) -> Iterator[Row]:
        """The run, as it was written last, and all other rows in their order."""
        if self.run is not None:
            yield self.run
        for path in self.paths:
            yield from _rows_in(path, *(kind for kind in ROW_TYPES if kind != "run"))

    @property
    def run_id(self) -> str:
        """The run the files belong to."""
        return self.paths[0].name.removesuffix(SUFFIX)


def _header_line() -> bytes:
    columns = {kind: list(row_type._fields) for kind, row_type in ROW_TYPES.items()}
    return (_encode(["format", FORMAT_VERSION, columns]) + "\n").encode("ascii")


def read(*paths: Path) -> SpoolContent | None:
    """What the files of one run hold, without torn last lines; None if all are gone."""
    times: list[os.stat_result] = []
    run: Run | None = None
    complete = False
    for path in paths:
        for row in _rows_in(path, "run", "end"):
            complete = complete or isinstance(row, End)
            run = row if isinstance(row, Run) else run
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat())
    if not times:
        return None
    return SpoolContent(paths, run, complete, max(t.st_mtime for t in times), max(t.st_ctime for t in times))


def _rows_in(path: Path, *kinds: str) -> Iterator[Row]:
    """The rows of a file that are of one of `kinds`, one at a time; other lines are not looked at."""
    starts = tuple(f'["{kind}",'.encode("ascii") for kind in ("format", *kinds))
    columns: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # it was never completely written
            if not line.startswith(starts):
                continue
            try:
                record = json.loads(line)
                if record[0] == "format":
                    columns = record[2]
                    continue
                row = _row(record[0], columns[record[0]], record[1])
            except (ValueError, KeyError, IndexError, TypeError):
                continue  # a line damaged by a lost disk is a lost row, not a lost run
            yield row


def _row(kind: str, columns: list[str], values: list[Any]) -> Row:
    row_type = ROW_TYPES[kind]
    by_name = dict(zip(columns, values, strict=True))
    row: Row = row_type(*(by_name.get(field) for field in row_type._fields))
    return row


def waiting(*directories: Path) -> list[Path]:
    """The spool files in `directories`, in launch order."""
    found: list[Path] = []
    for directory in directories:
        with contextlib.suppress(OSError):
            found += [path for path in directory.iterdir() if path.name.endswith(SUFFIX)]
    return sorted(found, key=lambda path: path.name)


def by_run(paths: Iterable[Path]) -> list[list[Path]]:
    """`paths` in groups of one run each: a run whose disk was full has files in several places."""
    found: dict[str, list[Path]] = {}
    for path in paths:
        found.setdefault(path.name, []).append(path)
    return list(found.values())


@contextlib.contextmanager
def claimed(path: Path, patience: float = 0.0) -> Iterator[bool]:
    """Whether this process alone is to deliver the file at `path`; one that another is at already is left to it.

    `patience` is how many seconds to wait for the other one.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        until = time.monotonic() + patience
        while not (mine := _locked(fd)) and time.monotonic() < until:
            time.sleep(0.01)
        yield mine
    finally:
        os.close(fd)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
