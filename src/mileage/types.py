"""Types used across the package.

Arrays are time-major, C-contiguous, float32 unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
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
