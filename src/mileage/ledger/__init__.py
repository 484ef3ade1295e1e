"""What it cost to reach the target: panels, targets, prices, rows, matching rules and the store."""

from __future__ import annotations

from mileage.ledger.panels import Aggregate, Panel
from mileage.ledger.targets import Evaluation, Target

__all__ = ["Aggregate", "Evaluation", "Panel", "Target"]
