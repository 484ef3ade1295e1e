"""Array kernels at native speed, usable on plain NumPy arrays by code that uses nothing else of mileage.

Functions are imported, and compiled or loaded from the cache, when they are first used. Plain versions of the same
functions, to read and to test against, are in `mileage.kernels.reference`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mileage.kernels.arrays.advantages import gae, nstep_returns, vtrace
    from mileage.kernels.arrays.groups import group_advantages
    from mileage.kernels.arrays.moments import RunningMoments
    from mileage.kernels.arrays.tokens import token_kl

__all__ = ["RunningMoments", "gae", "group_advantages", "nstep_returns", "token_kl", "vtrace"]

_HOME = {
    "RunningMoments": "moments",
    "gae": "advantages",
    "group_advantages": "groups",
    "nstep_returns": "advantages",
    "token_kl": "tokens",
    "vtrace": "advantages",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.arrays.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
