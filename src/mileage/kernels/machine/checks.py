"""What array kernels check before they run: one comparison per property, then bare loops.

A check costs about 0.2 µs per array, which matters: a whole GAE over 8 environments takes 2 µs.

NaN policy of all kernels: NaN and infinity are not looked for unless `check_finite` asks, and spread to exactly the
results that depend on them. Values that a mask or an episode end makes irrelevant are never part of a result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage.errors import UsageError
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.memory import empty

F32_DTYPE = np.dtype(np.float32)
F64_DTYPE = np.dtype(np.float64)
_MASK_DTYPES = frozenset(np.dtype(kind) for kind in (np.bool_, np.uint8, np.float32))


def check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any = F32_DTYPE) -> None:
    """Raise unless `array` is a C-contiguous NumPy array of `shape` and `dtype`."""
    fits = type(array) is np.ndarray and array.dtype is dtype and array.shape == shape
    if not fits or not array.flags.c_contiguous:
        _explain(name, array, shape, (dtype,))


def check_field(name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[np.dtype[np.generic], ...]) -> None:
    """Raise unless `array` is a C-contiguous NumPy array of `shape` and one of `dtypes`."""
    fits = isinstance(array, np.ndarray) and array.shape == shape and array.dtype in dtypes
    if not fits or not array.flags.c_contiguous:
        _explain(name, array, shape, dtypes)


def check_mask(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raise unless `array` is a C-contiguous bool, uint8 or float32 array of `shape`; non-zero means true."""
    fits = type(array) is np.ndarray and array.dtype in _MASK_DTYPES and array.shape == shape
    if not fits or not array.flags.c_contiguous:
        _explain(name, array, shape, ("bool", "uint8", "float32"))


def matrix_shape(name: str, array: Any, axes: str) -> tuple[int, int]:
    """The shape of `array`, raising unless it is a NumPy array of two dimensions, neither of them empty."""
    if type(array) is not np.ndarray or array.ndim != 2 or array.size == 0:
        found = f"shape {array.shape}" if type(array) is np.ndarray else _kind(array)
        raise UsageError(f"{name} must be a non-empty NumPy array of shape {axes}, not {found}")
    rows, columns = array.shape
    return rows, columns


def check_out(out: Any, names: tuple[str, str], shape: tuple[int, ...], inputs: tuple[Any, ...]) -> Any:
    """The pair of float32 arrays to write to: `out` if it fits and overlaps no input, new ones if it is None."""
    if out is None:
        both = empty((2, *shape))
        return both[0], both[1]
    if type(out) is not tuple or len(out) != 2:
        raise UsageError(f"out must be a tuple of two arrays: ({names[0]}, {names[1]})")
    first, second = out
    check_writable("out[0]", first, shape, F32_DTYPE)
    check_writable("out[1]", second, shape, F32_DTYPE)
    check_disjoint(out, inputs)
    return out


def check_writable(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise unless `array` can hold a result of `shape` and `dtype`."""
    check_array(name, array, shape, dtype)
    if not array.flags.writeable:
        raise UsageError(f"{name} is read-only: pass an array that can be written to")


def check_unit(name: str, value: float) -> float:
    """`value` as a float, raising unless 0 <= value <= 1."""
    number = value if type(value) is float else check_number(name, value)
    if not 0.0 <= number <= 1.0:
        raise UsageError(f"{name} must lie between 0 and 1, not {value}")
    return number


def check_number(name: str, value: float) -> float:
    """`value` as a float, raising unless it is a single number."""
    if not isinstance(value, int | float | np.integer | np.floating):
        raise UsageError(f"{name} must be a number, not {_kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{name} must be a number that a float can hold, not one of its size") from None


def check_count(name: str, value: int) -> int:
    """`value` as an int, raising unless it is a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or value < 1:
        shown = repr(value) if isinstance(value, int | float | np.integer | np.floating) else _kind(value)
        raise UsageError(f"{name} must be a whole number of at least 1, not {shown}")
    return int(value)


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of the words `choices`."""
    if not isinstance(value, str) or value not in choices:
        *words, last = (f'"{choice}"' for choice in choices)
        raise UsageError(f"{name} must be {', '.join(words)} or {last}, not {value!r}")


def _kind(value: object) -> str:
    """What `value` is, in a few words."""
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
        return f"{type(value).__name__}: pass a plain array"
    return f"an array of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


def check_all_finite(**arrays: Any) -> None:
    """Raise naming the first array that holds NaN or infinity; None is passed over."""
    for name, array in arrays.items():
        if array is not None and not np.isfinite(array).all():
            where = tuple(int(index) for index in np.argwhere(~np.isfinite(array))[0])
            raise UsageError(f"{name} holds {array[where]} at index {where}: find where it comes from, or clean it")


def _explain(name: str, array: Any, shape: tuple[int, ...], dtypes: tuple[Any, ...]) -> None:
    """Raise the sentence for the first thing that is wrong with `array`."""
    wanted = " or ".join(str(dtype) for dtype in dtypes)
    if not isinstance(array, np.ndarray) or isinstance(array, np.matrix | np.ma.MaskedArray):
        raise UsageError(f"{name} must be a NumPy array of shape {shape} and dtype {wanted}, not {_kind(array)}")
    if array.shape != shape:
        raise UsageError(f"{name} must have shape {shape}, not {array.shape}")
    if str(array.dtype) not in {str(dtype) for dtype in dtypes}:
        raise UsageError(f"{name} must have dtype {wanted}, not {array.dtype}: convert it with .astype")
    if not array.flags.c_contiguous:
        raise UsageError(f"{name} must be C-contiguous: pass np.ascontiguousarray({name})")
    if type(array) is not np.ndarray:
        raise UsageError(f"{name} must be a plain NumPy array, not {type(array).__name__}: pass np.asarray({name})")


def check_disjoint(outs: tuple[Any, ...], inputs: tuple[Any, ...]) -> None:
    """Raise if results would overwrite an input still to be read, or each other. All arrays are C-contiguous."""
    if _any_shared(outs, inputs):
        raise UsageError("out shares memory with an input or with itself: pass arrays of their own")


@intrinsic
def _shared_bytes(typingctx: Any, outs: Any, inputs: Any) -> Any:
    """Whether a C-contiguous array of `outs` shares bytes with another of them, or with one of `inputs`.

    Written as instructions, for Numba would compile a function for each pair of types.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        spans = []
        for tuple_type, values in zip(signature.args, args, strict=True):
            for position, array_type in enumerate(tuple_type.types):
                array = context.make_array(array_type)(context, builder, builder.extract_value(values, position))
                start = builder.ptrtoint(array.data, array.nitems.type)
                spans.append((start, builder.add(start, builder.mul(array.nitems, array.itemsize))))
        found = cgutils.false_bit
        for position in range(len(signature.args[0].types)):
            start, end = spans[position]
            for other_start, other_end in spans[position + 1 :]:
                before = builder.icmp_unsigned("<", start, other_end)
                after = builder.icmp_unsigned("<", other_start, end)
                found = builder.or_(found, builder.and_(before, after))
        return found

    return types.boolean(outs, inputs), codegen


@kernel
def _any_shared(outs: Any, inputs: Any) -> Any:
    return _shared_bytes(outs, inputs)
