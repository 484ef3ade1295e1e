"""Writes the golden results: short trainings of every algorithm, saved half-way and at the end.

    python tests/golden/make_golden.py tests/golden/before

What is committed was made by the code as it stood before the contracts were written down (commit cbb61d5): the same
seeds must still give the same parameters, bit for bit in the same arithmetic, and its checkpoints must still open.
A processor can be told to compute as another one: `make test-cpus`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from safetensors.numpy import save_file

import mileage


@dataclasses.dataclass(frozen=True)
class Case:
    """One training: `steps` to the checkpoint, as many again to the end."""

    name: str
    algorithm: str
    env: str
    steps: int
    config: dict[str, Any]
    backend: str = "native"


SMALL = {"hidden": (16, 16)}
REPLAY = {"capacity": 2000, "learning_starts": 64, "batch": 32, **SMALL}
CASES = (
    Case("ppo-cartpole", "PPO", "CartPole-v1", 2048, {"minibatch": 256, **SMALL}),
    Case("ppo-pendulum", "PPO", "Pendulum-v1", 2048, {
        "normalise_observations": True, "normalise_rewards": True, "learning_rate_schedule": "linear",
        "value_clip": 0.2, "target_kl": 0.02, **SMALL}),
    Case("a2c-cartpole", "A2C", "CartPole-v1", 1024, {"normalise_advantages": True, **SMALL}),
    Case("impala-cartpole", "IMPALA", "CartPole-v1", 1024, {"mode": "lockstep", "lag": 1, **SMALL}),
    Case("sac-pendulum", "SAC", "Pendulum-v1", 256, REPLAY),
    Case("sac-several", "SAC", "Pendulum-v1", 256, {"n_envs": 2, "gradient_steps": 2, "n_step": 3,
        "max_grad_norm": 1.0, "temperature": 0.2, **REPLAY}),
    Case("td3-pendulum", "TD3", "Pendulum-v1", 256, REPLAY),
    Case("dqn-cartpole", "DQN", "CartPole-v1", 256, {"target_every": 8, **REPLAY}),
    Case("dqn-prioritised", "DQN", "CartPole-v1", 256, {"prioritised": True, "dueling": True, **REPLAY}),
    Case("ppo-torch", "PPO", "CartPole-v1", 1024, SMALL, "torch"),
    Case("sac-torch", "SAC", "Pendulum-v1", 128, REPLAY, "torch"),
    Case("td3-torch", "TD3", "Pendulum-v1", 128, REPLAY, "torch"),
    Case("dqn-torch", "DQN", "CartPole-v1", 128, REPLAY, "torch"),
)  # fmt: skip


def arithmetic() -> str:
    """What decides how sums are rounded: the processors that the compiler and OpenBLAS work for, told or found."""
    found = llvmlite.binding.get_host_cpu_features()
    features = found.flatten() if numba.config.CPU_FEATURES is None else numba.config.CPU_FEATURES
    name = numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    wide = "AVX-512" if "+avx512f" in features else "no AVX-512"
    own = "SkylakeX" if found.get("avx512f") else "Haswell" if found.get("avx2") else "Nehalem"
    # What OpenBLAS has for Zen is what it has for Haswell.
    blas = (os.environ.get("OPENBLAS_CORETYPE") or own).replace("Zen", "Haswell")
    return f"{name}, {wide}, OpenBLAS for {blas}"


def fresh(case: Case) -> Any:
    """The agent of a case, untrained."""
    return getattr(mileage, case.algorithm)(
        case.env, seed=7, preset="none", threads=2, backend=case.backend, **case.config
    )


def policy_arrays(agent: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A copy of everything that the policy consists of."""
    return {name: np.array(array) for name, array in agent.policy.live_arrays().items()}


def train(agent: Any, steps: int) -> dict[str, np.ndarray[Any, Any]]:
    """Parameters after so many steps more; the horizon of schedules is the call's own."""
    agent.learn(steps, eval_every=10**9, panel=agent.default_panel(None, 2))
    return policy_arrays(agent)


def main(folder: Path) -> None:
    """Write checkpoints, final parameters, and the arithmetic they come from."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        agent = fresh(case)
        train(agent, case.steps)
        agent.save(folder / f"{case.name}.checkpoint.safetensors")
        end = train(mileage.load(folder / f"{case.name}.checkpoint.safetensors", threads=2), case.steps)
        save_file(end, folder / f"{case.name}.end.safetensors")
        print(case.name, {name: array.shape for name, array in end.items()})
    (folder / "machine.json").write_text(json.dumps({"arithmetic": arithmetic()}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
