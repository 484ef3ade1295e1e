"""The sentences for arrays that a buffer cannot take."""

from __future__ import annotations

import numpy as np

from mileage._errors import UsageError


def check_field(name: str, array: object, shape: tuple[int, ...], dtypes: tuple[np.dtype[np.generic], ...]) -> None:
    """Raise unless `array` is a C-contiguous NumPy array of `shape` and one of `dtypes`."""
    if isinstance(array, np.ndarray) and array.dtype in dtypes and array.shape == shape and array.flags.c_contiguous:
        return
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"{name} must be a NumPy array of shape {shape} and dtype {wanted}, not {type(array).__name__}"
        )
    if array.shape != shape:
        raise UsageError(f"{name} must have shape {shape}, not {array.shape}")
    if array.dtype not in dtypes:
        raise UsageError(f"{name} must have dtype {wanted}, not {array.dtype}: convert it with .astype")
    raise UsageError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")
