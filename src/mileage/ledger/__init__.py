"""What it cost to reach the target: panels, targets, prices, rows, matching rules and the store."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mileage.ledger.panels import Aggregate, Panel
    from mileage.ledger.recorder import Ledger, RunRecorder
    from mileage.ledger.targets import Evaluation, Target


__all__ = ["Aggregate", "Evaluation", "Ledger", "Panel", "RunRecorder", "Target"]

# Loaded on first use: a run is written down before NumPy is there.
_HOMES = {
    "Aggregate": "panels",
    "Evaluation": "targets",
    "Ledger": "recorder",
    "Panel": "panels",
    "RunRecorder": "recorder",
    "Target": "targets",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return vars(importlib.import_module(f"{__name__}.{_HOMES[name]}"))[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
