"""Reports of runs: documents, their sections, the charts in them, and the pages of `mileage serve`."""

from __future__ import annotations
