"""Build the documentation as a site into site/, strictly and without a network: a broken link is an error.

    python docs/build_site.py [--out site]

The pages link to each other as they lie in the repository, so what is linked is laid out the same way in a directory
for the time of the build; the README is the front page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TAKEN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "docs/**/*.md", "docs/images/**/*", "docs/reports/**/*",
    "benchmarks/*.md", "benchmarks/**/*.md", "benchmarks/*.py", "benchmarks/results/**/*", "examples/*.py", "docs/*.py",
    "src/mileage/external/race/*.json",
)  # fmt: skip
"""What pages are made of or link to."""
CONFIG = """
site_name: mileage
site_description: Know what it costs to train an RL policy until it passes a held-out test.
docs_dir: {pages}
site_dir: {out}
use_directory_urls: false
strict: true
theme:
  name: material
  font: false
  features: [navigation.tabs, navigation.top, navigation.indexes, toc.follow, search.suggest, content.code.copy]
  icon: {{logo: material/road-variant}}
  palette:
    - media: "(prefers-color-scheme: light)"
      scheme: default
      primary: blue grey
      toggle: {{icon: material/weather-night, name: Dark}}
    - media: "(prefers-color-scheme: dark)"
      scheme: slate
      primary: blue grey
      toggle: {{icon: material/weather-sunny, name: Light}}
markdown_extensions:
  - admonition
  - attr_list
  - tables
  - toc: {{permalink: true}}
  - pymdownx.highlight: {{use_pygments: true}}
  - pymdownx.superfences
plugins: [search]
validation:
  nav: {{omitted_files: info}}
  links: {{not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: info}}
nav:
  - Home: README.md
  - Start:
      - docs/index.md
      - Guide: docs/guide.md
      - Seeing runs: docs/seeing.md
      - Troubleshooting: docs/troubleshooting.md
      - Coming from Stable-Baselines3: docs/migrating-from-sb3.md
      - Changelog: CHANGELOG.md
  - Train:
{algorithms}
      - Environments: docs/envs.md
      - Spaces and masks: docs/spaces.md
      - MuJoCo and pixels: docs/mujoco.md
      - Torch back end: docs/torch.md
      - Buffers: docs/buffers.md
      - Presets: docs/presets.md
  - Ledger:
      - Ledger: docs/ledger.md
      - Record: docs/record.md
      - The exam: docs/exam.md
      - Adapters: docs/adapters.md
      - Races: docs/race.md
      - Cost records: docs/cost-record.md
      - Beyond one machine: docs/scaling.md
      - What every number means: docs/metrics.md
      - Statistics: docs/statistics.md
      - Experiments: docs/experiments.md
  - Profiler:
      - Profiling: docs/profiling.md
      - Anybody's program: docs/profiling-programs.md
      - Trying fixes: docs/profiling-try.md
      - Micro-benchmarks: docs/bench.md
  - Code RL: docs/rl-bench.md
  - Reference:
      - Command line: docs/cli.md
      - Array kernels: docs/kernels.md
      - Errors: docs/errors.md
      - Extending: docs/extending.md
      - Glossary: docs/glossary.md
      - Architecture: docs/architecture.md
      - Decisions: docs/adr/README.md
      - Contributing: CONTRIBUTING.md
"""


def lay_out(pages: Path) -> None:
    """Copy what the site is made of."""
    for pattern in TAKEN:
        for source in sorted(ROOT.glob(pattern)):
            if source.is_file() and "__pycache__" not in source.parts:
                target = pages / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def configuration(pages: Path, out: Path) -> str:
    """What mkdocs is told; algorithms are those that have a page."""
    names = sorted(path.stem for path in (ROOT / "docs" / "algorithms").glob("*.md"))
    listed = "\n".join(f"      - {name.upper()}: docs/algorithms/{name}.md" for name in names)
    return CONFIG.format(pages=pages, out=out, algorithms=listed)


def main() -> None:
    """Build the site, or say what is wrong with a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mileage-site-") as name:
        pages, config = Path(name, "pages"), Path(name, "mkdocs.yml")
        lay_out(pages)
        config.write_text(configuration(pages, options.out.resolve()))
        # Asked to be quiet, mkdocs would not count the warnings that strictness makes errors.
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(config)]
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
        said = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join(said) if done.returncode else 0)


if __name__ == "__main__":
    main()
