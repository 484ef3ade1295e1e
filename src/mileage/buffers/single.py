"""Storing one transition from Python without a kernel call: through memory views, which check what they are given.

Assigning an array to a slice of a memory view compares dtype, length and contiguity and copies, all in 0.1 µs; a kernel
call with as many arguments takes more than 1 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mileage.buffers.layout import Layout


def short_push(
    layout: Layout, records: np.ndarray[Any, Any], count: memoryview, general: Callable[[], Any]
) -> Callable[..., None]:
    """A function that stores one transition of the only environment; what it cannot store goes to `general()`.

    It refers to the memory and not to the buffer, so that a buffer is freed when its last user lets go.
    """

    def view(dtype: Any) -> memoryview:
        return memoryview(records.view(dtype))

    rows, derived = layout.rows, not layout.stored
    obs_item, action_item = np.dtype(layout.obs_dtype).itemsize, np.dtype(layout.action_dtype).itemsize
    obs_view, action_view = view(layout.obs_dtype), view(layout.action_dtype)
    reward_view, state_view = view(np.float32), view(np.int64)
    obs_stride, obs_size, next_at = layout.record // obs_item, layout.obs_shape[0], layout.next_at // obs_item
    next_end = next_at + obs_size
    action_stride, action_at = layout.record // action_item, layout.action_at // action_item
    # A single number is assigned to its place, a vector to a slice.
    action_end = action_at + layout.action_shape[0] if layout.action_shape else 0
    reward_stride, reward_at = layout.record // 4, layout.reward_at // 4
    state_stride, state_at = layout.record // 8, layout.state_at // 8

    def push(obs: Any, action: Any, reward: Any, terminated: Any, truncated: Any, next_obs: Any) -> None:
        written = count[0]
        row = written % rows
        state = row * state_stride + state_at
        if derived and (terminated or truncated or state_view[state]):
            # A final observation comes or goes.
            general()(obs, action, reward, terminated, truncated, next_obs)
            return
        try:
            at = row * obs_stride
            obs_view[at : at + obs_size] = obs
            if next_at:
                obs_view[at + next_at : at + next_end] = next_obs
            at = row * action_stride
            if action_end:
                action_view[at + action_at : at + action_end] = action
            else:
                action_view[at + action_at] = action
            reward_view[row * reward_stride + reward_at] = reward
            state_view[state] = 2 * truncated + terminated
        except (ValueError, TypeError):
            # What was in this row before is lost, and the count says so.
            count[1] = written + 1
            general()(obs, action, reward, terminated, truncated, next_obs)
            return
        count[0] = written + 1

    return push
