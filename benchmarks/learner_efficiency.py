"""How close PPO's update comes to this machine's matrix-product rate; whether a user's environment trains as fast.

    PYTHONPATH=src python benchmarks/learner_efficiency.py

The limit is single-precision GEMM through the same BLAS, one product per core at the same time, at 1024 x 1024 x 1024
and at the sizes of the update's own hidden layer (128 x 64 x 64), which stays in the first-level cache and is faster.
Updates and products alternate. Operations of an update are those of its matrix products: two per weight and sample
forward, four backward, two fewer for the first layer.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import mileage
from _harness import Report, markdown_table
from mileage.kernels import actor_critic
from mileage.kernels._blas import sgemm, single_threaded_blas
from mileage.kernels._jit import kernel
from mileage.kernels._pointers import pointer_to

ROUNDS = 15
# As in training, an update finds the caches and the threads that the one before it left.
UPDATES = 50
SIZES = {"8 envs x 128 steps, minibatch 256": (8, 256), "64 envs x 128 steps, minibatch 2048": (64, 2048)}


@kernel
def products(repeats: Any, m: Any, n: Any, k: Any, a: Any, b: Any, out: Any) -> None:
    """`repeats` products out[m, n] = a[m, k] @ b[k, n]."""
    for _ in range(repeats):
        sgemm(0, 0, m, n, k, pointer_to(a), k, pointer_to(b), n, pointer_to(out), n)


def gemm_rate(cores: int, m: int, n: int, k: int, repeats: int) -> float:
    """GFLOP/s of one product after the other on every core."""
    operands = [[np.ones(size, np.float32) for size in (m * k, k * n, m * n)] for _ in range(cores)]
    threads = [threading.Thread(target=products, args=(repeats, m, n, k, *arrays)) for arrays in operands]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 2.0 * m * n * k * repeats * cores / (time.perf_counter() - start) / 1e9


def update_flops(sizes: tuple[int, ...]) -> int:
    """Operations of matrix products per sample and epoch of one network."""
    layers = [inputs * outputs for inputs, outputs in itertools.pairwise(sizes)]
    return 6 * sum(layers) - 2 * layers[0]


def learner(n_envs: int, minibatch: int) -> tuple[Any, float]:
    """An engine with a rollout in it, and the GFLOP of one update."""
    agent = mileage.PPO("CartPole-v1", preset="none", n_envs=n_envs, n_steps=128, minibatch=minibatch, epochs=4)
    agent.learn(2 * n_envs * 128, eval_every=10**9)
    engine = agent._built().engine
    policy = agent.policy
    flops = (update_flops(policy.actor_sizes) + update_flops(policy.critic_sizes)) * engine.batch * 4
    return engine, flops / 1e9


def efficiency_table() -> tuple[str, list[dict[str, Any]]]:
    learners = {name: learner(*size) for name, size in SIZES.items()}
    cores = next(iter(learners.values()))[0].team.n_ranks
    gemm_rate(cores, 128, 64, 64, 10)
    rates: dict[str, list[float]] = {"GEMM 1024": [], "GEMM 128 x 64 x 64": [], **{name: [] for name in learners}}
    with single_threaded_blas():
        for _ in range(ROUNDS):
            rates["GEMM 1024"].append(gemm_rate(cores, 1024, 1024, 1024, 4))
            rates["GEMM 128 x 64 x 64"].append(gemm_rate(cores, 128, 64, 64, 8000))
            for name, (engine, gflop) in learners.items():
                frame = engine._update.set(rate=1e-6, clip=0.2, steps=engine.adam_steps)
                start = time.perf_counter()
                for _ in range(UPDATES):
                    engine.team.run(actor_critic.update, frame.record, actor_critic.n_pieces(engine.settings.minibatch))
                rates[name].append(gflop * UPDATES / (time.perf_counter() - start))
    medians = {name: statistics.median(samples) for name, samples in rates.items()}
    large, small = medians["GEMM 1024"], medians["GEMM 128 x 64 x 64"]
    rows = [[name, f"{rate:.1f}", f"{rate / large:.0%}", f"{rate / small:.0%}"] for name, rate in medians.items()]
    data = [
        {"name": name, "gflop_per_s": rates[name], "of_large": rate / large, "of_small": rate / small}
        for name, rate in medians.items()
    ]
    header = [f"{cores} threads", "GFLOP/s, median", "of GEMM 1024", "of GEMM 128 x 64 x 64"]
    return markdown_table(header, rows), data


def training_rate(env: Any) -> float:
    """Steady steps per second of PPO at shared settings."""
    with mileage.PPO(env, preset="none", n_envs=8, n_steps=128, minibatch=256, epochs=4) as agent:
        return agent.learn(51_200, eval_every=10**9).steady_steps_per_second


def user_env_table() -> tuple[str, list[dict[str, Any]]]:
    example = f"{Path(__file__).resolve().parent.parent / 'examples' / 'custom_env.py'}:Lander"
    names = {"CartPole-v1 (built in)": "CartPole-v1", "examples/custom_env.py:Lander": example}
    rates: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        training_rate(names[name])
    for _ in range(ROUNDS):
        for name, env in names.items():
            rates[name].append(training_rate(env))
    rows = [[name, f"{statistics.median(samples):,.0f}"] for name, samples in rates.items()]
    return markdown_table(["environment", "PPO, steady steps/s, median"], rows), [
        {"name": name, "steps_per_second": samples} for name, samples in rates.items()
    ]


def main() -> None:
    efficiency, efficiency_data = efficiency_table()
    envs, env_data = user_env_table()
    tables = ["## Update against matrix products", efficiency, "## A user's environment", envs]
    report = Report("learner_efficiency", "Learner efficiency", tables, [*efficiency_data, *env_data])
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
