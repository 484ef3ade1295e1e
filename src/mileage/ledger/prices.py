"""What an hour costs: prices by machine and instance, and the price of a run.

An explicit price always wins; an instance name is looked up in the price book, which is the shipped catalog overlaid
with the user's own file, and then in a directory of SkyPilot's catalogue. A price that no instance has is refused.

A cloud writes its name, and often the instance type, into the tables that the firmware hands to the kernel (DMI). What
it does not write there is looked for in a price list by cores, memory and GPUs, and is taken only where one type fits.

In this order: `--price`; `MILEAGE_PRICE`, or `DEVICE_PRICE_PER_HOUR` as other tools call it; `--instance`; the Slurm
partition or the instance that this machine is recognised as. Nothing is asked over a network, and a machine that is not
recognised for certain has no price.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mileage.errors import UnknownNameError, UsageError, require
from mileage.ledger import catalogue
from mileage.measure.machine import fingerprint
from mileage.records import ReadRecord

ENVIRONMENT_VARIABLE = "MILEAGE_PRICES"
NO_PRICE = "no price set"
_LEAST, _MOST = 1e-4, 10_000.0
"""US dollars an hour that one instance may cost; below and above somebody meant another unit."""


class Market(StrEnum):
    """How the instance is bought."""

    ON_DEMAND = "on_demand"
    SPOT = "spot"

    @classmethod
    def parse(cls, name: str) -> Market:
        """The market called `name`."""
        try:
            return cls(name.replace("-", "_"))
        except ValueError:
            raise UsageError(f"market {name!r} is not known: use on_demand or spot") from None


@dataclass(frozen=True)
class Price:
    """What one instance costs an hour, frozen."""

    parts: tuple[tuple[str, float], ...] = ()
    """Name and US dollars an hour of everything that is billed: host, gpu, or the whole instance."""
    market: str = Market.ON_DEMAND.value
    """`on_demand` or `spot`."""
    instance: str | None = None
    """Name in the price book."""
    source: str = NO_PRICE
    """Where the amount comes from."""
    as_of: str = ""
    """Date of the source."""
    frozen_at: float = 0.0
    """When the price was frozen, seconds since the epoch."""
    currency: str = "USD"

    def __post_init__(self) -> None:
        for name, amount in self.parts:
            if not isinstance(amount, int | float) or not math.isfinite(amount) or amount < 0:
                raise UsageError(f"price of {name} must be a number of dollars an hour, 0 or more, not {amount!r}")
        if self.usd_per_hour and not _LEAST <= self.usd_per_hour <= _MOST:
            raise UsageError(
                f"a price of {self.usd_per_hour:g} dollars an hour is not plausible for one instance: "
                f"it must be 0, or between {_LEAST:g} and {_MOST:,.0f}"
            )

    @property
    def usd_per_hour(self) -> float:
        """Sum of everything that is billed; 0 means that no price is set."""
        return math.fsum(amount for _, amount in self.parts)

    def to_json(self) -> str:
        """The frozen price as it is stored with the run."""
        return json.dumps({**self.__dict__, "parts": dict(self.parts)}, sort_keys=True)


def freeze_price(
    price: float | str | None = None, instance: str | None = None, *, spot: bool = False, now: float | None = None,
    source: str = "given at launch", recognised: str | None = None,
) -> Price:  # fmt: skip
    """The price of a run that is being launched.

    Args:
        price: US dollars an hour of one instance; as text also a sum such as `0.35+0.19` where GPU and host are billed
            apart. It wins over the price book.
        instance: name in the price book or the catalogue, such as `aws/g5.xlarge`, with a region as
            `aws/g5.xlarge@eu-west-1`; recorded beside an explicit price.
        spot: whether the instance is bought on the spot market.
        now: seconds since the epoch; None is now.
        source: where an explicit price comes from.
        recognised: what the instance was recognised by, where nobody named it.
    """
    if spot and instance is None and price is None:
        raise UsageError("spot says how an instance is bought: name it with --instance, or give its --price")
    market = Market.SPOT if spot else Market.ON_DEMAND
    frozen_at = time.time() if now is None else now
    today = time.strftime("%Y-%m-%d", time.gmtime(frozen_at))
    if price is not None:
        return Price(_explicit_parts(price), market.value, instance, source, today, frozen_at)
    if instance is None:
        return Price(market=market.value, frozen_at=frozen_at)
    parts, where, as_of = _listed(instance, market)
    where += f"; this machine is recognised by {recognised}" if recognised else ""
    return Price(parts, market.value, instance, where, as_of, frozen_at)


def _listed(instance: str, market: Market) -> tuple[tuple[tuple[str, float], ...], str, str]:
    """Parts, source and date of the price of `instance`: from the price book, or from the catalogue."""
    book = price_book()
    name, _, region = instance.partition("@")
    entry = book.get(instance) or book.get(name)
    if entry is not None and region in ("", entry.get("region")):
        parts = entry.get(market.value)
        if isinstance(parts, dict) and parts:
            source = f"{entry.get('source', 'user price book')}, {entry.get('region', 'no region')}"
            return tuple(parts.items()), source, str(entry.get("as_of", ""))
    place = catalogue.directory()
    found = catalogue.find(place, name, region or None) if place is not None else []
    if entry is None and not found:
        raise UnknownNameError("instance", instance, book)
    priced = [(amount, o) for o in found if (amount := o.spot if market is Market.SPOT else o.on_demand) is not None]
    if not priced:
        where = f" in {region}" if region else ""
        remedy = f"give --price, or add one to {user_book_path()}"
        raise UsageError(f"the price book has no {market.value} price for {name!r}{where}: {remedy}")
    amount, offer = min(priced, key=lambda each: (each[0], each[1].region))
    cheapest = "" if region or len({o.region for _, o in priced}) == 1 else f", the cheapest of {len(priced)} offers"
    return (("instance", amount),), f"SkyPilot catalogue, {offer.region}{cheapest}", offer.as_of


def _explicit_parts(price: float | str) -> tuple[tuple[str, float], ...]:
    texts = price.split("+") if isinstance(price, str) else [str(price)]
    try:
        amounts = [float(text) for text in texts]
    except ValueError:
        raise UsageError(f"price {price!r} is not a number of dollars an hour, such as 2.20 or 0.35+0.19") from None
    names = ["instance"] if len(amounts) == 1 else [f"part {i + 1}" for i in range(len(amounts))]
    return tuple(zip(names, amounts, strict=True))


def user_book_path() -> Path:
    """Where the user's own prices are read from."""
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override:
        return Path(override)
    import platformdirs

    return platformdirs.user_config_path("mileage") / "prices.toml"


def price_book() -> dict[str, ReadRecord]:
    """All known instances: the shipped catalog overlaid with the user's file."""
    return {**shipped_book(), **_read(user_book_path(), required=ENVIRONMENT_VARIABLE in os.environ)}


@functools.cache
def shipped_book() -> Mapping[str, ReadRecord]:
    """The catalog that ships with the package."""
    return _read(Path(__file__).with_name("prices.toml"), required=True)


def _read(path: Path, *, required: bool) -> dict[str, ReadRecord]:
    import tomllib

    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        if not required:
            return {}
        raise UsageError(f"the price book {path} does not exist: correct {ENVIRONMENT_VARIABLE}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the price book {path} cannot be read: {error}") from None
    instances = content.get("instances", {})
    if not isinstance(instances, dict) or not all(isinstance(entry, dict) for entry in instances.values()):
        raise UsageError(f"the price book {path} must have one table [instances.NAME] per instance")
    return instances


# --- What kind of machine somebody rents this as, by what the firmware and a scheduler say; no network is asked ---
DMI = Path("/sys/class/dmi/id")
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every virtual machine of Azure."""


@dataclass(frozen=True)
class Instance:
    """A rented machine, as far as it says itself."""

    cloud: str | None
    """`aws`, `gcp`, `azure`, or None where no cloud is known by its tables."""
    type: str | None
    """Instance type, where the firmware says it."""
    evidence: str
    """What was read, in a few words."""
    partition: str | None = None
    """Partition of the Slurm job that this process is part of."""

    @property
    def name(self) -> str | None:
        """As the price book spells it, such as `aws/g5.xlarge`."""
        return None if self.cloud is None or self.type is None else f"{self.cloud}/{self.type}"


def recognised(dmi: Path = DMI, variables: Mapping[str, str] = os.environ) -> Instance | None:
    """The machine this runs on; None where nothing says that it is rented."""
    partition = variables.get("SLURM_JOB_PARTITION") if "SLURM_JOB_ID" in variables else None
    vendor, product = _read_attribute(dmi / "sys_vendor"), _read_attribute(dmi / "product_name")
    cloud, kind, evidence = None, None, ""
    if vendor == "Amazon EC2":
        cloud, kind, evidence = "aws", product or None, f"DMI: {vendor}, {product}"
    elif product == "Google Compute Engine":
        cloud, evidence = "gcp", f"DMI: {product}"
    elif _AZURE_TAG in (_read_attribute(dmi / "chassis_asset_tag"), _read_attribute(dmi / "board_asset_tag")):
        cloud, evidence = "azure", "DMI: asset tag of Azure"
    if partition is not None:
        evidence = f"{evidence}; " if evidence else ""
        evidence += f"Slurm partition {partition}"
    return None if cloud is None and partition is None else Instance(cloud, kind, evidence, partition)


def _read_attribute(path: Path) -> str:
    """The first line of a file, or nothing: a file that only root may read says nothing."""
    try:
        return path.read_text(errors="replace").splitlines()[0].strip()[:100]
    except (OSError, IndexError):
        return ""


# --- What an hour of a run costs: given, named, or found out from what the machine says ---
VARIABLES = ("MILEAGE_PRICE", "DEVICE_PRICE_PER_HOUR")
SHARE = "MILEAGE_PRICE_SHARE"
"""Part of the machine that this process has where several runs share one: it pays that part of its price."""
NO_RECOGNITION = "MILEAGE_RECOGNISE"
"""Set to 0, machines are not recognised: a run without `--price` or `--instance` has no price."""


def launch_price(
    price: float | str | None = None, instance: str | None = None, *, spot: bool = False, now: float | None = None
) -> Price:
    """The frozen price of a run that starts here; arguments are those of `freeze_price`."""
    whole = _launch_price(price, instance, spot=spot, now=now)
    try:
        share = float(os.environ.get(SHARE, "1"))
    except ValueError:
        raise UsageError(f"{SHARE} must be a number above 0 and up to 1, not {os.environ[SHARE]!r}") from None
    require(0.0 < share <= 1.0, SHARE, share, "above 0 and up to 1")
    if share == 1.0 or not whole.parts:
        return whole
    parts = tuple((name, amount * share) for name, amount in whole.parts)
    return dataclasses.replace(whole, parts=parts, source=f"{whole.source}; {share:.3g} of the machine")


def _launch_price(price: float | str | None, instance: str | None, *, spot: bool, now: float | None) -> Price:
    if price is not None or instance is not None:
        return freeze_price(price, instance, spot=spot, now=now)
    for variable in VARIABLES:
        if text := os.environ.get(variable):
            try:
                return freeze_price(text, spot=spot, now=now, source=f"environment variable {variable}")
            except UsageError as error:
                raise UsageError(f"{variable}: {error}") from None
    machine = recognised() if os.environ.get(NO_RECOGNITION) != "0" else None
    name = None if machine is None else _name_of(machine)
    if machine is None or name is None:
        return freeze_price(spot=spot, now=now)
    try:
        return freeze_price(instance=name, spot=spot, now=now, recognised=machine.evidence)
    except UsageError:
        if spot:
            raise
        return freeze_price(now=now)  # the type is known, and nobody has said what it costs


def _name_of(machine: Instance) -> str | None:
    """What the price book or the catalogue calls `machine`; None where several types fit or none."""
    site = f"slurm/{machine.partition}"
    if machine.partition is not None and site in price_book():
        return site
    if machine.cloud is None or machine.name is not None:
        return machine.name
    place = catalogue.directory()
    if place is None:
        return None
    here = fingerprint()
    fitting = catalogue.fitting(place, machine.cloud, here.cores, here.memory_gb, here.gpus)
    return f"{machine.cloud}/{fitting.pop()}" if len(fitting) == 1 else None
