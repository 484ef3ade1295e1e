"""The held-out exam of anybody's policy, in a process of its own: one evaluation code for all."""

from __future__ import annotations

from mileage.exam.actors import Actor
from mileage.exam.examiner import Examiner, examine
from mileage.exam.panels import find_panel
from mileage.exam.sources import Source

__all__ = ["Actor", "Examiner", "Source", "examine", "find_panel"]
