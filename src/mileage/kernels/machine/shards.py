"""Splitting one kernel call over threads, where the work pays for waking them.

Shards never share a result, so that the answer does not depend on how many there are.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from mileage._cores import usable_cores

# Elementary steps (about 0.5 ns each, 1 ms in all) below which waking a thread (about 50 µs) does not pay.
PARALLEL_WORK = 1 << 21
# Shard borders fall on whole cache lines of float32.
_ALIGNMENT = 16


_cores = functools.cache(usable_cores)


@functools.cache
def _pool(owner: int) -> ThreadPoolExecutor:
    """Threads of the process `owner`: a fork does not inherit its parent's."""
    return ThreadPoolExecutor(max_workers=max(1, _cores() - 1), thread_name_prefix="mileage-shard")


def run_shards(function: Any, n: int, work_each: int, *args: Any) -> None:
    """Call `function(start, stop, *args)` over [0, n), on several threads if `n * work_each` pays.

    Threads take shards as they come: the caller does what a thread that finds no free core has not begun.
    """
    if n * work_each < PARALLEL_WORK:
        function(0, n, *args)
        return
    cores = _cores()
    # Not more shards than cores: narrow columns are slow to read.
    width = -(-n // cores // _ALIGNMENT) * _ALIGNMENT
    starts = range(0, n, width)
    # Threads share the iterator: taking the next one is a single step.
    turns = iter(starts)

    def drain() -> None:
        for start in turns:
            function(start, min(n, start + width), *args)

    helpers = []
    if cores > 1 and len(starts) > 1:
        pool = _pool(os.getpid())
        helpers = [pool.submit(drain) for _ in range(min(cores, len(starts)) - 1)]
    try:
        drain()
    finally:
        # One that has not begun by now has nothing left to do.
        running = [helper for helper in helpers if not helper.cancel()]
        wait(running)
    for helper in running:
        helper.result()
