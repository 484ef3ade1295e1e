"""A pool of threads that survives a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class ThreadPool:
    """`n` threads, started when there is work: a forked child, which has none of its parent's, starts its own."""

    def __init__(self, n: int, begin: Callable[[], object] | None = None) -> None:
        """`begin` is called first on every thread."""
        self._n, self._begin = n, begin
        self._pool: ThreadPoolExecutor | None = None
        self._owner = os.getpid()

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Have a thread call `function`."""
        if self._pool is None or self._owner != os.getpid():
            self._pool, self._owner = ThreadPoolExecutor(self._n, initializer=self._begin), os.getpid()
        return self._pool.submit(function, *arguments)

    def shutdown(self) -> None:
        """End the threads."""
        if self._pool is not None and self._owner == os.getpid():
            self._pool.shutdown()
        self._pool = None
