"""The scripts that make parts of the documentation are not a package: they are found by their directories."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "benchmarks")]
