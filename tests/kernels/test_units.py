"""How networks are cut into pieces; that pieces add up to the whole is in `test_dqn.py`."""

from __future__ import annotations

import numpy as np
import pytest

from mileage.kernels import dqn
from mileage.kernels.machine.memory import CACHE_LINE, aligned_zeros


@pytest.mark.parametrize(
    ("batch", "sizes", "pieces"),
    [
        # 64 * 4,610 multiplications: not worth a second thread.
        (64, (4, 64, 64, 2), 1),
        # 64 * 67,586 are enough for three pieces; a power of two is two.
        (64, (4, 256, 256, 2), 2),
        (256, (4, 256, 256, 2), 8),
        # Pieces of fewer than 32 units are not made, whatever the work.
        (4096, (4, 64, 64, 2), 2),
        (4096, (4, 1024, 16, 2), 1),
        (100_000, (4, 2048, 2), 16),
    ],
)
def test_pieces_depend_on_the_problem_alone(batch: int, sizes: tuple[int, ...], pieces: int) -> None:
    assert dqn.n_pieces(batch, sizes) == pieces


def test_parts_of_shared_memory_start_at_cache_lines_and_do_not_overlap() -> None:
    """Three hidden layers of 3, 5 and 7 units, two pieces, a batch of 4: parts of 2 * 4 * (5 + 7), deltas of 4 * 5."""
    found = dqn.units_layout(4, (2, 3, 5, 7, 1), 2)
    assert found == {"at_parts": 0, "at_more_parts": 96, "at_deltas": 192, "shared_floats": 192 + 32}


@pytest.mark.parametrize("size", [1, 15, 16, 1000])
def test_aligned_memory(size: int) -> None:
    memory = aligned_zeros(size)
    assert memory.ctypes.data % CACHE_LINE == 0
    np.testing.assert_array_equal(memory, np.zeros(size, np.float32))
