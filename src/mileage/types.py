"""Types used across the package.

Arrays are time-major, C-contiguous, float32 unless a name says otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""Of any element type; where it is known, one of those below says it."""
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]
Observation = Any
"""An observation as an environment gives it: an array, a number, or dicts and tuples of them; or a batch of such."""
Action = Any
"""An action as an environment takes it, of the same kinds; or a batch of such."""
ActionMask = Any
"""Action masks as users and environments give them: an array, or dicts and tuples of them."""
Memory = Any
"""Of a recurrent policy: tensors, alone or in tuples and dicts; None of one that has none."""


class ObsLeaf(NamedTuple):
    """One array of an observation, and which bytes of a packed observation row hold it."""

    name: str
    """Its key in a dict observation; empty if the observation is this one array."""
    shape: tuple[int, ...]
    dtype: str
    """float32 or uint8."""
    start: int
    stop: int


class Team(Protocol):
    """Threads that run one compiled function together."""

    n_ranks: int

    def run(self, function: Callable[..., Any], record: Any, pieces: int) -> Any:
        """Run `function(rank, n_ranks, barrier, record)` on as many ranks as there are `pieces` of work."""


# --- Values by name, as JSON, TOML, a database or keyword arguments have them; whoever reads them checks them ---
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
