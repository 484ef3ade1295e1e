"""Array types used across the package: time-major, C-contiguous, float32 unless a name says otherwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U64 = NDArray[np.uint64]
Bool = NDArray[np.bool_]
