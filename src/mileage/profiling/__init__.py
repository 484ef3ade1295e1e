"""Where the time of a run goes, what to change, and micro-benchmarks: record, findings, tried fixes."""

from __future__ import annotations

from typing import Any

__all__ = ["Bottleneck", "Finding", "Profile", "profile_run"]

_HOMES = {"Bottleneck": "findings", "Finding": "findings", "Profile": "profile"}


def profile_run(algorithm: str, env: Any, **options: Any) -> Any:
    """Train once and say where the time went; see `mileage.profiling.profile.profile`."""
    from mileage.profiling.profile import profile

    return profile(algorithm, env, **options)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"mileage.profiling.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
