"""The compiled half of `VecEnv.step`: check and convert the actions, then call the environment.

One call from Python with few arguments: what never changes comes in a single array, because unpacking an array argument
costs as much as stepping ten environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage._types import I64, Array
from mileage.kernels.machine.denormals import flush_denormals, restore
from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.pointers import call_int64, f32, pointer_to


@kernel
def step_discrete(call: I64, actions: Array) -> Any:
    """Step `n` environments and return how many episodes ended, or -1 if an action is out of range.

    `call` is (13,) int64, see `VecEnv._call`: the address of `advance`, nine of its pointers, n, the time limit and the
    number of actions. `actions` (n,) int64 are copied to where the fourth pointer goes, (n, 1) float32.
    """
    row, n_actions = f32(call[4]), call[12]
    wrong = 0
    for i in range(call[10]):
        index = actions[i]
        wrong |= (index < 0) | (index >= n_actions)
        row[i] = np.float32(index)
    if wrong:
        return -1
    mode = flush_denormals()
    ended = call_int64(
        call[0], (call[1], call[2], call[3], call[4], call[5], call[6], call[7], call[8], call[9], call[10], call[11])
    )
    restore(mode)
    return ended


@kernel
def step_continuous(call: I64, actions: Array) -> Any:
    """Step `n` environments and return how many episodes ended; `actions` is (n, A) float32, the rest as above."""
    row = pointer_to(actions)
    mode = flush_denormals()
    ended = call_int64(
        call[0], (call[1], call[2], call[3], row, call[5], call[6], call[7], call[8], call[9], call[10], call[11])
    )
    restore(mode)
    return ended
