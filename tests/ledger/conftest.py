from __future__ import annotations

import sys
from pathlib import Path

# The sample rows are shared with the suites in tests/contracts.
sys.path.insert(0, str(Path(__file__).parents[1] / "contracts"))
