"""What an hour costs, decided once at launch and never looked up again.

An explicit price always wins; an instance name is looked up in the price book, which is the shipped catalog overlaid
with the user's own file, and then in a directory of SkyPilot's catalogue. A price that no instance has is refused.
"""

from __future__ import annotations

import functools
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mileage._errors import UnknownNameError, UsageError
from mileage._records import ReadRecord
from mileage.ledger import catalogue

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
