"""Values by name, as JSON, TOML, a database or keyword arguments have them; whoever reads them checks them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Record = dict[str, Any]
"""To be filled or changed."""
ReadRecord = Mapping[str, Any]
"""To be read."""


def named(source: object, names: str) -> Record:
    """Attributes of `source` by name, those in `names`: for whoever calls them the same."""
    return {name: getattr(source, name) for name in names.split()}
