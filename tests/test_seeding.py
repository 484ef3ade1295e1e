"""Training seeds and held-out seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mileage.errors import UsageError
from mileage.seeding import HELD_OUT_START, HELD_OUT_STOP, check_training_seed, held_out_seeds


@pytest.mark.parametrize("seed", [0, 1, HELD_OUT_START - 1])
def test_training_seeds(seed: int) -> None:
    assert check_training_seed(seed) == seed


def test_numpy_integers_become_python_integers() -> None:
    assert type(check_training_seed(np.int64(3))) is int


@pytest.mark.parametrize("seed", [-1, HELD_OUT_START, HELD_OUT_STOP, 2**63])
def test_held_out_and_negative_seeds_are_refused(seed: int) -> None:
    with pytest.raises(UsageError, match=rf"^seed {seed} is not a training seed: use 0 to {HELD_OUT_START - 1} "):
        check_training_seed(seed)


@pytest.mark.parametrize("seed", [1.5, "1", None])
def test_seeds_are_integers(seed: Any) -> None:
    with pytest.raises(UsageError, match=r"^seed must be an integer, not "):
        check_training_seed(seed)


def test_panels_are_out_of_reach_distinct_and_the_same_every_time() -> None:
    seeds = held_out_seeds(1000)
    assert len(set(seeds)) == 1000
    assert all(HELD_OUT_START <= seed < HELD_OUT_STOP for seed in seeds)
    assert held_out_seeds(1000) == seeds
    # A longer panel contains a shorter one; another panel is another exam.
    assert held_out_seeds(10) == seeds[:10]
    assert not set(held_out_seeds(1000, panel_seed=1)) & set(seeds)


def test_first_panel_seeds_never_change() -> None:
    # A change here makes every published result incomparable.
    assert held_out_seeds(3) == (3297459838, 3889832433, 2990520540)
