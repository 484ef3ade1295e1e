"""Many simulations of one MuJoCo model in native threads: the batch interface of MuJoCo's C library (4.0 or later).

MuJoCo's `mujoco.rollout` hands back states and sensors only: not the solver's warm start, without which a simulation
drifts from one that was never interrupted, nor the quantities of the last Runge-Kutta stage that Gymnasium's
environments observe. A batch keeps whole states and copies any field out. Its Python class lacks one thing that is
needed here, to run a function on every simulation (`mjb_apply`), hence the C interface.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mileage._errors import MileageError
from mileage._types import F64, I64

_STAGE_NONE, _STAGE_ACCELERATION = 0, 3
_STATE = {
    "qpos": mujoco.mjtState.mjSTATE_QPOS,
    "qvel": mujoco.mjtState.mjSTATE_QVEL,
    "ctrl": mujoco.mjtState.mjSTATE_CTRL,
}
_pointer, _int = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "mjb_makeBatch": (_pointer, [_pointer, _int, _pointer, ctypes.c_char_p, _int]),
    "mjb_deleteBatch": (None, [_pointer]),
    "mjb_nstate": (_int, [_pointer]),
    "mjb_state": (_pointer, [_pointer]),
    "mjb_stateComponent": (_pointer, [_pointer, _int, _pointer]),
    "mjb_output": (_pointer, [_pointer, ctypes.c_char_p, _pointer, _pointer]),
    "mjb_reset": (_int, [_pointer, _pointer, _int, _pointer, _int]),
    "mjb_forward": (_int, [_pointer, _pointer, _int, _int]),
    "mjb_step": (_int, [_pointer, _pointer, _int, _int, _int]),
    "mjb_apply": (_int, [_pointer, _pointer, _int, _pointer, _pointer, _int]),
    "mjb_status": (_pointer, [_pointer]),
    "mjb_error": (ctypes.c_char_p, [_pointer, _int]),
}


class _Config(ctypes.Structure):
    _fields_ = (("nthread", _int), ("persistent", ctypes.c_bool))


@functools.cache
def library() -> ctypes.CDLL | None:
    """MuJoCo's C library with the functions of a batch declared, or None if it has none."""
    folder = Path(mujoco.__file__).parent
    found = [*folder.glob("libmujoco.so*"), *folder.glob("libmujoco*.dylib"), *folder.glob("mujoco.dll")]
    name = str(found[0]) if found else ctypes.util.find_library("mujoco")
    try:
        handle = ctypes.CDLL(name) if name else None
        if handle is not None:
            for function, (result, arguments) in _SIGNATURES.items():
                getattr(handle, function).restype = result
                getattr(handle, function).argtypes = arguments
    except (OSError, AttributeError):
        return None
    return handle


class _Handle:
    """A batch of the C library; freed with the last array that looks into its memory."""

    def __init__(self, loaded: ctypes.CDLL, address: int) -> None:
        self._library, self.address = loaded, address

    def __del__(self) -> None:
        self._library.mjb_deleteBatch(self.address)


class Batch:
    """`n` simulations of `model` on `threads` threads, the caller's included.

    `state` (N, S) float64 is all that the simulations remember from one call to the next; `qpos` (N, nq), `qvel`
    (N, nv) and `ctrl` (N, nu) are parts of it: what is written there is the state at the next call. Every name in
    `outputs` is an (N, ...) float64 attribute with that field of MjData as it was after the last call; as after
    `mj_step`, it belongs to the last stage that the integrator took.
    """

    state: F64

    qpos: F64
    qvel: F64
    ctrl: F64
    xpos: F64
    """From here on only if asked for."""
    xipos: F64
    site_xpos: F64
    cinert: F64
    cvel: F64
    cfrc_ext: F64
    qfrc_actuator: F64
    qfrc_constraint: F64

    def __init__(
        self, model: mujoco.MjModel, n: int, threads: int, outputs: tuple[str, ...], *, contact_forces: bool
    ) -> None:
        """`contact_forces` computes `cfrc_ext` after every step, which costs a pass of its own."""
        loaded = library()
        assert loaded is not None
        self._library, self._n, self._contact_forces = loaded, n, contact_forces
        # The pass over contacts goes on from the last step's data, so that every simulation needs its own.
        config = _Config(threads, contact_forces)
        message = ctypes.create_string_buffer(1000)
        address = loaded.mjb_makeBatch(model._address, n, ctypes.byref(config), message, len(message))
        if not address:
            raise MileageError(f"MuJoCo cannot simulate {n} copies of this model: {message.value.decode()}")
        self._handle, self._batch = _Handle(loaded, address), address
        row = loaded.mjb_nstate(address)
        self.state = self._rows(loaded.mjb_state(address), row, row)
        for name, component in _STATE.items():
            size = _int()
            found = loaded.mjb_stateComponent(address, int(component.value), ctypes.byref(size))
            setattr(self, name, self._rows(found, size.value, row))
        template = mujoco.MjData(model)
        self.outputs: dict[str, F64] = {}
        for name in outputs:
            shape = getattr(template, name).shape
            width = int(np.prod(shape))
            found = loaded.mjb_output(address, name.encode(), None, None)
            self.outputs[name] = self._rows(found, width, width).reshape(n, *shape)
        vars(self).update(self.outputs)
        self._contact_pass = ctypes.cast(loaded.mj_rnePostConstraint, _pointer)

    def start(self, rows: I64, qpos: F64, qvel: F64) -> None:
        """Put the simulations `rows` (R,) at rest with nothing remembered, then at `qpos` (R, nq), `qvel` (R, nv)."""
        ids = rows.astype(np.int32)
        handle, count = ids.ctypes.data, len(ids)
        self._check(self._library.mjb_reset(self._batch, handle, count, None, _STAGE_NONE))
        self.qpos[rows] = qpos
        self.qvel[rows] = qvel
        self._check(self._library.mjb_forward(self._batch, handle, count, _STAGE_ACCELERATION))

    def step(self, substeps: int, rows: I64 | None = None) -> None:
        """Advance all simulations, or those of `rows` (R,), with the controls in `ctrl`."""
        ids = None if rows is None else rows.astype(np.int32)
        which = (None, 0) if ids is None else (ids.ctypes.data, len(ids))
        failed = self._library.mjb_step(self._batch, *which, substeps, _STAGE_NONE)
        if self._contact_forces and not failed:
            # A batch calls f(model, data, index, argument); the last two go in registers that this function ignores.
            failed = self._library.mjb_apply(self._batch, *which, self._contact_pass, None, 0)
            # Which copies nothing out, as other calls do, even one that computes nothing.
            failed = failed or self._library.mjb_forward(self._batch, *which, _STAGE_NONE)
        if failed:
            self._check(failed)

    def close(self) -> None:
        """Let go of simulations and threads, which end with the last array that somebody else still has of them."""
        vars(self).clear()

    def _rows(self, address: int, size: int, stride: int) -> F64:
        """View `size` of every `stride` doubles."""
        if size == 0:
            return np.zeros((self._n, 0))
        memory = (ctypes.c_double * ((self._n - 1) * stride + size)).from_address(address)
        vars(memory)["owner"] = self._handle
        flat: F64 = np.ctypeslib.as_array(memory)
        return np.lib.stride_tricks.as_strided(flat, (self._n, size), (8 * stride, 8))

    def _check(self, failed: int) -> None:
        if failed:
            status = (_int * self._n).from_address(self._library.mjb_status(self._batch))
            first = next(i for i, value in enumerate(status) if value)
            text = " ".join(self._library.mjb_error(self._batch, first).decode().split())
            raise MileageError(f"MuJoCo failed in {failed} of {self._n} environments, first in number {first}: {text}")
