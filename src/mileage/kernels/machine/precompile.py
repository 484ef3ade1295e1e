"""Compiling ahead: the kernels of a training run by name, which of them are on disk already, and getting them there.

Used by `mileage warmup`, and by a run that finds an empty cache: it has half of them compiled by a second process
while it compiles the others itself.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numba
import numpy as np


def _signature(name: str) -> tuple[Any, Any]:
    """Dispatcher and argument types of the kernel called `name`."""
    from mileage.kernels.arrays import advantages
    from mileage.kernels.learners import actor_critic, dqn, rollout, sac, scores, td3

    whole, barrier = numba.types.int64, numba.types.int64[::1]

    def frame(dtype: np.dtype[np.void]) -> Any:
        return numba.typeof(np.zeros(1, dtype))

    floats, real = numba.types.float32[::1], numba.types.float64
    grid, flags = numba.types.float32[:, ::1], numba.types.uint8[:, ::1]
    return {
        "gae": (
            advantages.gae_columns,
            (whole, whole, grid, grid, flags, floats, flags, grid, real, real, grid, grid),
        ),
        "vtrace": (
            advantages.vtrace_columns,
            (whole, whole, grid, grid, grid, flags, floats, flags, grid, real, real, real, real, grid, grid),
        ),
        "score": (scores.score, (whole, whole, barrier, frame(scores.SCORE))),
        "rollout": (rollout.rollout, (whole, whole, barrier, frame(rollout.ROLLOUT))),
        "evaluate": (rollout.evaluate, (whole, whole, barrier, frame(rollout.EVALUATE))),
        "update": (actor_critic.update, (whole, whole, barrier, frame(actor_critic.UPDATE))),
        "sac_update": (sac.sac_update, (whole, whole, barrier, frame(sac.SAC))),
        "sac_act": (sac.sac_act, (frame(sac.ACT),)),
        "td3_update": (td3.td3_update, (whole, whole, barrier, frame(td3.TD3))),
        "td3_act": (td3.td3_act, (frame(td3.ACT),)),
        "dqn_update": (dqn.dqn_update, (whole, whole, barrier, frame(dqn.DQN))),
        "dqn_act": (dqn.dqn_act, (frame(dqn.ACT),)),
        "act": (rollout.act, (frame(rollout.ACT), whole)),
        "values": (rollout.values, (frame(rollout.ACT), floats)),
    }[name]


def missing(names: Iterable[str]) -> list[str]:
    """The kernels among `names` that are not compiled yet."""
    absent = []
    for name in names:
        dispatcher, args = _signature(name)
        if args not in dispatcher.overloads and not dispatcher._cache.holds(args, dispatcher.targetctx.codegen()):
            absent.append(name)
    return absent


def load(names: Iterable[str]) -> None:
    """Compile kernels, or load them from disk."""
    for name in names:
        dispatcher, args = _signature(name)
        dispatcher.compile(args)


def load_seconds(names: Iterable[str]) -> float:
    """Seconds that loading compiled kernels from disk takes."""
    start = time.perf_counter()
    for name in names:
        dispatcher, args = _signature(name)
        dispatcher._cache.load_overload(args, dispatcher.targetctx)
    return time.perf_counter() - start


@contextlib.contextmanager
def loading(names: Iterable[str]) -> Iterator[None]:
    """As `load`, with the first half of the missing kernels compiled by a second process while the body runs.

    Without a second core or a cache to hand kernels over in, this process compiles all.
    """
    from mileage.kernels.machine.jit import cache_is_writable

    names = tuple(names)
    absent = missing(names)
    if len(absent) < 2 or len(os.sched_getaffinity(0)) < 2 or not cache_is_writable():
        yield
        load(names)
        return
    elsewhere = absent[: len(absent) // 2]
    command = [sys.executable, "-m", "mileage.kernels.machine.precompile", *elsewhere]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as other:  # type: ignore[call-overload]
        try:
            yield
            load(name for name in names if name not in elsewhere)
        except BaseException:
            other.kill()
            raise
    # From disk, or compiled here after all if the other process failed.
    load(elsewhere)


if __name__ == "__main__":
    load(sys.argv[1:])
