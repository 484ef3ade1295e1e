"""Where the time of a run goes, and what to change: phases, replays, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mileage.profiling.model import Bottleneck, Finding
    from mileage.profiling.profile import Profile, profile_recorded, profile_run

__all__ = ["Bottleneck", "Finding", "Profile", "profile_recorded", "profile_run"]

_HOMES = {
    "Bottleneck": "model",
    "Finding": "model",
    "Profile": "profile",
    "profile_recorded": "profile",
    "profile_run": "profile",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"mileage.profiling.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
