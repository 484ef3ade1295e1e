"""Compiling ahead: the kernels of a training run by name, which of them are on disk already, and getting them there.

Used by `mileage warmup`, and by a run that finds an empty cache: it has half of them compiled by a second process
while it compiles the others itself.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import numba
import numpy as np

from mileage.kernels.machine.jit import cache_is_writable, cache_of
from mileage.system import usable_cores

# Module and name of every kernel, and what it takes: types below, or frames of its module.
_TEAM = "whole whole barrier"
_KERNELS = {
    "gae": ("arrays", "gae_columns", "whole whole grid grid flags floats flags grid real real grid grid"),
    "vtrace": (
        "arrays",
        "vtrace_columns",
        "whole whole grid grid grid flags floats flags grid real real real real grid grid",
    ),
    "score": ("actor_critic", "score", f"{_TEAM} SCORE"),
    "rollout": ("rollout", "rollout", f"{_TEAM} ROLLOUT"),
    "evaluate": ("rollout", "evaluate", f"{_TEAM} EVALUATE"),
    "act": ("rollout", "act", "ACT whole"),
    "values": ("rollout", "values", "ACT floats"),
    "update": ("actor_critic", "update", f"{_TEAM} UPDATE"),
    "sac_update": ("sac", "sac_update", f"{_TEAM} SAC"),
    "sac_act": ("sac", "sac_act", "ACT"),
    "td3_update": ("td3", "td3_update", f"{_TEAM} TD3"),
    "td3_act": ("td3", "td3_act", "ACT"),
    "dqn_update": ("dqn", "dqn_update", f"{_TEAM} DQN"),
    "dqn_act": ("dqn", "dqn_act", "ACT"),
}
# Of these there is another for frames with masks.
_WITH_MASKS = ("score", "rollout", "evaluate", "act", "values", "update", "dqn_update", "dqn_act")
_MASKED = {name: f"masked_{name}" for name in _WITH_MASKS}


def _on_masked_frames(name: str) -> tuple[str, str, str]:
    home, function, arguments = _KERNELS[name]
    return home, function, " ".join(f"MASKED_{each}" if each.isupper() else each for each in arguments.split())


_KERNELS |= {masked: _on_masked_frames(name) for name, masked in _MASKED.items()}
_TYPES = {
    "whole": numba.types.int64,
    "real": numba.types.float64,
    "barrier": numba.types.int64[::1],
    "floats": numba.types.float32[::1],
    "grid": numba.types.float32[:, ::1],
    "flags": numba.types.uint8[:, ::1],
}


def signature(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Dispatcher and argument types of the kernel called `name`; imports no others."""
    home, function, arguments = _KERNELS[name]
    module = import_module(f"mileage.kernels.{home}")
    types = (_TYPES.get(each) or numba.typeof(np.zeros(1, getattr(module, each))) for each in arguments.split())
    return getattr(module, function), tuple(types)


def with_masks(names: Iterable[str]) -> tuple[str, ...]:
    """The kernels `names` as a policy with masks, or with actions of several parts, needs them."""
    return tuple(_MASKED.get(name, name) for name in names)


def missing(names: Iterable[str]) -> list[str]:
    """The kernels among `names` that are not compiled yet."""
    absent = []
    for name in names:
        dispatcher, args = signature(name)
        if args not in dispatcher.overloads and not cache_of(dispatcher).holds(args, dispatcher.targetctx.codegen()):
            absent.append(name)
    return absent


def load(names: Iterable[str]) -> None:
    """Compile kernels, or load them from disk."""
    for name in names:
        dispatcher, args = signature(name)
        dispatcher.compile(args)


def read(names: Iterable[str]) -> None:
    """Read kernels from disk as a new process would, and forget them: to know how long that takes."""
    for name in names:
        dispatcher, args = signature(name)
        cache_of(dispatcher).load_overload(args, dispatcher.targetctx)


@contextlib.contextmanager
def loading(names: Iterable[str]) -> Iterator[None]:
    """As `load`, with the first half of the missing kernels compiled by a second process while the body runs.

    Without a second core or a cache to hand kernels over in, this process compiles all.
    """
    names = tuple(names)
    absent = missing(names)
    if len(absent) < 2 or usable_cores() < 2 or not cache_is_writable():
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
