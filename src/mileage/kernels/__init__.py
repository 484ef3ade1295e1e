"""Array kernels at native speed, usable on plain NumPy arrays by code that uses nothing else of mileage.

Functions are imported, and compiled or loaded from the cache, when they are first used. Plain versions of the same
functions, to read and to test against, are in `mileage.kernels.reference`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mileage.kernels.arrays import gae, group_advantages, nstep_returns, vtrace
    from mileage.kernels.moments import RunningMoments
    from mileage.kernels.tokens import token_kl


__all__ = ["RunningMoments", "gae", "group_advantages", "nstep_returns", "token_kl", "vtrace"]

_HOME = {
    "RunningMoments": "moments",
    "gae": "arrays",
    "group_advantages": "arrays",
    "nstep_returns": "arrays",
    "token_kl": "tokens",
    "vtrace": "arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
