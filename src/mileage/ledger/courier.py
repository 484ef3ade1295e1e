"""Delivers rows of short runs after the process that recorded them has done its work.

Loading the database library takes longer than a short run. Its rows are on disk, in the spool file, when the run ends;
what is left is bringing them into the database, and that needs nobody to wait. One process per ledger does it, started
when the interpreter exits; should it fail, the next one who opens the ledger delivers.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

_waiting: set[str] = set()
_lock = threading.Lock()
_expected = False


def expect() -> None:
    """Have `deliver_at_exit` heeded from what runs at exit too: that comes before what was registered earlier."""
    global _expected
    with _lock:
        if not _expected:
            _expected = True
            atexit.register(_send)
            os.register_at_fork(after_in_child=_waiting.clear)


def deliver_at_exit(url: str) -> None:
    """Have what waits for the ledger at `url` delivered once this process ends."""
    expect()
    with _lock:
        _waiting.add(url)


def _send() -> None:
    """Start a process that delivers, and do not wait for it."""
    with _lock:
        urls = sorted(_waiting)
        _waiting.clear()
    if not urls:
        return
    import subprocess  # takes a while to import, and most processes need none

    for url in urls:
        try:
            subprocess.Popen(
                [sys.executable, "-m", "mileage.ledger.courier"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ).stdin.write(url.encode())  # type: ignore[union-attr]
        except OSError:
            return  # the next one who opens the ledger delivers


def main() -> None:
    """Open the ledger whose address is on standard input; opening delivers."""
    from mileage.errors import MileageError
    from mileage.ledger.store import Store

    try:
        Store(sys.stdin.read()).close()
    except MileageError:
        sys.exit(1)


if __name__ == "__main__":
    main()
