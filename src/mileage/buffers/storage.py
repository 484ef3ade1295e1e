"""Where a ring's memory comes from: the heap, or files that outlive the process."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mileage._errors import UsageError
from mileage._types import Array


class Storage(Protocol):
    """Gives out zeroed arrays by name, and larger ones in their place."""

    def allocate(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        """A C-contiguous array (size,) of zeros, or of what was stored under this name before."""
        ...

    def grow(self, name: str, array: Array, size: int) -> Array:
        """An array (size,) that begins with the content of `array`."""
        ...

    def check(self) -> None:
        """Raise if the memory can no longer be relied upon."""
        ...


class HeapStorage:
    """Ordinary memory; pages are taken from the system when first written to."""

    def allocate(self, name: str, size: int, dtype: type[np.generic]) -> Array:
        """A new array of zeros."""
        try:
            return np.zeros(size, dtype)
        except (MemoryError, ValueError) as error:
            needed = size * np.dtype(dtype).itemsize / 1e9
            raise UsageError(
                f"no memory for {needed:,.1f} GB of {name}: lower capacity, or use MappedReplay"
            ) from error

    def grow(self, name: str, array: Array, size: int) -> Array:
        """A new array with the old content."""
        larger = np.zeros(size, array.dtype)
        larger[: len(array)] = array
        return larger

    def check(self) -> None:
        """Memory does not vanish."""
