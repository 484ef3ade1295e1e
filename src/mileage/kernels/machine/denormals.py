"""Flush-to-zero while our kernels run: denormal numbers cost a hundred cycles each on many processors.

Adam's moments of parameters whose gradients vanish decay into such numbers, and stay there. A kernel asks the core of
its thread to take them for zeros, BLAS included, and puts back on its way out what its caller had: the arithmetic of a
user's own NumPy and torch stays as it is.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage.kernels.machine.jit import kernel

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLUSH = {"x86_64": 0x8040, "AMD64": 0x8040, "aarch64": 1 << 24, "arm64": 1 << 24}.get(platform.machine(), 0)
"""Bits of the control register: flush results and read denormals as zeros (MXCSR), both in one (FPCR); 0: unknown."""
_X86 = _FLUSH == 0x8040


def _read(builder: Any) -> Any:
    if not _X86:
        return builder.asm(ir.FunctionType(_I64, []), "mrs $0, fpcr", "=r", [], side_effect=True)
    slot = cgutils.alloca_once(builder, _I32)
    _x86(builder, "stmxcsr", slot)
    return builder.zext(builder.load(slot), _I64)


def _write(builder: Any, mode: Any) -> None:
    if not _X86:
        builder.asm(ir.FunctionType(ir.VoidType(), [_I64]), "msr fpcr, $0", "r", [mode], side_effect=True)
        return
    slot = cgutils.alloca_once(builder, _I32)
    builder.store(builder.trunc(mode, _I32), slot)
    _x86(builder, "ldmxcsr", slot)


def _x86(builder: Any, instruction: str, slot: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{instruction}")
    builder.call(function, [builder.bitcast(slot, cgutils.voidptr_t)])


@intrinsic
def flush_denormals(typingctx: Any) -> Any:
    """Have this thread take denormal numbers for zeros; returns its mode of before, for `restore`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if not _FLUSH:
            return ir.Constant(_I64, 0)
        mode = _read(builder)
        _write(builder, builder.or_(mode, ir.Constant(_I64, _FLUSH)))
        return mode

    return types.int64(), codegen


@intrinsic
def restore(typingctx: Any, mode: Any) -> Any:
    """Give this thread back the mode that `flush_denormals` returned."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _FLUSH:
            _write(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@kernel
def _enter() -> Any:
    return flush_denormals()


@kernel
def _leave(mode: Any) -> None:
    restore(mode)


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """The same for Python code in between, on its thread and on those that it starts."""
    mode = _enter()
    try:
        yield
    finally:
        _leave(mode)
