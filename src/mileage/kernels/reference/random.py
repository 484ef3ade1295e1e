"""The random streams of `mileage.kernels.arrays.random` once more, in Python integers and float64."""

from __future__ import annotations

import math
from typing import Any

_WEYL, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 1 << 64


def mix(x: int) -> int:
    """SplitMix64 finaliser of a 64-bit integer."""
    x = ((x ^ (x >> 30)) * _MIX_1) % _WORD
    x = ((x ^ (x >> 27)) * _MIX_2) % _WORD
    return x ^ (x >> 31)


class Stream:
    """One stream; starts as the row (key, counter) it is made from and leaves that row alone."""

    def __init__(self, row: Any) -> None:
        self.key, self.counter = int(row[0]), int(row[1])

    def next_u64(self) -> int:
        """Draw 64 random bits."""
        self.counter += 1
        return mix((self.key + self.counter * _WEYL) % _WORD)

    def uniform01(self) -> float:
        """Draw from [0, 1)."""
        return (self.next_u64() >> 40) / (1 << 24)

    def integers(self, n: int) -> int:
        """Draw an integer from [0, n)."""
        return int((self.next_u64() >> 11) / (1 << 53) * n)

    def normal(self) -> float:
        """Draw a standard normal number."""
        u, v = 1.0 - self.uniform01(), self.uniform01()
        return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)

    def permute(self, order: Any) -> None:
        """Permute a sequence in place."""
        for last in range(len(order) - 1, 0, -1):
            other = self.integers(last + 1)
            order[last], order[other] = order[other], order[last]
