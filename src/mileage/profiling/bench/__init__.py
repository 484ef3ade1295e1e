"""Micro-benchmarks of every primitive on this machine."""

from __future__ import annotations

from enum import StrEnum


class ExportFormat(StrEnum):
    """A file format of the report."""

    JSON = "json"
    MD = "md"
    CSV = "csv"
