"""A process that was forked off has its parent's agents, and none of its threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

import extras
import mileage
from waiting import until


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does `work`: 0 if it came to its end, 1 if it raised."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    try:
        until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    finally:
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("backend", "algorithm", "env"),
    [
        ("native", "ppo", "CartPole-v1"),
        ("native", "impala", "CartPole-v1"),
        ("native", "dqn", "CartPole-v1"),
        ("native", "sac", "Pendulum-v1"),
        pytest.param("torch", "ppo", "CartPole-v1", marks=extras.TORCH),
    ],
)
def test_an_agent_goes_on_in_a_fork(backend: str, algorithm: str, env: str) -> None:
    with mileage.agent_class(algorithm)(env, threads=2, backend=backend, n_envs=64, preset="none") as agent:
        agent.learn(4096, eval_every=10**9)
        assert in_child(agent.evaluate) == 0
        assert in_child(lambda: agent.learn(4096, eval_every=10**9)) == 0
        agent.learn(4096, eval_every=10**9)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_sharded_vector_goes_on_in_a_fork() -> None:
    n = 2 * 16_384
    vec = mileage.VecEnv("CartPole-v1", n, threads=2)
    vec.reset()
    vec.step(np.zeros(n, np.int64))
    assert in_child(lambda: vec.step(np.zeros(n, np.int64))) == 0
    vec.step(np.zeros(n, np.int64))
