"""Memory of large results that is used again."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from mileage.kernels.machine import memory


@pytest.fixture(autouse=True)
def nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(memory, "_waiting", {})
    yield
    gc.collect()


def test_memory_is_used_again_only_when_nobody_holds_it() -> None:
    first = memory.empty((2, 512, 1024))
    assert first.shape == (2, 512, 1024)
    assert (first.dtype, first.flags.c_contiguous, first.flags.writeable) == (np.float32, True, True)
    address, part = first.ctypes.data, first[1, 3:5]
    part[:] = 7.0
    del first
    # A view of it is still there.
    other = memory.empty((2, 512, 1024))
    assert other.ctypes.data != address
    assert (part == 7.0).all()
    del part
    assert memory.empty((1024, 1024)).ctypes.data == address


def test_two_results_never_share_memory() -> None:
    for _ in range(5):
        kept = [memory.empty((512, 1024)) for _ in range(4)]
        for value, each in enumerate(kept):
            each[:] = value
        assert [float(each.max()) for each in kept] == [0.0, 1.0, 2.0, 3.0]


def test_small_ones_and_too_many_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    del (small := [memory.empty((8, 8))])[0]
    assert small == []
    assert memory._waiting == {}
    monkeypatch.setattr(memory, "_KEPT_BYTES", 5 << 20)
    several = [memory.empty((512, 1024)) for _ in range(4)]  # 2 MB each
    several.clear()
    assert {size: len(blocks) for size, blocks in memory._waiting.items()} == {512 * 1024: 2}
