"""`VecEnv.step` as one compiled function that the interpreter calls itself.

A Python method around a Numba kernel costs about a microsecond, twenty times what stepping eight CartPoles takes:
frames, attribute lookups, unpacking of arrays. Here the function the interpreter calls (METH_O: one object in, one
out) is compiled code. It compares the action array with what it must be by looking at the array object itself, steps,
and builds the tuple of results. Anything unexpected goes to the plain Python method, which explains or converts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from mileage._types import I64
from mileage.kernels.machine import objects as _objects
from mileage.kernels.machine.jit import callback
from mileage.kernels.machine.objects import DATA, DIMENSIONS, ITEMS, is_plain, supported
from mileage.kernels.machine.pointers import call_int64, f32, i64, u8

__all__ = ["build", "supported"]
_RESULTS = 5

# Fields of the record behind the function.
(
    _ARRAY_KIND, _ACTION_DTYPE, _ACTION_NDIM, _ROWS, _COLUMNS, _ADVANCE, _STATE, _ELAPSED, _RNG, _ACTION, _OBS, _REWARD,
    _TERMINATED, _TRUNCATED, _FINAL_OBS, _MAX_STEPS, _N_ACTIONS, _DONE, _OBS_OBJECT, _INFOS_OBJECT, _CHECKED_OBJECT,
    _NEW_DICT, _COPY_DICT, _NEW_TUPLE, _KEEP, _CALL, _FIELDS,
) = range(27)  # fmt: skip


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
    record[_OBS_OBJECT] = id(owner) + 8 * (ITEMS + 1)
    record[[_INFOS_OBJECT, _CHECKED_OBJECT]] = id(infos), id(checked)
    record[_NEW_DICT : _CALL + 1] = _python_functions()
    return _objects.bound_function(_definition(), owner)


@functools.cache
def _python_functions() -> list[int]:
    return _objects.python_functions("PyDict_New", "PyDict_Copy", "PyTuple_New", "Py_IncRef", "PyObject_CallOneArg")


@functools.cache
def _definition() -> Any:
    doc = "Step every environment once, see `mileage.VecEnv`."
    return _objects.define("step", "(actions)", doc, _entry().address, _objects.ONE_ARGUMENT)


@functools.cache
def _entry() -> Any:
    return callback("int64(int64, int64)")(step_entry)


def step_entry(owner: Any, actions: Any) -> Any:
    """Address of the tuple of results for the objects at `owner` (the tuple of `build`) and `actions`."""
    record = i64(i64(i64(owner)[ITEMS])[DATA])
    array = i64(actions)
    fits = is_plain(array, record[_ARRAY_KIND], record[_ACTION_DTYPE], record[_ACTION_NDIM])
    if fits:
        dimensions = i64(array[DIMENSIONS])
        fits = (dimensions[0] == record[_ROWS]) & (dimensions[record[_ACTION_NDIM] - 1] == record[_COLUMNS])
    row = array[DATA]
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
        items[ITEMS + k] = objects[k]
    items[ITEMS + _RESULTS - 1] = infos
    return result
