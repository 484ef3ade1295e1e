"""What benchmarks of presets share: which there are, which of them have a target, and what is asked of a benchmark."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from mileage.algorithms.registry import algorithms

TARGETS = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "MountainCar-v0": -115.0,
    "MountainCarContinuous-v0": 90.0,
    "Pendulum-v1": -200.0,
}
"""Mean returns that are reached in seconds."""


def shipped(*, with_target: bool) -> Iterator[tuple[str, str]]:
    """Algorithm and environment of every preset whose environment is among `TARGETS`, or is not."""
    folder = resources.files("mileage.training").joinpath("presets")
    for algorithm in algorithms():
        file = folder.joinpath(f"{algorithm.name}.toml")
        for env in tomllib.loads(file.read_text()) if file.is_file() else ():
            if (env in TARGETS) == with_target:
                yield algorithm.name, env


def options(description: str | None, seeds: int, only: str) -> argparse.Namespace:
    """What was asked of a benchmark of presets: `seeds`, `only` and `keep`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--only", nargs="+", help=only)
    parser.add_argument("--keep", type=Path, help="file of runs that are done, which grows")
    return parser.parse_args()
