"""Random draws for environment code: the first argument is the `rng` row that `reset` and `step` receive.

Called from Python they work as they are, so that an environment can be stepped under a debugger; inside a compiled
environment they become the kernels they call.
"""

from __future__ import annotations

from mileage._types import U64


def uniform(rng: U64, low: float, high: float) -> float:
    """Draw a float32 from [low, high). `rng` is one stream, (2,) uint64, advanced in place."""
    from mileage.kernels import random

    return random.uniform(rng, low, high)  # type: ignore[no-any-return]


def normal(rng: U64) -> float:
    """Draw a standard normal float32. `rng` is one stream, (2,) uint64, advanced in place."""
    from mileage.kernels import random

    return random.normal(rng)  # type: ignore[no-any-return]


def integers(rng: U64, n: int) -> int:
    """Draw an integer from [0, n). `rng` is one stream, (2,) uint64, advanced in place."""
    from mileage.kernels import random

    return random.integers(rng, n)  # type: ignore[no-any-return]
