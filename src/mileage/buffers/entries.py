"""`push` and `push_batch` of a replay buffer as compiled methods that the interpreter calls itself.

A compiled method finds the buffer's `_entry` in the object itself: the addresses it needs, gathered once by `describe`.
It compares each argument with what it must be, stores the transitions, and leaves everything unusual (keywords, arrays
that do not fit, no room for final observations) to the Python method of the same meaning, `_push_checked` or
`_push_batch_checked`. Nothing is written before all arguments have been looked at.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Self

import numpy as np

from mileage._types import I64
from mileage.kernels.machine import objects as _objects
from mileage.kernels.machine.jit import callback, inner
from mileage.kernels.machine.memory import fence
from mileage.kernels.machine.objects import DATA, DIMENSIONS, DTYPE, FLAGS, INT_MASK, KIND, NDIM, PLAIN, VALUE, is_plain
from mileage.kernels.machine.pointers import call_int64, f32, f64, frame_maker, i64, u8
from mileage.kernels.storage import ring

# Where instances of `HasEntry` keep their `_entry`, in words.
_SLOT = 2
# Bytes of observations from which on other threads may run meanwhile: letting them costs as much as copying these.
_LONG = 1 << 15
_ARGUMENTS = 6

# What `_entry` holds; `_SCRATCH` is memory for an action that is a number.
(
    _RING, _OBS_DTYPE, _ACTION_DTYPE, _ACTION_CODE, _ARRAY, _FLOAT32, _FLOAT64, _BOOL, _UINT8, _TRUE, _FALSE, _TRUE_,
    _FALSE_, _FLOAT, _INT, _FLOAT64_NUMBER, _FLOAT32_NUMBER, _INT64_NUMBER, _NONE, _PUSH_NAME, _BATCH_NAME, _KEEP,
    _LET_GO, _ATTRIBUTE, _CALL, _TO_INT, _ERROR, _NO_ERROR, _SAVE, _RESTORE, _SCRATCH, _FIELDS,
) = range(32)  # fmt: skip
_FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyObject_GetAttr", "PyObject_Vectorcall", "PyLong_AsLongLong", "PyErr_Occurred",
    "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
# Names of the methods that take what is unusual: compiled code looks them up by these very objects.
_CHECKED, _BATCH_CHECKED = sys.intern("_push_checked"), sys.intern("_push_batch_checked")
# Kinds of actions that are single numbers, and those that are arrays.
_CODES = {"float32": 1, "int64": 2, "int32": 3, "uint8": 4}
_AS_ARRAY, _AS_FLOAT, _AS_INT64, _AS_INT32, _AS_UINT8 = 0, *_CODES.values()

_ring_at = frame_maker(ring.RING)


class HasEntry:
    """Keeps `_entry` at a fixed place of the object."""

    __slots__ = ("_entry",)
    _entry: I64

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """An object that hands on everything until it is built."""
        made = super().__new__(cls)
        made._entry = _unbuilt()
        return made


@functools.cache
def _shared() -> list[int]:
    """What is the same for all buffers, from `_ARRAY` on."""
    dtypes = [id(np.dtype(kind)) for kind in (np.float32, np.float64, np.bool_, np.uint8)]
    flags = [id(flag) for flag in (True, False, np.True_, np.False_)]
    numbers = [id(kind) for kind in (float, int, np.float64, np.float32, np.int64)]
    names = [id(None), id(_CHECKED), id(_BATCH_CHECKED)]
    return [id(np.ndarray), *dtypes, *flags, *numbers, *names, *_objects.python_functions(*_FUNCTIONS)]


@functools.cache
def _unbuilt() -> I64:
    entry = np.zeros(_FIELDS, np.int64)
    entry[_ARRAY:_SCRATCH] = _shared()
    return entry


def describe(frame: Any, layout: Any) -> I64:
    """The `_entry` of a buffer: `frame` is its ring's record, (1,) `mileage.kernels.storage.ring.RING`."""
    entry = _unbuilt().copy()
    action = np.dtype(layout.action_dtype)
    entry[_RING] = frame.ctypes.data
    entry[[_OBS_DTYPE, _ACTION_DTYPE]] = id(np.dtype(layout.obs_dtype)), id(action)
    entry[_ACTION_CODE] = _AS_ARRAY if layout.action_shape else _CODES[action.name]
    return entry


@functools.cache
def install(kind: type[Any], name: str) -> bool:
    """Put the compiled `push` or `push_batch` in the place of `kind`'s; False where objects look different."""
    probe = HasEntry()
    probe._entry = np.zeros(1, np.int64)
    if not _objects.supported() or _objects.words(probe, _SLOT + 1)[_SLOT] != id(probe._entry):
        return False
    plain = getattr(kind, name)
    address = callback("int64(int64, int64, int64, int64)")({"push": push, "push_batch": push_batch}[name]).address
    signature = f"($self, {', '.join(plain.__code__.co_varnames[1 : plain.__code__.co_argcount])})"
    definition = _objects.define(name, signature, plain.__doc__, address, _objects.ANY_ARGUMENTS)
    setattr(kind, name, _objects.method(kind, definition))
    return True


@inner
def _handed_on(entry: Any, buffer: Any, name: Any, arguments: Any, count: Any, names: Any) -> Any:
    """What the Python method called `name` returns for the same arguments; 0 if it raised."""
    checked = call_int64(entry[_ATTRIBUTE], (buffer, name))
    if checked == 0:
        return 0
    result = call_int64(entry[_CALL], (checked, arguments, count, names))
    call_int64(entry[_LET_GO], (checked,))
    return result


@inner
def _nothing(entry: Any) -> Any:
    """None, to be returned."""
    call_int64(entry[_KEEP], (entry[_NONE],))
    return entry[_NONE]


@inner
def _batch_of(entry: Any, array: Any, dtype: Any, expected: Any, axes: Any, n: Any) -> Any:
    """Whether an object is an array of `n` rows of a shape; `expected[1]` is the first axis after the rows."""
    if not is_plain(array, entry[_ARRAY], dtype, axes):
        return False
    lengths = i64(array[DIMENSIONS])
    fits = lengths[0] == n
    for axis in range(1, axes):
        fits &= lengths[axis] == expected[axis]
    return fits


@inner
def _column_of(entry: Any, array: Any, first_dtype: Any, second_dtype: Any, n: Any) -> Any:
    """Whether an object is a vector of `n` entries of one of two dtypes."""
    if array[KIND] != entry[_ARRAY]:
        return False
    known = (array[DTYPE] == first_dtype) | (array[DTYPE] == second_dtype)
    if not (known & ((array[NDIM] & INT_MASK) == 1) & ((array[FLAGS] & PLAIN) == PLAIN)):
        return False
    return i64(array[DIMENSIONS])[0] == n


@inner
def _bind_batch(entry: Any, objects: Any) -> Any:
    """Enter the arrays of a batch in the ring's frame; False unless all of them fit and there is room."""
    ring_ = _ring_at(entry[_RING])
    obs, actions, rewards = i64(objects[0]), i64(objects[1]), i64(objects[2])
    terminated, truncated, next_obs = i64(objects[3]), i64(objects[4]), i64(objects[5])
    if obs[KIND] != entry[_ARRAY] or (obs[NDIM] & INT_MASK) != ring_.obs_axes:
        return False
    n = i64(obs[DIMENSIONS])[0]
    if n == 0 or n % ring_.n_envs != 0 or n // ring_.n_envs > ring_.rows:
        return False
    if ring_.next_at == 0 and i64(ring_.counters)[ring.FREE] < n:
        return False
    shape, axes = i64(ring_.obs_shape), ring_.obs_axes
    if not (
        _batch_of(entry, obs, entry[_OBS_DTYPE], shape, axes, n)
        and _batch_of(entry, next_obs, entry[_OBS_DTYPE], shape, axes, n)
        and _batch_of(entry, actions, entry[_ACTION_DTYPE], i64(ring_.action_shape), ring_.action_axes, n)
        and _column_of(entry, rewards, entry[_FLOAT32], entry[_FLOAT64], n)
        and _column_of(entry, terminated, entry[_BOOL], entry[_UINT8], n)
        and _column_of(entry, truncated, entry[_BOOL], entry[_UINT8], n)
    ):
        return False
    ring_.source_obs, ring_.source_actions, ring_.source_next_obs = obs[DATA], actions[DATA], next_obs[DATA]
    ring_.source_terminated, ring_.source_truncated = terminated[DATA], truncated[DATA]
    ring_.source_rewards, ring_.source_wide_rewards = rewards[DATA], np.int64(rewards[DTYPE] == entry[_FLOAT64])
    ring_.source_n = n
    return True


def push_batch(buffer: Any, arguments: Any, count: Any, names: Any) -> Any:
    """Address of None for the buffer and the `count` objects at `arguments`, the last of them `names`; 0 if raised."""
    entry = i64(i64(i64(buffer)[_SLOT])[DATA])
    fits = (count == _ARGUMENTS) & (names == 0) & (entry[_RING] != 0)
    if fits:
        fits = _bind_batch(entry, i64(arguments))
    if not fits:
        return _handed_on(entry, buffer, entry[_BATCH_NAME], arguments, count, names)
    ring_ = _ring_at(entry[_RING])
    if ring_.source_n * ring_.obs_bytes < _LONG:
        ring.push_source(ring_)
    else:
        thread = call_int64(entry[_SAVE], ())
        ring.push_source(ring_)
        call_int64(entry[_RESTORE], (thread,))
    return _nothing(entry)


@inner
def _whole(entry: Any, number: Any) -> Any:
    """Whether an object is a Python or NumPy integer that fits in 64 bits, and its value."""
    kind = i64(number)[KIND]
    if kind == entry[_INT64_NUMBER]:
        return True, i64(number)[VALUE]
    if kind != entry[_INT]:
        return False, np.int64(0)
    value = call_int64(entry[_TO_INT], (number,))
    if value == -1 and call_int64(entry[_ERROR], ()) != 0:
        call_int64(entry[_NO_ERROR], ())
        return False, np.int64(0)
    return True, value


@inner
def _real(entry: Any, number: Any) -> Any:
    """Whether an object is a Python or NumPy number, and its value, float64."""
    kind, at = i64(number)[KIND], number + 8 * VALUE
    if kind == entry[_FLOAT] or kind == entry[_FLOAT64_NUMBER]:
        return True, f64(at)[0]
    if kind == entry[_FLOAT32_NUMBER]:
        return True, np.float64(f32(at)[0])
    fits, value = _whole(entry, number)
    return fits, np.float64(value)


@inner
def _flag(entry: Any, thing: Any) -> Any:
    """1 for true, 0 for false, -1 for what is neither."""
    if thing == entry[_FALSE] or thing == entry[_FALSE_]:
        return 0
    return 1 if thing == entry[_TRUE] or thing == entry[_TRUE_] else -1


@inner
def _action_at(entry: Any, thing: Any, scratch: Any, shape: Any, axes: Any) -> Any:
    """Address of an action's bytes, which are written to `scratch` if it is a number; 0 if it does not fit."""
    code = entry[_ACTION_CODE]
    if code == _AS_ARRAY:
        array = i64(thing)
        return array[DATA] if _one_of(entry, array, entry[_ACTION_DTYPE], shape, axes) else np.int64(0)
    if code == _AS_FLOAT:
        fits, real = _real(entry, thing)
        f32(scratch)[0] = np.float32(real)
        return scratch if fits else np.int64(0)
    fits, whole = _whole(entry, thing)
    # The low bytes come first.
    i64(scratch)[0] = whole
    if code == _AS_INT32:
        fits = fits and -(1 << 31) <= whole < 1 << 31
    elif code == _AS_UINT8:
        fits = fits and 0 <= whole < 1 << 8
    return scratch if fits else np.int64(0)


@inner
def _one_of(entry: Any, array: Any, dtype: Any, expected: Any, axes: Any) -> Any:
    """Whether an object is an array of the shape of one row, see `_batch_of`."""
    if not is_plain(array, entry[_ARRAY], dtype, axes - 1):
        return False
    lengths = i64(array[DIMENSIONS])
    fits = True
    for axis in range(1, axes):
        fits &= lengths[axis - 1] == expected[axis]
    return fits


@inner
def _store_one(entry: Any, scratch: Any, objects: Any) -> Any:
    """Store one transition; False, and nothing written, unless all its parts fit and there is room."""
    ring_ = _ring_at(entry[_RING])
    if ring_.n_envs != 1 or (ring_.next_at == 0 and i64(ring_.counters)[ring.FREE] == 0):
        return False
    obs, next_obs = i64(objects[0]), i64(objects[5])
    dtype, shape, axes = entry[_OBS_DTYPE], i64(ring_.obs_shape), ring_.obs_axes
    if not (_one_of(entry, obs, dtype, shape, axes) and _one_of(entry, next_obs, dtype, shape, axes)):
        return False
    fits, reward = _real(entry, objects[2])
    terminated, truncated = _flag(entry, objects[3]), _flag(entry, objects[4])
    action = _action_at(entry, objects[1], scratch, i64(ring_.action_shape), ring_.action_axes)
    if not fits or terminated < 0 or truncated < 0 or action == 0:
        return False
    is_long, thread = ring_.obs_bytes >= _LONG, np.int64(0)
    if is_long:
        thread = call_int64(entry[_SAVE], ())
    row = ring.begin_row(ring_)
    ring.store(
        ring_,
        0,
        row,
        u8(obs[DATA]),
        u8(action),
        np.float32(reward),
        terminated > 0,
        truncated > 0,
        u8(next_obs[DATA]),
    )
    fence()
    ring.commit_row(ring_)
    if is_long:
        call_int64(entry[_RESTORE], (thread,))
    return True


def push(buffer: Any, arguments: Any, count: Any, names: Any) -> Any:
    """As `push_batch`, for one transition."""
    at = i64(i64(buffer)[_SLOT])[DATA]
    entry = i64(at)
    fits = (count == _ARGUMENTS) & (names == 0) & (entry[_RING] != 0)
    if fits:
        fits = _store_one(entry, at + 8 * _SCRATCH, i64(arguments))
    if not fits:
        return _handed_on(entry, buffer, entry[_PUSH_NAME], arguments, count, names)
    return _nothing(entry)
