"""Copies between addresses: short ones inline, long ones past the caches; and hints about memory to come."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mileage._types import F32
from mileage.kernels.machine.jit import inner
from mileage.kernels.machine.kinds import Count, Index, Ptr32, PtrU8
from mileage.kernels.machine.pointers import shift

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
