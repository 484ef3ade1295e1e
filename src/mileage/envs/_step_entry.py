"""`VecEnv.step` as one compiled function that the interpreter calls itself.

A Python method around a Numba kernel costs about a microsecond, twenty times what stepping eight CartPoles takes:
frames, attribute lookups, unpacking of arrays. Here the function the interpreter calls (METH_O: one object in, one
out) is compiled code. It compares the action array with what it must be by looking at the array object itself, steps,
and builds the tuple of results. Anything unexpected goes to the plain Python method, which explains or converts.

The places of fields in array and tuple objects are those of the C interface of CPython and NumPy, the same in every
release so far; `supported` looks at real objects before anything relies on that.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

import numpy as np

from mileage._types import I64
from mileage.kernels._jit import callback
from mileage.kernels._pointers import call_int64, f32, i64, u8

_METH_O = 0x0008
# Places within objects, in words of eight bytes; a tuple's items start at _ITEMS.
_KIND, _ITEMS = 1, 3
_DATA, _NDIM, _DIMENSIONS, _DTYPE, _FLAGS = 2, 3, 4, 7, 8
_INT_MASK, _C_CONTIGUOUS = 0xFFFFFFFF, 1
_RESULTS = 5

# Fields of the record behind the function.
(
    _ARRAY_KIND, _ACTION_DTYPE, _ACTION_NDIM, _ROWS, _COLUMNS, _ADVANCE, _STATE, _ELAPSED, _RNG, _ACTION, _OBS, _REWARD,
    _TERMINATED, _TRUNCATED, _FINAL_OBS, _MAX_STEPS, _N_ACTIONS, _DONE, _OBS_OBJECT, _INFOS_OBJECT, _CHECKED_OBJECT,
    _NEW_DICT, _COPY_DICT, _NEW_TUPLE, _KEEP, _CALL, _FIELDS,
) = range(27)  # fmt: skip


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _words(thing: Any, count: int) -> list[int]:
    """The first words of an object."""
    return list((ctypes.c_int64 * count).from_address(id(thing)))


@functools.cache
def supported() -> bool:
    """Whether objects look here as this module takes them to."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or sys.maxsize < 2**62:
        return False
    array = np.zeros((5, 3), np.int64)
    words = _words(array, 9)
    dimensions = list((ctypes.c_int64 * 2).from_address(words[_DIMENSIONS]))
    transposed = _words(array.T, 9)
    pair = (array, words)
    return (
        words[_KIND] == id(np.ndarray)
        and words[_DATA] == array.ctypes.data
        and words[_NDIM] & _INT_MASK == 2
        and dimensions == [5, 3]
        and words[_DTYPE] == id(np.dtype(np.int64))
        and (words[_FLAGS] & _C_CONTIGUOUS, transposed[_FLAGS] & _C_CONTIGUOUS) == (1, 0)
        and _words(pair, 5)[2:] == [2, id(array), id(words)]
    )


def build(env: Any, checked: Callable[[Any], Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """The function for one vector environment: `step(actions)`, with `checked(actions)` for all that is unusual."""
    record: I64 = np.zeros(_FIELDS, np.int64)
    infos = {"final_obs": env.final_obs, "_final_obs": env._done}
    results = (env.obs, env.reward, env.terminated, env.truncated)
    record[[_ARRAY_KIND, _ACTION_DTYPE, _ACTION_NDIM]] = id(np.ndarray), id(dtype), len(shape)
    record[[_ROWS, _COLUMNS]] = shape[0], shape[-1]
    record[_ADVANCE] = env.spec.advance_address
    arrays = (env.state, env.elapsed, env.rng, env.action, *results, env.final_obs)
    record[_STATE : _FINAL_OBS + 1] = [array.ctypes.data for array in arrays]
    record[[_MAX_STEPS, _N_ACTIONS, _DONE]] = env.max_steps, env.spec.n_actions, env._done.ctypes.data
    # The four results stand one after the other in this tuple, after the record.
    owner = (record, *results, infos, checked, dtype, arrays)
    record[_OBS_OBJECT] = id(owner) + 8 * (_ITEMS + 1)
    record[[_INFOS_OBJECT, _CHECKED_OBJECT]] = id(infos), id(checked)
    record[_NEW_DICT : _CALL + 1] = _python_functions()
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(ctypes.addressof(_definition()), owner, None)


@functools.cache
def _python_functions() -> tuple[int, ...]:
    names = ("PyDict_New", "PyDict_Copy", "PyTuple_New", "Py_IncRef", "PyObject_CallOneArg")
    return tuple(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in names)


@functools.cache
def _definition() -> _MethodDefinition:
    """What CPython wants to know of a function; kept for good, as functions point to it."""
    doc = b"step(actions)\n--\n\nStep every environment once, see `mileage.VecEnv`."
    return _MethodDefinition(b"step", _entry().address, _METH_O, doc)


@functools.cache
def _entry() -> Any:
    return callback("int64(int64, int64)")(step_entry)


def step_entry(owner: Any, actions: Any) -> Any:
    """Address of the tuple of results for the objects at `owner` (the tuple of `build`) and `actions`."""
    record = i64(i64(i64(owner)[_ITEMS])[_DATA])
    array = i64(actions)
    fits = array[_KIND] == record[_ARRAY_KIND]
    if fits:
        fits = (
            (array[_DTYPE] == record[_ACTION_DTYPE])
            & ((array[_NDIM] & _INT_MASK) == record[_ACTION_NDIM])
            & ((array[_FLAGS] & _C_CONTIGUOUS) == 1)
        )
    if fits:
        dimensions = i64(array[_DIMENSIONS])
        fits = (dimensions[0] == record[_ROWS]) & (dimensions[record[_ACTION_NDIM] - 1] == record[_COLUMNS])
    row = array[_DATA]
    n = record[_ROWS]
    if fits and record[_N_ACTIONS] > 0:
        indices, action = i64(row), f32(record[_ACTION])
        wrong = 0
        for i in range(n):
            index = indices[i]
            wrong |= (index < 0) | (index >= record[_N_ACTIONS])
            action[i] = np.float32(index)
        fits = wrong == 0
        row = record[_ACTION]
    if not fits:
        return call_int64(record[_CALL], (record[_CHECKED_OBJECT], actions))
    ended = call_int64(
        record[_ADVANCE],
        (
            record[_STATE], record[_ELAPSED], record[_RNG], row, record[_OBS], record[_REWARD], record[_TERMINATED],
            record[_TRUNCATED], record[_FINAL_OBS], n, record[_MAX_STEPS],
        ),
    )  # fmt: skip
    if ended == 0:
        infos = call_int64(record[_NEW_DICT], ())
    else:
        terminated, truncated, done = u8(record[_TERMINATED]), u8(record[_TRUNCATED]), u8(record[_DONE])
        for i in range(n):
            done[i] = terminated[i] | truncated[i]
        infos = call_int64(record[_COPY_DICT], (record[_INFOS_OBJECT],))
    result = call_int64(record[_NEW_TUPLE], (np.int64(_RESULTS),))
    items, objects = i64(result), i64(record[_OBS_OBJECT])
    for k in range(_RESULTS - 1):
        call_int64(record[_KEEP], (objects[k],))
        items[_ITEMS + k] = objects[k]
    items[_ITEMS + _RESULTS - 1] = infos
    return result
