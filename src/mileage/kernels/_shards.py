"""Splitting one kernel call over threads, where the work pays for waking them.

Shards never share a result, so that the answer does not depend on how many there are.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Elementary steps (about 0.5 ns each, 1 ms in all) below which waking a thread (about 50 µs) does not pay.
PARALLEL_WORK = 1 << 21
# Shard borders fall on whole cache lines of float32.
_ALIGNMENT = 16


@functools.cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _pool(owner: int) -> ThreadPoolExecutor:
    """Threads of the process `owner`: a fork does not inherit its parent's."""
    return ThreadPoolExecutor(max_workers=max(1, _cores() - 1), thread_name_prefix="mileage-shard")


def run_shards(function: Any, n: int, work_each: int, *args: Any) -> None:
    """Call `function(start, stop, *args)` over [0, n), on several threads if `n * work_each` pays."""
    if n * work_each < PARALLEL_WORK:
        function(0, n, *args)
        return
    shards = min(_cores(), -(-n // _ALIGNMENT))
    borders = [min(n, -(-n * i // shards // _ALIGNMENT) * _ALIGNMENT) for i in range(shards)] + [n]
    waiting = []
    if shards > 1:
        pool = _pool(os.getpid())
        waiting = [pool.submit(function, borders[i], borders[i + 1], *args) for i in range(1, shards)]
    function(borders[0], borders[1], *args)
    for future in waiting:
        future.result()
