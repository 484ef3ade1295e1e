"""Values by name, as JSON, TOML, a database or keyword arguments have them; whoever reads them checks them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Record = dict[str, Any]
"""To be filled or changed."""
ReadRecord = Mapping[str, Any]
"""To be read."""


@dataclass(frozen=True)
class PlainData:
    """A dataclass whose fields are plain values, or dataclasses of such."""

    def as_dict(self) -> Record:
        """Plain data: the fields by name."""
        return asdict(self)


def strict_json(value: object, **how: Any) -> str:
    """`value` as JSON that every reader takes: NaN and infinity, which JSON does not have, become null.

    `how` is what `json.dumps` takes.
    """
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, **how)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def named(source: object, names: str) -> Record:
    """Attributes of `source` by name, those in `names`: for whoever calls them the same."""
    return {name: getattr(source, name) for name in names.split()}
