"""The version, apart from the package that loads everything else."""

from __future__ import annotations

__version__ = "0.1.0"
