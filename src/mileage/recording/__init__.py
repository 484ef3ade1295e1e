"""Recording a run: where clock and ledger meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mileage.recording.recorder import Ledger, RunRecorder

__all__ = ["Ledger", "RunRecorder"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from mileage.recording import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
