"""Its place puts this directory on the import path, for the helpers that tests of several packages share."""

from __future__ import annotations

import os

import hypothesis

# A developer's own settings must not reach the tests, nor their runs the developer's ledger.
for _name in ("MILEAGE_DB", "MILEAGE_WORK", "MILEAGE_PRICES"):
    os.environ.pop(_name, None)

# A busy machine may take any time for an example: no test asserts one.
hypothesis.settings.register_profile("mileage", deadline=None)
hypothesis.settings.load_profile("mileage")
