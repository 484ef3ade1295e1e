"""The only place where randomness starts.

Training seeds and held-out seeds come from disjoint ranges: a run's seed is below `HELD_OUT_START`, a panel's
seeds are at or above it, so that training cannot meet an episode of its own exam.
"""

from __future__ import annotations

import operator

import numpy as np

from mileage.errors import UsageError

HELD_OUT_START = 2**31
HELD_OUT_STOP = 2**32


def check_training_seed(seed: int) -> int:
    """`seed` as an int if training may use it."""
    try:
        seed = operator.index(seed)
    except TypeError:
        raise UsageError(f"seed must be an integer, not {seed!r}") from None
    if not 0 <= seed < HELD_OUT_START:
        raise UsageError(
            f"seed {seed} is not a training seed: use 0 to {HELD_OUT_START - 1} "
            f"(seeds from {HELD_OUT_START} up are reserved for held-out panels)"
        )
    return seed


def held_out_seeds(n: int, panel_seed: int = 0) -> tuple[int, ...]:
    """Draw the `n` distinct seeds of a panel from the range that training cannot reach."""
    rng = np.random.default_rng([panel_seed, HELD_OUT_START])
    drawn: dict[int, None] = {}
    while len(drawn) < n:
        drawn.setdefault(int(rng.integers(HELD_OUT_START, HELD_OUT_STOP)))
    return tuple(drawn)
