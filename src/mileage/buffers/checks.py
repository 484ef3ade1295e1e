"""The sentences for arrays that a buffer cannot take."""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._errors import UsageError


def check_field(name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[np.dtype[Any], ...]) -> None:
    """Raise unless `array` is a C-contiguous NumPy array of `shape` and one of `dtypes`."""
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"{name} must be a NumPy array of shape {shape} and dtype {wanted}, not {type(array).__name__}"
        )
    if array.shape != shape:
        raise UsageError(f"{name} must have shape {shape}, not {array.shape}")
    if array.dtype not in dtypes:
        raise UsageError(f"{name} must have dtype {wanted}, not {array.dtype}: convert it with .astype")
    if not array.flags.c_contiguous:
        raise UsageError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")
