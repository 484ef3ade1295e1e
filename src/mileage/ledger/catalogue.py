"""Instances of clouds with their prices, out of a directory of SkyPilot's catalogue.

The files are read, never fetched: they are what the user's own SkyPilot keeps under `~/.sky/catalogs`, or a copy of it.
"""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mileage.errors import UsageError

Cells = Mapping[str, str | None]


def csv_rows(
    path: Path, needed: Sequence[str], missing: Callable[[str], str], name: str = ""
) -> Iterator[tuple[int, Cells]]:
    """The rows of a file with their line numbers, cells by column.

    Args:
        path: of the file.
        needed: columns that it must have.
        missing: the sentence that says so of one it does not have.
        name: what the file is called where it cannot be read, if not by its path alone.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            absent = [column for column in needed if column not in (rows.fieldnames or ())]
            if absent:
                raise UsageError(missing(absent[0]))
            for row in rows:
                yield rows.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{name or path} cannot be read: {error}") from None


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
