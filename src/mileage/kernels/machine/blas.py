"""Single-precision matrix products inside kernels, through the BLAS that NumPy or SciPy already carries.

`np.dot` in a kernel would need array views of the right shape for every operand, and pulls reshape and error
formatting into the compiled code (seconds of compile time). This calls `sgemm` on pointers instead. The symbol is
registered by name, so that kernels which use it can be cached on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_SYMBOL = "mileage_sgemm"


class _Blas(NamedTuple):
    """Where `sgemm` is, and how to set the number of threads it uses (None: it cannot be set)."""

    source: str
    sgemm: int
    get_threads: Any
    set_threads: Any


def _find_openblas() -> _Blas | None:
    """Look for the OpenBLAS that comes inside the NumPy and SciPy wheels."""
    site = Path(np.__file__).resolve().parent.parent
    for folder, suffix_sgemm, suffix_threads in (("numpy.libs", "_64_", "64_"), ("scipy.libs", "_", "")):
        for path in sorted((site / folder).glob("libscipy_openblas*")):
            library = ctypes.CDLL(str(path))
            with contextlib.suppress(AttributeError):
                sgemm = ctypes.cast(library[f"scipy_sgemm{suffix_sgemm}"], ctypes.c_void_p).value
                get_threads = library[f"scipy_openblas_get_num_threads{suffix_threads}"]
                set_threads = library[f"scipy_openblas_set_num_threads{suffix_threads}"]
                return _Blas(path.name, int(sgemm or 0), get_threads, set_threads)
    return None


def _find_scipy() -> _Blas:
    """Fall back to whatever BLAS SciPy was linked with (MKL, Accelerate, a distribution's OpenBLAS)."""
    from scipy.linalg import cython_blas

    capsule = cython_blas.__pyx_capi__["sgemm"]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    return _Blas("scipy.linalg.cython_blas", int(address), None, None)


@functools.cache
def blas() -> _Blas:
    """The BLAS in use; registers its `sgemm` with LLVM on first call."""
    found = _find_openblas() or _find_scipy()
    binding.add_symbol(_SYMBOL, found.sgemm)
    return found


@contextlib.contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Keep BLAS on one thread per caller while our own threads split the work; restores the setting."""
    library = blas()
    if library.set_threads is None:
        yield
        return
    before = library.get_threads()
    library.set_threads(1)
    try:
        yield
    finally:
        library.set_threads(before)


@intrinsic
def sgemm(
    typingctx: Any, transpose_a: Any, transpose_b: Any, m: Any, n: Any, k: Any, a: Any, lda: Any, b: Any, ldb: Any,
    out: Any, ldo: Any,
) -> Any:  # fmt: skip
    """out[m, n] = op(a)[m, k] @ op(b)[k, n], row-major, on float32 pointers.

    `transpose_a`, `transpose_b` are 0 or 1; `lda`, `ldb`, `ldo` are the row lengths as stored.
    """
    whole = types.int64
    return types.void(whole, whole, whole, whole, whole, a, whole, b, whole, out, whole), _sgemm_codegen


def _sgemm_codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    ta, tb, m, n, k, a, lda, b, ldb, out, ldo = args

    def by_reference(value: Any) -> Any:
        # Fortran takes scalars by reference. 64-bit integers serve 32-bit BLAS too on little-endian machines.
        slot = cgutils.alloca_once(builder, value.type)
        builder.store(value, slot)
        return builder.bitcast(slot, cgutils.voidptr_t)

    def flag(transposed: Any) -> Any:
        yes = builder.icmp_signed("!=", transposed, ir.Constant(transposed.type, 0))
        letters = (ir.Constant(ir.IntType(8), ord(letter)) for letter in "TN")
        return by_reference(builder.select(yes, *letters))

    def start(pointer: Any) -> Any:
        return builder.bitcast(pointer, cgutils.voidptr_t)

    one, zero = (ir.Constant(ir.FloatType(), value) for value in (1.0, 0.0))
    # Column-major BLAS sees row-major matrices transposed: out' = op(b)' op(a)'.
    operands = [flag(tb), flag(ta), *map(by_reference, (n, m, k, one)), start(b), by_reference(ldb), start(a)]
    operands += [by_reference(lda), by_reference(zero), start(out), by_reference(ldo)]
    function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t] * len(operands))
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, _SYMBOL), operands)
    return context.get_dummy_value()


blas()
