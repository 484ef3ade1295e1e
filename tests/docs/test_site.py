from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import extras

ROOT = Path(__file__).resolve().parents[2]
pytestmark = extras.needs("docs", "mkdocs", "material")


def test_the_site_is_built_strictly_and_asks_nobody(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "build_site.py"), "--out", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "docs" / "seeing.html").read_text()
    assert "Ways to look at your runs" in page
    assert 'src="https://' not in page
    assert 'rel="stylesheet" href="https://' not in page


def test_broken_links_are_errors(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from build_site import configuration, lay_out
    finally:
        sys.path.pop(0)
    lay_out(pages)
    with (pages / "docs" / "guide.md").open("a") as page:
        page.write("\n[broken](nowhere.md) [broken](metrics.md#no-such-heading)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(configuration(pages, tmp_path / "site"))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nowhere.md" in done.stdout + done.stderr
    assert "no-such-heading" in done.stdout + done.stderr
