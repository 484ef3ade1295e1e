"""Array types used across the package: time-major, C-contiguous, float32 unless a name says otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

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


class ObsLeaf(NamedTuple):
    """One array of an observation, and which bytes of a packed observation row hold it."""

    name: str
    """Its key in a dict observation; empty if the observation is this one array."""
    shape: tuple[int, ...]
    dtype: str
    """float32 or uint8."""
    start: int
    stop: int
