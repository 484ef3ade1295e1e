"""Typed pointers in kernels, and frames."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from mileage.kernels.machine.frames import Frame, call_int64, f32, f64, frame_type, i64, pointer_to, shift, u8, u64
from shims import shim

ALL_KINDS = frame_type(
    """
    singles: (n,) float32, as in a table
    doubles: (n,) float64
    wholes: (n,) int64
    words: (n,) uint64
    bytes: (n,) uint8
    n: int64
    scale: float64
    """
)


@shim
def read_all(record: Any, out: Any) -> None:
    frame = record[0]
    for i in range(frame.n):
        out[0] += f32(frame.singles)[i] * frame.scale
        out[1] += f64(frame.doubles)[i]
        out[2] += i64(frame.wholes)[i]
        out[3] += u64(frame.words)[i]
        out[4] += u8(frame.bytes)[i]


@shim
def write_shifted(out: Any, by: Any) -> None:
    shift(pointer_to(out), by)[0] = 7.0


@shim
def call_there(address: Any, array: Any, n: Any) -> Any:
    return call_int64(address, (pointer_to(array), n))


def kinds() -> dict[str, Any]:
    return {
        "singles": np.array([0.5, 1.5, 2.0], np.float32),
        "doubles": np.array([1e-9, 1.0, 2.0]),
        "wholes": np.array([-5, 2**40, 1]),
        "words": np.array([1, 2, 3], np.uint64),
        "bytes": np.array([255, 1, 0], np.uint8),
    }


def test_a_kernel_reads_every_kind_of_field() -> None:
    frame, out = Frame(ALL_KINDS, n=3, scale=10.0, **kinds()), np.zeros(5)
    read_all(frame.record, out)
    assert out.tolist() == [40.0, 3.0 + 1e-9, 2.0**40 - 4.0, 6.0, 256.0]


def test_a_frame_keeps_its_arrays_alive() -> None:
    frame = Frame(ALL_KINDS, n=3, scale=1.0, **kinds())
    gc.collect()
    rubbish = [np.full(3, 99.0, np.float32) for _ in range(1000)]
    out = np.zeros(5)
    read_all(frame.record, out)
    assert out[0] == 4.0
    assert len(rubbish) == 1000


def test_fields_can_be_set_again() -> None:
    frame = Frame(ALL_KINDS, n=3, scale=1.0, **kinds())
    assert frame.set(n=1, scale=4.0) is frame
    out = np.zeros(5)
    read_all(frame.record, out)
    assert out[0] == 2.0


def test_a_frame_with_missing_fields_names_them() -> None:
    frame = Frame(ALL_KINDS, singles=np.zeros(1, np.float32), words=np.zeros(1, np.uint64), n=1)
    with pytest.raises(ValueError, match=r"^frame fields not set: bytes, doubles, scale, wholes$"):
        _ = frame.record


def test_an_array_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^singles must be C-contiguous"):
        Frame(ALL_KINDS, singles=np.zeros((4, 4), np.float32)[:, 1])


def test_an_array_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^singles must hold float32, not float64$"):
        Frame(ALL_KINDS, singles=np.zeros(4))
    with pytest.raises(ValueError, match=r"^n must be a number, not an array$"):
        Frame(ALL_KINDS, n=np.zeros(1, np.int64))
    flags = np.array([True, False])
    assert Frame(ALL_KINDS, bytes=flags).array("bytes") is flags


def test_numbers_can_be_read_back() -> None:
    frame = Frame(ALL_KINDS, n=3, scale=0.5)
    assert (frame.value("n"), frame.value("scale")) == (3, 0.5)
    assert frame.names == ("singles", "doubles", "wholes", "words", "bytes", "n", "scale")


@pytest.mark.parametrize("line", ["obs float32", "obs: (n,) float16", "n: int32", "obs: (n, float32", "n: uint8"])
def test_a_field_that_is_not_described_is_refused(line: str) -> None:
    with pytest.raises(
        ValueError, match=r"^a frame's field must be like 'obs: \(samples, O\) float32, what it is', not"
    ):
        frame_type("n: int64", line)


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ValueError, match="no field of name nonsense"):
        Frame(ALL_KINDS, nonsense=1)


def test_shift_counts_elements() -> None:
    out = np.zeros(4, np.float32)
    write_shifted(out, 2)
    assert out.tolist() == [0.0, 0.0, 7.0, 0.0]


def test_a_function_is_called_by_its_address() -> None:
    from numba import cfunc, types

    def add_up(values: Any, n: Any) -> Any:
        total = 0
        for i in range(n):
            total += values[i]
        return total

    compiled = cfunc(types.int64(types.CPointer(types.int64), types.int64))(add_up)
    assert call_there(np.uint64(compiled.address), np.array([5, 6, 7, 100]), 3) == 18
