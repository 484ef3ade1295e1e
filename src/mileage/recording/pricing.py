"""What an hour of a run that is being launched costs: given, named, or found out from what the machine says it is.

In this order: `--price`; `MILEAGE_PRICE`, or `DEVICE_PRICE_PER_HOUR` as other tools call it; `--instance`; the Slurm
partition or the instance that this machine is recognised as. Nothing is asked over a network, and a machine that is not
recognised for certain has no price.
"""

from __future__ import annotations

import dataclasses
import os

from mileage._errors import UsageError, require
from mileage.ledger import catalogue
from mileage.ledger.prices import Price, freeze_price, price_book
from mileage.meter.instance import Instance, recognised
from mileage.meter.machine import fingerprint

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
