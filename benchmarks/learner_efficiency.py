"""How close PPO's update comes to this machine's matrix-product rate; whether a user's environment trains as fast.

    PYTHONPATH=src python benchmarks/learner_efficiency.py

The limit is single-precision GEMM through the same BLAS, one product per core at the same time, at 1024 x 1024 x 1024
and at the sizes of the update's own hidden layer (128 x 64 x 64), which stays in the first-level cache and is faster.
Updates and products alternate. Operations of an update are those of its matrix products: two per weight and sample
forward, four backward, two fewer for the first layer.
"""

from __future__ import annotations

import itertools
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import mileage
from _harness import Report, markdown_table
from mileage.kernels import actor_critic
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.kernels.machine.gauges import product_frame, products
from mileage.measure import Arm
from mileage.measure.timing import TimingComparison, Work, compare

ROUNDS = 15
# As in training, an update finds the caches and the threads that the one before it left.
UPDATES = 50
SIZES = {"8 envs x 128 steps, minibatch 256": (8, 256), "64 envs x 128 steps, minibatch 2048": (64, 2048)}
LARGE, SMALL = "GEMM 1024", "GEMM 128 x 64 x 64"
PRODUCTS = {LARGE: ((0, 0, 1024, 1024, 1024), 4), SMALL: ((0, 0, 128, 64, 64), 8000)}
STEPS = 51_200


def product_arm(name: str, team: Any) -> tuple[Arm, float]:
    """One product after the other on every core, and the GFLOP of them all."""
    shape, repeats = PRODUCTS[name]
    frame = product_frame([shape], team.n_ranks, repeats, team.n_ranks)
    flops = 2.0 * shape[2] * shape[3] * shape[4] * repeats * team.n_ranks
    return Arm(name, Work(lambda: team.run(products, frame.record, team.n_ranks))), flops / 1e9


def update_flops(sizes: tuple[int, ...]) -> int:
    """Operations of matrix products per sample and epoch of one network."""
    layers = [inputs * outputs for inputs, outputs in itertools.pairwise(sizes)]
    return 6 * sum(layers) - 2 * layers[0]


def update_arm(name: str) -> tuple[Arm, float, Any]:
    """Updates of an engine with a rollout in it, the GFLOP of one, and the engine."""
    n_envs, minibatch = SIZES[name]
    agent = mileage.PPO("CartPole-v1", preset="none", n_envs=n_envs, n_steps=128, minibatch=minibatch, epochs=4)
    agent.learn(2 * n_envs * 128, eval_every=10**9)
    engine, policy = agent.learner, agent.policy
    flops = (update_flops(policy.actor_sizes) + update_flops(policy.critic_sizes)) * engine.batch * 4
    frame = engine.update_frame.set(rate=1e-6, clip=0.2, steps=engine.adam_steps)
    pieces = actor_critic.n_pieces(engine.config.minibatch)

    def updates() -> None:
        for _ in range(UPDATES):
            engine.team.run(actor_critic.update, frame.record, pieces)

    return Arm(name, Work(updates, units=UPDATES)), flops / 1e9, engine


def efficiency() -> tuple[TimingComparison, dict[str, float], int]:
    """Updates and products in turn, the GFLOP of one job of each, and the number of threads."""
    learners = {name: update_arm(name) for name in SIZES}
    team = next(iter(learners.values()))[2].team
    limits = {name: product_arm(name, team) for name in PRODUCTS}
    arms = [*(arm for arm, _ in limits.values()), *(arm for arm, _, _ in learners.values())]
    work = {name: gflop for name, (_, gflop) in limits.items()} | {name: each[1] for name, each in learners.items()}
    with single_threaded_blas():
        return compare("update against matrix products", arms, rounds=ROUNDS), work, team.n_ranks


def efficiency_table(found: TimingComparison, gflop: dict[str, float], threads: int) -> str:
    """Rates of all arms, and what share of the two limits each is."""
    rates = {each.arm: gflop[each.arm] / each.median for each in found.measurements}
    rows = [
        [name, f"{rate:.1f}", f"{rate / rates[LARGE]:.0%}", f"{rate / rates[SMALL]:.0%}"]
        for name, rate in rates.items()
    ]
    return markdown_table([f"{threads} threads", "GFLOP/s, median", "of GEMM 1024", "of GEMM 128 x 64 x 64"], rows)


def training(env: str, _: int) -> tuple[float, float]:
    """Seconds per step of PPO at shared settings, once started."""
    with mileage.PPO(env, preset="none", n_envs=8, n_steps=128, minibatch=256, epochs=4) as agent:
        agent.prepare()
        cpu = time.process_time()
        record = agent.learn(STEPS, eval_every=10**9)
        return 1.0 / record.steady_steps_per_second, (time.process_time() - cpu) / record.steps


def user_envs() -> TimingComparison:
    """A built-in environment and one of a user's, in turn."""
    example = f"{Path(__file__).resolve().parent.parent / 'examples' / 'custom_env.py'}:Lander"
    names = {"CartPole-v1 (built in)": "CartPole-v1", "examples/custom_env.py:Lander": example}
    arms = [Arm(name, Work(timer=partial(training, env), units=STEPS)) for name, env in names.items()]
    return compare("training, per step", arms, rounds=ROUNDS, warmups=1)


def main() -> None:
    """Measure and write the report."""
    updates, gflop, threads = efficiency()
    envs = user_envs()
    rows = [[each.arm, f"{1.0 / each.median:,.0f}"] for each in envs.measurements]
    tables = [
        "## Update against matrix products",
        efficiency_table(updates, gflop, threads),
        "## A user's environment",
        markdown_table(["environment", "PPO, steady steps/s, median"], rows),
    ]
    data = {"gflop_per_job": gflop, "comparisons": [updates.record(), envs.record()]}
    report = Report("learner_efficiency", "Learner efficiency", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
