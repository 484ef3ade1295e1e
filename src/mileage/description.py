"""How a learner describes what it does, for whoever measures it: calls, their stages, their work.

A profiler that asks needs to know no algorithm by name: it times the calls that it is given, again and in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Product(NamedTuple):
    """A matrix product out[m, n] = a[m, k] @ b[k, n]."""

    left: int
    """1 if the left factor is transposed."""
    right: int
    """1 if the right factor is transposed."""
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Work:
    """The work of one entry of a phase: `pieces` times `products`, `repeats` times one after the other."""

    products: tuple[Product, ...]
    """Of one piece; pieces are shared out over threads."""
    pieces: int
    repeats: float
    """Rounds per entry of the phase; a fraction where a part runs only now and then."""
    bytes_touched: float
    """Read and written per entry, whether they come from memory or from a cache."""
    working_set: float = 0.0
    """Bytes that are used again and again; where they fit into the caches, memory is no limit."""
    networks: int = 1
    """Networks whose products follow each other in a piece and may run on threads of their own."""

    @property
    def flops(self) -> float:
        """Floating-point operations of the products per entry."""
        return 2.0 * self.pieces * self.repeats * sum(each.m * each.n * each.k for each in self.products)

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes_touched if self.bytes_touched else 0.0


@dataclass(frozen=True)
class Description:
    """What one iteration of a learner consists of."""

    work: dict[str, Work]
    """Of every phase that has matrix products, by the phase's name."""
