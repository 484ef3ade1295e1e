"""Matrix products on pointers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from mileage.kernels.machine import blas as _blas
from mileage.kernels.machine.blas import blas, sgemm, single_threaded_blas
from mileage.kernels.machine.frames import pointer_to
from shims import shim


@shim
def multiply(ta: Any, tb: Any, m: Any, n: Any, k: Any, a: Any, lda: Any, b: Any, ldb: Any, out: Any, ldo: Any) -> None:
    sgemm(ta, tb, m, n, k, pointer_to(a), lda, pointer_to(b), ldb, pointer_to(out), ldo)


@pytest.mark.parametrize(("ta", "tb"), list(itertools.product((0, 1), repeat=2)))
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 5, 7), (64, 2, 64), (1, 64, 4), (17, 1, 33)])
def test_equals_matmul(ta: int, tb: int, m: int, n: int, k: int) -> None:
    rng = np.random.default_rng(m * n * k)
    a = rng.normal(size=(k, m) if ta else (m, k)).astype(np.float32)
    b = rng.normal(size=(n, k) if tb else (k, n)).astype(np.float32)
    out = np.full((m, n), np.nan, np.float32)  # what was there must not matter
    multiply(ta, tb, m, n, k, a.ravel(), a.shape[1], b.ravel(), b.shape[1], out.ravel(), n)
    want = (a.T if ta else a).astype(np.float64) @ (b.T if tb else b).astype(np.float64)
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_longer_rows_than_the_matrix_are_left_alone() -> None:
    a, b = np.arange(8, dtype=np.float32).reshape(2, 4), np.eye(3, dtype=np.float32)
    out = np.full((2, 5), -1.0, np.float32)
    multiply(0, 0, 2, 3, 3, a.ravel(), 4, b.ravel(), 3, out.ravel(), 5)
    assert out.tolist() == [[0.0, 1.0, 2.0, -1.0, -1.0], [4.0, 5.0, 6.0, -1.0, -1.0]]


def test_one_thread_while_the_body_runs() -> None:
    library = blas()
    if library.set_threads is None:
        pytest.skip("the BLAS that SciPy was linked with cannot be told how many threads to use")
    before = library.get_threads()
    library.set_threads(2)
    try:
        with single_threaded_blas():
            assert library.get_threads() == 1
        assert library.get_threads() == 2
        with pytest.raises(RuntimeError, match="in the body"), single_threaded_blas():
            raise RuntimeError("in the body")
        assert library.get_threads() == 2
    finally:
        library.set_threads(before)


def test_scipy_serves_where_no_openblas_is_found() -> None:
    import ctypes

    found = _blas._find_scipy()
    assert found.set_threads is None
    pointers, integers = ctypes.c_void_p, ctypes.c_int32
    function = ctypes.CFUNCTYPE(None, *[pointers] * 13)(found.sgemm)
    a = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    out = np.zeros((2, 2), np.float32)
    two, one, zero = integers(2), ctypes.c_float(1.0), ctypes.c_float(0.0)
    letter = ctypes.c_char(b"N")
    by = ctypes.byref
    data = a.ctypes.data
    scalars = [by(letter), by(letter), by(two), by(two), by(two), by(one)]
    function(*scalars, data, by(two), data, by(two), by(zero), out.ctypes.data, by(two))
    np.testing.assert_array_equal(out, a @ a)
