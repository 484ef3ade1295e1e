"""Memory of large results, used again once nobody holds it.

An allocator gives blocks of megabytes back to the system, and getting them anew costs a page fault per 4 KB: as much as
GAE itself takes. Here the memory of a result that is gone waits for the next one of the same size.
"""

from __future__ import annotations

import contextlib

import numpy as np

from mileage._types import F32

# Below this, allocators keep memory themselves.
_LARGE_BYTES = 1 << 20
# What may wait, in all.
_KEPT_BYTES = 64 << 20

# By number of floats. Threads may take from it at the same time: taking is one step, and may find nothing left.
_waiting: dict[int, list[F32]] = {}


class _Block:
    """What arrays on a block have as their base; its end is the end of the last of them."""

    __slots__ = ("__array_interface__", "_memory")

    def __init__(self, memory: F32, shape: tuple[int, ...]) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "shape": shape,
            "typestr": memory.dtype.str,
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process nothing is left to give it to
            kept = sum(4 * size * len(blocks) for size, blocks in _waiting.items())
            if kept + self._memory.nbytes <= _KEPT_BYTES:
                _waiting.setdefault(self._memory.size, []).append(self._memory)


def empty(shape: tuple[int, ...]) -> F32:
    """An uninitialised float32 array of `shape`, C-contiguous, on memory of an earlier result if there is some."""
    size = int(np.prod(shape))
    if 4 * size < _LARGE_BYTES:
        return np.empty(shape, np.float32)
    try:
        memory = _waiting[size].pop()
    except (KeyError, IndexError):
        memory = np.empty(size, np.float32)
    array: F32 = np.asarray(_Block(memory, shape))
    return array
