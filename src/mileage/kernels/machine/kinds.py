"""What arguments of kernels are, in their signatures: names for readers, as Numba finds types out by itself."""

from __future__ import annotations

from typing import Any, TypeAlias

Ptr32: TypeAlias = Any  # pointer to float32
Ptr64: TypeAlias = Any  # pointer to float64
PtrI64: TypeAlias = Any  # pointer to int64
PtrU64: TypeAlias = Any  # pointer to uint64
PtrU8: TypeAlias = Any  # pointer to uint8
Real32: TypeAlias = Any  # float32
Real64: TypeAlias = Any  # float64
Count: TypeAlias = Any  # int64: how many there are
Index: TypeAlias = Any  # int64: which one
Rank: TypeAlias = Any  # int64: which thread of a team
Word: TypeAlias = Any  # uint64: bits
Flag: TypeAlias = Any  # true or false
FrameArray: TypeAlias = Any  # (1,) record: a frame as a kernel gets it
FrameRecord: TypeAlias = Any  # the record in it, with the frame's fields
Array32: TypeAlias = Any  # float32 array, as Numba sees it
Array64: TypeAlias = Any  # float64 array
ArrayI64: TypeAlias = Any  # int64 array
ArrayU64: TypeAlias = Any  # uint64 array
ArrayU8: TypeAlias = Any  # uint8 array
