"""Its place puts this directory on the import path, for the helpers that tests of several packages share."""

from __future__ import annotations

import os
import random
import signal
import sys

import hypothesis
import numpy as np
import pytest

import extras

# A developer's own settings must not reach the tests, nor their runs the developer's ledger.
for _name in ("MILEAGE_CHECK", "MILEAGE_DB", "MILEAGE_PRICES", "MILEAGE_WORK", "MILEAGE_CATALOGUE", "MILEAGE_PRICE"):
    os.environ.pop(_name, None)
os.environ.pop("DEVICE_PRICE_PER_HOUR", None)
# What machine it is must not reach them either: on a rented one, every run would have a price.
os.environ["MILEAGE_RECOGNISE"] = "0"

# Torch's threads would wait for each other by burning the cores that other workers need: ten times slower, or more.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

# A shell lets what it starts in the background ignore Ctrl-C, and the programs that tests interrupt with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine may take any time for an example: no test asserts one. Examples are the same everywhere and every time,
# so that what passes here passes there; `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.register_profile("mileage", deadline=None, derandomize=True)
hypothesis.settings.load_profile("mileage")

# Here a test, or a parameter of one, that needs torch has it in its name.
_NAMED_FOR_TORCH = ("tests/profiling/", "tests/algorithms/test_describe.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs torch where it is missing."""
    for item in items:
        if item.nodeid.startswith(_NAMED_FOR_TORCH) and "torch" in item.name:
            item.add_marker(extras.TORCH)


@pytest.fixture(autouse=True)
def _same_draws_in_any_order() -> None:
    """Networks that tests make by themselves draw their weights from global generators."""
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
