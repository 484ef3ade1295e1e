"""Denormal numbers are zeros inside kernels, and what they were for everybody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mileage
from mileage.kernels.machine.frames import pointer_to
from mileage.kernels.machine.memory import _FLUSH, denormals_flushed, flush_denormals, restore
from mileage.kernels.machine.team import Team, meet
from shims import shim

TINY = np.float32(1e-40)
SMALLEST = np.finfo(np.float32).smallest_normal
CASES = [("PPO", "CartPole-v1"), ("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1")]
REPLAY = {"learning_starts": 64, "batch": 32}


@shim
def mode() -> Any:
    found = flush_denormals()
    restore(found)
    # The lowest bits say what has happened so far (inexact, underflow ...).
    return found & ~0x3F


@shim
def halves(rank: Any, n_ranks: Any, barrier: Any, record: Any) -> None:
    """Half of a rank's denormal number while it flushes, and whether it then goes back to its mode of before."""
    before = flush_denormals()
    record[rank, 0] *= np.float32(0.5)
    restore(before)
    after = flush_denormals()
    restore(after)
    record[rank, 1] = np.float32((before ^ after) & ~0x3F)
    meet(pointer_to(barrier), n_ranks)


@pytest.fixture
def arithmetic() -> Iterator[None]:
    """NumPy must calculate with denormals before and after, in the mode that it had."""
    before = mode()
    assert TINY * np.float32(0.5) > 0.0
    yield
    assert mode() == before
    assert TINY * np.float32(0.5) > 0.0


def moments(agent: Any) -> list[Any]:
    """Adam's moments, the learner's own memory."""
    return [
        array
        for name, array in agent.learner.state_arrays().items()
        if re.search("(adam|actor|critic)_(mean|square)", name)
    ]


def subnormals(arrays: list[Any]) -> int:
    return sum(int(np.count_nonzero((array != 0.0) & (np.abs(array) < SMALLEST))) for array in arrays)


@pytest.mark.usefixtures("arithmetic")
def test_python_code_can_flush_too() -> None:
    with denormals_flushed():
        assert not _FLUSH or TINY * np.float32(0.5) == 0.0
        with pytest.raises(ZeroDivisionError), denormals_flushed():
            raise ZeroDivisionError
        assert not _FLUSH or TINY * np.float32(0.5) == 0.0


@pytest.mark.usefixtures("arithmetic")
def test_every_rank_flushes_and_goes_back() -> None:
    team = Team(2)
    record = np.full((2, 2), TINY)
    team.run(halves, record, 2)
    expected = 0.0 if _FLUSH else TINY * np.float32(0.5)
    assert record.tolist() == [[expected, 0.0]] * 2
    team.close()


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize(("algorithm", "env"), CASES)
def test_an_update_leaves_no_denormals(algorithm: str, env: str, backend: str, threads: int) -> None:
    if backend == "torch":
        pytest.importorskip("torch", reason="the torch extra is not installed")
    config = {"hidden": (16, 16)} | ({} if algorithm == "PPO" else REPLAY)
    with getattr(mileage, algorithm)(env, seed=0, threads=threads, backend=backend, preset="none", **config) as agent:
        agent.learn(256, eval_every=10**9, panel=agent.default_panel(None, 1))
        for array in moments(agent):
            array[...] = TINY
        planted = subnormals(moments(agent))
        agent.learn(256, eval_every=10**9, panel=agent.default_panel(None, 1))
        assert planted > 300
        assert not _FLUSH or subnormals(moments(agent)) == 0
