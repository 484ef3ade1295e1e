"""A ledger's catalogue and its backup.

The files are read, never fetched: they are what the user's own SkyPilot keeps under `~/.sky/catalogs`, or a copy of it.
"""

from __future__ import annotations

import glob
import math
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from mileage.errors import LedgerError, UsageError
from mileage.ledger.columns import csv_rows

ENVIRONMENT_VARIABLE = "MILEAGE_CATALOGUE"
_NEEDED = ("InstanceType", "Price", "Region")


@dataclass(frozen=True)
class Offer:
    """One instance type in one region."""

    cloud: str
    type: str
    region: str
    on_demand: float | None
    """US dollars an hour."""
    spot: float | None
    cores: float | None
    memory_gb: float | None
    gpu: str
    """Name of its accelerator, empty without one."""
    as_of: str
    """Date of the file."""

    @property
    def name(self) -> str:
        """As the price book spells it."""
        return f"{self.cloud}/{self.type}"


def directory() -> Path | None:
    """The catalogue in use: that of the environment variable, or SkyPilot's own where there is one."""
    given = os.environ.get(ENVIRONMENT_VARIABLE)
    if given:
        if not Path(given).is_dir():
            raise UsageError(f"the catalogue {given} is not a directory: correct {ENVIRONMENT_VARIABLE}")
        return Path(given)
    own = Path.home() / ".sky" / "catalogs"
    return own if own.is_dir() else None


def clouds(place: Path) -> dict[str, Path]:
    """The `vms.csv` of every cloud below `place`; of several versions of a catalogue, the newest."""
    found: dict[str, Path] = {}
    for path in sorted(place.glob("**/vms.csv"), key=lambda path: path.stat().st_mtime):
        found[path.parent.name] = path
    return found


def offers(place: Path, cloud: str) -> Iterator[Offer]:
    """Everything that `cloud` rents, row by row."""
    path = clouds(place).get(cloud)
    if path is None:
        return
    as_of = time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))
    name = f"the catalogue file {path}"
    for _, row in csv_rows(path, _NEEDED, lambda column: f"{name} has no column {column}", name):
        yield Offer(
            cloud, row["InstanceType"] or "", row["Region"] or "", _amount(row.get("Price")),
            _amount(row.get("SpotPrice")), _amount(row.get("vCPUs")), _amount(row.get("MemoryGiB")),
            row.get("AcceleratorName") or "", as_of,
        )  # fmt: skip


def _amount(text: str | None) -> float | None:
    try:
        amount = float(text or "")
    except ValueError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def find(place: Path, name: str, region: str | None) -> list[Offer]:
    """What `name` (`cloud/type`) is offered for, in `region` or anywhere."""
    cloud, _, kind = name.partition("/")
    return [o for o in offers(place, cloud) if o.type == kind and region in (None, o.region)]


def fitting(place: Path, cloud: str, cores: int, memory_gb: int | None, gpus: tuple[str, ...]) -> set[str]:
    """Types of `cloud` that have these cores, this memory (within a tenth: kernels keep some) and this kind of GPU."""
    found = set()
    for offer in offers(place, cloud):
        same_memory = memory_gb is None or (
            offer.memory_gb is not None and 0.9 * offer.memory_gb <= memory_gb <= 1.02 * offer.memory_gb
        )
        same_gpu = bool(offer.gpu) == bool(gpus) and all(offer.gpu.lower() in gpu.lower() for gpu in gpus)
        if offer.cores == cores and same_memory and same_gpu:
            found.add(offer.type)
    return found


# --- A copy of the whole ledger that is consistent, while runs go on writing to it ---
_PAGES_AT_A_TIME = 4_096
"""Writers get their turn between the parts of a copy."""


def back_up(engine: sa.Engine, url: str, file: Path) -> int:
    """Write a copy of the ledger to `file`, which must not be there yet; return its size in bytes.

    SQLite is copied page by page while others write, and what comes out is a ledger file; a PostgreSQL ledger is
    dumped by `pg_dump`, for `pg_restore`.
    """
    if file.exists():
        raise UsageError(f"{file} is there already: name a new file for the backup")
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if engine.dialect.name == "sqlite":
            _copy_sqlite(engine, part)
        else:
            _dump_postgres(engine, url, part)
        part.chmod(0o600)
        os.link(part, file)  # unlike a rename, this never replaces a file that somebody made meanwhile
        return file.stat().st_size
    except FileExistsError:
        raise UsageError(f"{file} is there already: name a new file for the backup") from None
    except (OSError, sqlite3.Error) as error:
        raise LedgerError(f"the backup {file} cannot be written: {error}") from None
    finally:
        part.unlink(missing_ok=True)


def _copy_sqlite(engine: sa.Engine, part: Path) -> None:
    pooled = engine.raw_connection()
    copy = sqlite3.connect(part)
    try:
        source = pooled.driver_connection
        assert isinstance(source, sqlite3.Connection)
        source.backup(copy, pages=_PAGES_AT_A_TIME, sleep=0.001)
        # A file of its own: whoever copies or opens it needs no second file beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
    finally:
        copy.close()
        pooled.close()


def pg_dump_program() -> str | None:
    """Where `pg_dump` is, None if it is not installed."""
    installed = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_dump"), reverse=True)
    return installed[0] if installed else shutil.which("pg_dump")


def _dump_postgres(engine: sa.Engine, url: str, part: Path) -> None:
    program = pg_dump_program()
    if program is None:
        raise LedgerError("a PostgreSQL ledger is backed up by pg_dump, which is not installed: install its client")
    address = sa.make_url(url).set(drivername="postgresql")
    with engine.connect() as connection:
        namespace = str(connection.execute(sa.text("SELECT current_schema()")).scalar())
    # A password among the arguments could be read by every user of the machine.
    environment = os.environ | ({"PGPASSWORD": str(address.password)} if address.password else {})
    bare = address.set(password=None).render_as_string(hide_password=False)
    done = subprocess.run(
        [program, "--format=custom", "--no-owner", f"--schema={namespace}", f"--file={part}", f"--dbname={bare}"],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise LedgerError(f"pg_dump could not back up the ledger: {said[0] if said else done.returncode}")
