"""The compiled half of `VecEnv.step`: check and convert the actions, then call the environment.

One call from Python with few arguments: pointers that never change come in a single array, because unpacking an array
argument costs as much as stepping ten environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mileage.kernels.machine.jit import kernel
from mileage.kernels.machine.pointers import call_int64, pointer_to


@kernel
def step_discrete(call: Any, actions: Any, action: Any, n_actions: Any) -> Any:
    """Step `n` environments and return how many episodes ended, or -1 if an action is out of range.

    `call` is (11,) int64, see `VecEnv._call`; `actions` (n,) int64; `action` (n, 1) float32 receives them.
    """
    wrong = 0
    for i in range(actions.shape[0]):
        index = actions[i]
        wrong |= (index < 0) | (index >= n_actions)
        action[i, 0] = np.float32(index)
    if wrong:
        return -1
    row = pointer_to(action)
    return call_int64(
        call[0],
        (call[1], call[2], call[3], row, call[4], call[5], call[6], call[7], call[8], call[9], call[10]),
    )


@kernel
def step_continuous(call: Any, actions: Any, action: Any, n_actions: Any) -> Any:
    """Step `n` environments and return how many episodes ended; `actions` is (n, A) float32, the rest as above."""
    row = pointer_to(actions)
    return call_int64(
        call[0],
        (call[1], call[2], call[3], row, call[4], call[5], call[6], call[7], call[8], call[9], call[10]),
    )
