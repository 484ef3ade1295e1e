"""Python and NumPy objects as compiled code sees them, and compiled functions that the interpreter calls itself.

A Python method around a Numba kernel costs about a microsecond: frames, attribute lookups, unpacking of arrays. A
function that the interpreter calls straight away costs a tenth of that, and can look at its arguments' types, shapes
and memory itself. What it does not expect it hands to a plain Python method, which explains or converts.

The places of fields in objects are those of the C interface of CPython and NumPy, the same in every release so far;
`supported` looks at real objects before anything relies on that.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from typing import Any

import numpy as np

from mileage.kernels.machine.jit import inner

# How the interpreter calls a function: with one object, or with the address of several and the names of some.
ONE_ARGUMENT, ANY_ARGUMENTS = 0x0008, 0x0082
# Places within objects, in words of eight bytes; a tuple's items start at ITEMS, a number's value is at VALUE.
KIND, VALUE, ITEMS = 1, 2, 3
DATA, NDIM, DIMENSIONS, DTYPE, FLAGS = 2, 3, 4, 7, 8
INT_MASK = 0xFFFFFFFF
C_CONTIGUOUS, ALIGNED = 0x1, 0x100
PLAIN = C_CONTIGUOUS | ALIGNED


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Functions point to their definition for as long as the process lives.
_definitions: list[_MethodDefinition] = []


def words(thing: Any, count: int) -> list[int]:
    """The first words of an object."""
    return list((ctypes.c_int64 * count).from_address(id(thing)))


@functools.cache
def supported() -> bool:
    """Whether objects look here as this module takes them to."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or sys.maxsize < 2**62:
        return False
    if sys.byteorder != "little":
        return False
    array = np.zeros((5, 3), np.int64)
    found = words(array, 9)
    dimensions = list((ctypes.c_int64 * 2).from_address(found[DIMENSIONS]))
    transposed = words(array.T, 9)
    pair = (array, found)
    numbers = (1.5, np.float64(1.5), np.float32(1.5), np.int64(7))
    return (
        found[KIND] == id(np.ndarray)
        and found[DATA] == array.ctypes.data
        and found[NDIM] & INT_MASK == 2
        and dimensions == [5, 3]
        and found[DTYPE] == id(np.dtype(np.int64))
        and (found[FLAGS] & PLAIN, transposed[FLAGS] & PLAIN) == (PLAIN, ALIGNED)
        and words(pair, 5)[2:] == [2, id(array), id(found)]
        and [_value(number) for number in numbers] == list(numbers)
    )


def _value(number: Any) -> Any:
    at = ctypes.addressof((ctypes.c_int64 * 3).from_address(id(number))) + 8 * VALUE
    kind: Any = {np.float32: ctypes.c_float, np.int64: ctypes.c_int64}.get(type(number), ctypes.c_double)
    return kind.from_address(at).value


def python_functions(*names: str) -> list[int]:
    """Addresses of functions of CPython's C interface."""
    return [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names]


def bound_function(definition: Any, owner: Any) -> Any:
    """A function that the interpreter calls with `owner` first."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(definition), owner, None)


def method(kind: type[Any], definition: Any) -> Any:
    """A method of the class `kind`: a function that the interpreter calls with the instance first."""
    make = ctypes.pythonapi.PyDescr_NewMethod
    make.restype, make.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    return make(kind, ctypes.addressof(definition))


def define(name: str, signature: str, doc: str, address: int, flags: int) -> Any:
    """What CPython wants to know of a function at `address`; kept for good."""
    text = f"{name}{signature}\n--\n\n{doc}".encode()
    definition = _MethodDefinition(name.encode(), address, flags, text)
    _definitions.append(definition)
    return definition


@inner
def is_plain(array: Any, kind: Any, dtype: Any, ndim: Any) -> Any:
    """Whether the object at `array` is of the type `kind` (`numpy.ndarray`), C-contiguous, of this very dtype.

    `array` is a pointer to words, the others are addresses and a number of axes.
    """
    if array[KIND] != kind:
        return False
    return (array[DTYPE] == dtype) & ((array[NDIM] & INT_MASK) == ndim) & ((array[FLAGS] & PLAIN) == PLAIN)
