"""Make the screenshots of the README and the documentation: real runs, a real server, a real browser.

    python docs/build_screenshots.py [--keep DIR] [--readme]

Trains PPO on CartPole-v1 and on Pendulum-v1 with two settings each, many seeds, into a ledger of its own, writes
their report, serves the ledger, and photographs both with Chromium (the dev and web extras, and Debian's chromium).
Pictures go to docs/images; drawings of the native environments are made as well. With --readme only the README's
picture is made, from CartPole-v1 alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from mileage.report.markup import ARMS, Html, tag
from mileage.report.replay import DRAWINGS

IMAGES = Path(__file__).with_name("images")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PENDULUM = ("train", "ppo", "Pendulum-v1", "--target", "mean_return>=-200", "--seeds", "5", "--price", "2.20",
            "--eval-every", "1024", "--quiet")  # fmt: skip
CARTPOLE = ("train", "ppo", "CartPole-v1", "--target", "mean_return>=475", "--steps", "50000", "--seeds", "20",
            "--price", "2.20", "--quiet")  # fmt: skip
README = ((*CARTPOLE, "--name", "tuned"), (*CARTPOLE, "--name", "defaults", "--preset", "none"))
TRAININGS = (
    (*PENDULUM, "--name", "preset"),
    (*PENDULUM, "--name", "small-step", "--set", "learning_rate=0.0004", "--steps", "60000"),
    *README,
)
STATES = {
    "CartPole-v1": (0.3, 0.0, 0.12, 0.0), "Pendulum-v1": (0.6, 0.0), "MountainCar-v0": (-0.75, 0.0),
    "MountainCarContinuous-v0": (0.1, 0.0), "Acrobot-v1": (0.9, 0.7, 0.0, 0.0),
}  # fmt: skip
_STYLE = (
    f".ground{{stroke:#55606e;fill:none;stroke-width:1.5}}.rod{{stroke:{ARMS[1]};stroke-width:7;stroke-linecap:round}}"
    f".body{{fill:{ARMS[0]}}}.joint{{fill:#55606e}}.goal{{stroke:#b42318;stroke-dasharray:5 4}}.flag{{fill:#b42318}}"
)


def mileage(*arguments: str, db: Path) -> subprocess.CompletedProcess[str]:
    """Run a command on the ledger."""
    code = "from mileage.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], check=True, text=True, cwd=db.parent,
                          capture_output=True, env={**os.environ, "MILEAGE_DB": str(db)})  # fmt: skip


@contextmanager
def served(db: Path) -> Iterator[str]:
    """The ledger's pages."""
    code = "from mileage.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--db", str(db)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+/", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait(10)


def photograph(browser: Any, address: str, name: str, *, width: int, height: int, scheme: str = "light") -> None:
    """One picture."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(address)
    page.wait_for_timeout(500)
    page.screenshot(path=str(IMAGES / f"{name}.png"))
    page.close()
    print(f"wrote images/{name}.png")


def draw_environments() -> None:
    """A picture of every native environment that replays can draw."""
    for name, drawing in DRAWINGS.items():
        moving = str(drawing.moving)
        for part, transform in zip(drawing.parts, drawing.place(STATES[name]), strict=True):
            moving = moving.replace(f'data-part="{part}"', f'transform="{transform}"', 1)
        parts = (tag("title", name), tag("style", Html(_STYLE)), drawing.still, Html(moving))
        svg = tag("svg", *parts, viewBox="0 0 400 200", xmlns=Html("http://www.w3.org/2000/svg"))
        (IMAGES / f"env-{name.lower()}.svg").write_text(f"{svg}\n")


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="directory of the ledger, used again if it is there")
    parser.add_argument("--readme", action="store_true", help="only the comparison that the README shows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = (options.keep or Path(name)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        db = directory / "mileage.db"
        if not db.exists():
            mileage("warmup", "CartPole-v1", db=db)
            for training in README if options.readme else TRAININGS:
                mileage(*training, db=db)
        with sync_playwright() as playwright, served(db) as base:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            verdict = f"{base}compare?a=name%3Dtuned&b=name%3Ddefaults"
            photograph(browser, verdict, "verdict", width=1100, height=760)
            browser.close()
        if options.readme:
            return
        draw_environments()
        mileage("report", "preset", "small-step", "-o", "report.html", db=db)
        mileage("report", "preset", "-o", "panel.html", db=db)
        with sync_playwright() as playwright, served(db) as base:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
            photograph(browser, (directory / "panel.html").as_uri(), "report", width=1100, height=930)
            photograph(
                browser, (directory / "report.html").as_uri(), "report-arms", width=1100, height=1150, scheme="dark"
            )
            photograph(browser, f"{base}recipes", "recipes", width=1100, height=460)
            compare = f"{base}compare?a=name%3Dpreset&b=name%3Dsmall-step"
            photograph(browser, compare, "compare", width=1100, height=760)
            photograph(browser, f"{base}compare?a=name%3Dpreset&b=name%3Dtuned", "refusal", width=1100, height=480)
            photograph(browser, f"{base}?q=preset", "phone", width=390, height=760, scheme="dark")
            browser.close()


if __name__ == "__main__":
    main()
