"""Benchmarks are scripts beside the package: their directory goes on the path, as it does when they run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
