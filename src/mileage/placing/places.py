"""The places that `--on` names."""

from __future__ import annotations

from mileage._errors import UsageError
from mileage.placing.jobs import Place
from mileage.placing.local import Local

WAYS = "local[:N], ray, ray://HOST:PORT or slurm[:PARTITION]"


def place_called(text: str) -> Place:
    """The place that `text` means: `local`, `local:4`, `ray`, `ray://head:10001`, `slurm`, `slurm:gpu`."""
    kind, colon, rest = text.partition(":")
    if kind == "local":
        if not colon:
            return Local()
        if not rest.isdecimal():
            raise UsageError(f"--on {text!r} cannot be read: write {WAYS}")
        return Local(int(rest))
    if kind == "ray" and (not colon or rest.startswith("//")):
        from mileage.placing.on_ray import OnRay

        return OnRay(text if colon else None)
    if kind == "slurm" and (not colon or rest):
        from mileage.placing.on_slurm import OnSlurm

        return OnSlurm(rest or None)
    raise UsageError(f"--on {text!r} is not known: write {WAYS}")
