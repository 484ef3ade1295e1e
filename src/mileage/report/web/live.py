"""Telling pages that something is new: one look at the database a second, however many are watching."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable

import anyio
import anyio.to_thread

from mileage.ledger import listing
from mileage.ledger.store import Store

EVERY_SECONDS = 1.0
MOST_WATCHERS = 500
_QUIET_SECONDS = 15.0
"""After so long without news, a line that says that the connection is still there."""
_KEPT = 64


def spelled(version: Hashable) -> str:
    """What `listing.version` found, as part of an address."""
    return "-".join(str(int(each)) for each in version) if isinstance(version, tuple) else str(version)


class LiveView:
    """What pages are told about runs, and the last parts that were made for them."""

    def __init__(self, store: Store, every: float = EVERY_SECONDS) -> None:
        self._store, self._every = store, every
        self._seen: dict[str, tuple[float, Hashable, bool]] = {}
        self._parts: OrderedDict[tuple[str, Hashable], str] = OrderedDict()
        self._lock: anyio.Lock | None = None
        self.watching = 0

    async def state(self, run_id: str) -> tuple[Hashable, bool]:
        """What changes when a run writes, and whether it has ended; asked of the database once for all who watch."""
        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            seen = self._seen.get(run_id)
            if seen is None or time.monotonic() - seen[0] >= 0.9 * self._every:
                version = await anyio.to_thread.run_sync(lambda: self._store.read(listing.version, run_id))
                seen = (time.monotonic(), version, version[2])
                self._seen[run_id] = seen
                if len(self._seen) > MOST_WATCHERS:
                    self._seen.pop(next(iter(self._seen)))
            return seen[1], seen[2]

    async def part(self, run_id: str, make: Callable[[], str]) -> str:
        """The part of a run's page that changes, made once for every change."""
        version, _ = await self.state(run_id)
        key = (run_id, version)
        if key not in self._parts:
            self._parts[key] = await anyio.to_thread.run_sync(make)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        return self._parts[key]

    async def events(self, run_id: str, since: str | None = None) -> AsyncIterator[str]:
        """Server-sent events of a run: `changed` when it has written, `ended` when it will write no more.

        `since` is what the page that asks was made from, as `spelled` writes it.
        """
        self.watching += 1
        try:
            known, quiet = since, 0.0
            yield "retry: 3000\n\n"
            while True:
                version, ended = await self.state(run_id)
                shown = spelled(version)
                if ended:
                    yield "event: ended\ndata: {}\n\n"
                    return
                quiet += self._every
                if shown != known:
                    if known is not None:
                        yield "event: changed\ndata: {}\n\n"
                        quiet = 0.0
                    known = shown
                if quiet >= _QUIET_SECONDS:
                    yield ": still here\n\n"
                    quiet = 0.0
                await anyio.sleep(self._every)
        finally:
            self.watching -= 1
