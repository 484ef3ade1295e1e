"""RLtools' SAC with MKL on its own C++ pendulum, at its defaults; compiled once, before the race, by `--compile`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from _sitting import exam, options

if "--compile" in sys.argv:
    sys.argv[sys.argv.index("--compile") :] = ["--seed", "0"]
    only_compile = True
else:
    only_compile = False
wanted = options()
import numpy as np  # noqa: E402
from rltools import SAC  # type: ignore[import-not-found]  # noqa: E402

STEPS, EVERY = 20_000, 500
TORQUE = 2.0  # its actions are shares of the largest torque
place = {"path": str(Path(__file__).resolve().parent / "rltools_pendulum"), "action_dim": 1, "observation_dim": 3}
sac = SAC(place, enable_evaluation=False, interface_name="race_pendulum", STEP_LIMIT=STEPS)


def act(rows: list[list[float]]) -> Any:
    return [[TORQUE * float(state.action(np.asarray(row, np.float32))[0])] for row in rows]


if not only_compile:
    sitting = exam("RLtools", wanted.threads, "rltools", "mkl")
    state = sac.State(wanted.seed)
    for step in range(1, STEPS + 1):
        over = state.step()
        if step % EVERY == 0 and (sitting.look(step, act) or over):
            break
