"""A real browser for tests: Debian's Chromium, driven by Playwright, and a server beside it."""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
NEEDS_BROWSER = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="Chromium or Playwright is not installed (apt install chromium; the dev extra)",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a network of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=120_000)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def served(db: Path) -> Iterator[str]:
    """The pages of a ledger, from a thread of this process."""
    import uvicorn

    from mileage.ledger.store import Store
    from mileage.report.web.app import make_app

    with Store.viewer(db) as store:
        config = uvicorn.Config(make_app(store), port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.02)
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(20)


def serious(page: Any) -> list[str]:
    """What axe finds on a page that is serious or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {[node['target'] for node in each['nodes']][:3]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
