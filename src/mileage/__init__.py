"""Train reinforcement-learning policies at native speed, and know what reaching the target cost."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
