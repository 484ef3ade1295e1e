"""Raw pointers inside kernels, and frames: the arguments of a kernel as one named record.

Kernels work on typed pointers instead of Numba arrays. An array is a seven-field structure with a reference count,
an index that may be negative, and a wrapper that takes it apart at every call; a pointer is an address. Compiling
is several times faster, loops vectorise without tricks, and a call from Python passes one record instead of thirty
arrays.

A frame is a NumPy record with a field per argument: scalars as they are, arrays as addresses. The Python side fills
it once (`Frame`), and keeps the arrays alive; the kernel reads `frame.name` and turns addresses into pointers
(`f32(frame.params)`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage.errors import UsageError


def _at_address(kind: Any) -> Any:
    """A function for kernels from an address to the `kind` of thing that is there."""

    @intrinsic
    def make(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return kind(types.uint64), codegen

    return make


f32 = _at_address(types.CPointer(types.float32))
f64 = _at_address(types.CPointer(types.float64))
i64 = _at_address(types.CPointer(types.int64))
u64 = _at_address(types.CPointer(types.uint64))
u8 = _at_address(types.CPointer(types.uint8))


@intrinsic
def shift(typingctx: Any, pointer: Any, n: Any) -> Any:
    """The pointer `n` elements further on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.int64), codegen


@intrinsic
def pointer_to(typingctx: Any, array: Any) -> Any:
    """Pointer to the first element of an array."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def call_int64(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call `int64 f(...)` at `address` with the pointers and integers of the tuple `arguments`."""
    if not isinstance(arguments, types.BaseTuple):
        return None
    if not all(isinstance(item, types.CPointer | types.Integer) for item in arguments.types):
        raise numba.errors.TypingError("arguments of a C function must be pointers or integers: use pointer_to(array)")

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target, packed = args
        values = []
        for position, item_type in enumerate(signature.args[1].types):
            item = builder.extract_value(packed, position)
            if isinstance(item_type, types.CPointer):
                values.append(builder.bitcast(item, cgutils.voidptr_t))
            else:
                values.append(context.cast(builder, item, item_type, types.int64))
        function_type = ir.FunctionType(ir.IntType(64), [value.type for value in values])
        pointer = builder.inttoptr(target, function_type.as_pointer())
        return builder.call(pointer, values)

    return types.int64(types.uint64, arguments), codegen


# What an array of a frame may hold, by its name in the table; `bytes` are anything.
_ELEMENTS: dict[str, tuple[type[np.generic], ...]] = {
    "float32": (np.float32,),
    "float64": (np.float64,),
    "int64": (np.int64,),
    "uint64": (np.uint64,),
    "uint8": (np.uint8, np.bool_),
    "bytes": (np.generic,),
}
_SCALARS = {"int64": np.int64, "float64": np.float64, "address": np.uint64}
_LINE = re.compile(r"(?P<names>[a-z_0-9 ]+): (?P<shape>\([^)]*\) )?(?P<kind>\w+)(?:, .*)?")


def frame_type(*tables: str) -> np.dtype[np.void]:
    """Record type of a frame from tables of its fields, a line each, of which the kernel's reader sees the shapes:

        obs: (samples, O) float32, what it is
        n_samples epochs: int64, several of a kind

    With a shape it is an array, of which the record holds the address; without, a number, or a bare `address`.
    What arrays hold is in the type's metadata, for `Frame` to check.
    """
    fields: list[tuple[str, type[np.generic]]] = []
    arrays: dict[str, str] = {}
    for line in "\n".join(tables).splitlines():
        if not line.strip():
            continue
        match = _LINE.fullmatch(line.strip())
        known = match and match["kind"] in (_ELEMENTS if match["shape"] else _SCALARS)
        if not match or not known:
            raise UsageError(
                f"a frame's field must be like 'obs: (samples, O) float32, what it is', not {line.strip()!r}"
            )
        for name in match["names"].split():
            fields.append((name, np.uint64 if match["shape"] else _SCALARS[match["kind"]]))
            if match["shape"]:
                arrays[name] = match["kind"]
    return np.dtype(fields, metadata=arrays)


def extended(base: np.dtype[np.void], *tables: str) -> np.dtype[np.void]:
    """Record type of a frame with the fields of further tables and those of `base` after them.

    Not before them: Numba takes a record that begins like another for one, and would run what was compiled for that.
    """
    more = frame_type(*tables)
    fields = [(name, dtype.fields[name][0]) for dtype in (more, base) for name in dtype.names or () if dtype.fields]
    return np.dtype(fields, metadata=dict(base.metadata or ()) | dict(more.metadata or ()))


class Frame:
    """Arguments of a kernel: `frame.record` is what the kernel gets, (1,) of the record type.

    `set` takes C-contiguous arrays by address and keeps them alive; every field must have been set before `record`
    is read.
    """

    def __init__(self, dtype: np.dtype[np.void], **values: Any) -> None:
        self._record = np.zeros(1, dtype)
        self._kinds: Mapping[str, str] = dtype.metadata or {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._missing = set(dtype.names or ())
        self.set(**values)

    def set(self, **values: Any) -> Frame:
        """Fill fields; arrays must be C-contiguous and of their type: a kernel sees nothing but their address."""
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                self._check(name, value)
                self._arrays[name] = value
                self._record[name] = value.ctypes.data
            else:
                self._record[name] = value
            self._missing.discard(name)
        return self

    def _check(self, name: str, value: np.ndarray[Any, Any]) -> None:
        kind = self._kinds.get(name)
        if kind is None and name in self.names:
            raise UsageError(f"{name} must be a number, not an array")
        if kind is not None and not issubclass(value.dtype.type, _ELEMENTS[kind]):
            raise UsageError(f"{name} must hold {kind}, not {value.dtype}")
        if not value.flags.c_contiguous:
            raise UsageError(f"{name} must be C-contiguous: pass numpy.ascontiguousarray({name})")

    @property
    def names(self) -> tuple[str, ...]:
        """All fields."""
        return self._record.dtype.names or ()

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """The array behind a field."""
        return self._arrays[name]

    def value(self, name: str) -> Any:
        """The number in a field."""
        return self._record[name][0].item()

    @property
    def record(self) -> np.ndarray[Any, np.dtype[np.void]]:
        """The record, once complete."""
        if self._missing:
            raise UsageError(f"frame fields not set: {', '.join(sorted(self._missing))}")
        return self._record


# --- What arguments of kernels are, in their signatures: names for readers, as Numba finds types out by itself ---
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
