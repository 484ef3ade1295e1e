"""Copies between addresses, memory used again, and denormal numbers flushed to zero.

An allocator gives blocks of megabytes back to the system, and getting them anew costs a page fault per 4 KB: as much as
GAE itself takes. Here the memory of a result that is gone waits for the next one of the same size.

Adam's moments of parameters whose gradients vanish decay into such numbers, and stay there. A kernel asks the core of
its thread to take them for zeros, BLAS included, and puts back on its way out what its caller had: the arithmetic of a
user's own NumPy and torch stays as it is.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage.kernels.machine.frames import Count, Index, Ptr32, PtrU8, shift
from mileage.kernels.machine.jit import inner, kernel
from mileage.types import F32

# Copies up to this many bytes are cheaper piece by piece than through a call.
SHORT_COPY = 256
CACHE_LINE = 64


@intrinsic
def _memcpy(typingctx: Any, to: Any, source: Any, n: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, args[0], args[1], args[2], 1)
        return context.get_dummy_value()

    return types.void(to, source, types.int64), codegen


@intrinsic
def _copy_past_cache(typingctx: Any, to: Any, source: Any) -> Any:
    """Copy 32 bytes to an address that is a multiple of 32, bypassing the caches."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(64), 4)
        value = builder.load(builder.bitcast(args[1], vector.as_pointer()), align=1)
        store = builder.store(value, builder.bitcast(args[0], vector.as_pointer()), align=32)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(to, source), codegen


@intrinsic
def fence(typingctx: Any) -> Any:
    """Have everything written before this visible to other threads."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _address(typingctx: Any, pointer: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(pointer), codegen


@intrinsic
def prefetch(typingctx: Any, pointer: Any) -> Any:
    """Ask for the cache line at `pointer` without waiting for it."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        flag = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
        # To be read, kept in all levels, data.
        builder.call(function, [args[0], flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(pointer), codegen


def _copy(size: int) -> Any:
    """A function for kernels that copies `size` bytes with one load and one store."""

    @intrinsic
    def copy(typingctx: Any, to: Any, source: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            cgutils.raw_memcpy(builder, args[0], args[1], ir.Constant(ir.IntType(64), size), 1)
            return context.get_dummy_value()

        return types.void(to, source), codegen

    return copy


_copy_4, _copy_16 = _copy(4), _copy(16)


@inner
def copy_bytes(out: PtrU8, source: PtrU8, n: Count) -> None:
    """Copy `n` bytes between memory that does not overlap."""
    if n <= SHORT_COPY and n % 4 == 0:
        done = 0
        while done + 16 <= n:
            _copy_16(shift(out, done), shift(source, done))
            done += 16
        while done < n:
            _copy_4(shift(out, done), shift(source, done))
            done += 4
    else:
        _memcpy(out, source, n)


@inner
def stream_bytes(out: PtrU8, source: PtrU8, n: Count) -> None:
    """Copy `n` bytes that will not be read soon: memory is not fetched just to be overwritten, which saves a third."""
    head = min(n, -_address(out) % 32)
    _memcpy(out, source, head)
    done = head
    while done + 32 <= n:
        _copy_past_cache(shift(out, done), shift(source, done))
        done += 32
    _memcpy(shift(out, done), shift(source, done), n - done)


@inner
def float_at(record: PtrU8, offset: Index) -> Ptr32:
    """The float32 values that stand `offset` bytes into a record."""
    return _as_f32(shift(record, offset))


def _pointer(kind: Any) -> Any:
    """A function for kernels from any pointer to one to `kind`."""

    @intrinsic
    def make(typingctx: Any, pointer: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(pointer), codegen

    return make


_as_f32, as_i64 = _pointer(types.float32), _pointer(types.int64)


def aligned_zeros(size: int) -> F32:
    """Zeros (size,) float32 that start at a cache line, so that threads which own whole lines do not share one."""
    spare = CACHE_LINE // 4
    memory: F32 = np.zeros(size + spare, np.float32)
    start = -memory.ctypes.data % CACHE_LINE // 4
    return memory[start : start + size]


# --- Memory of large results, used again once nobody holds it ---
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


# --- Flush-to-zero while our kernels run: denormal numbers cost a hundred cycles each on many processors ---
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
