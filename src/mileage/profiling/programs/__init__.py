"""Training programs of others, watched from within while they run: where their time goes, by their own lines."""

from __future__ import annotations

from mileage.profiling.findings.programs import ProgramFinding, Trouble
from mileage.profiling.programs.watch import Watched, watch

__all__ = ["ProgramFinding", "Trouble", "Watched", "watch"]
