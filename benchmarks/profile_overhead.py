"""What profiling costs a run, and whether its sums hold: phases against the wall-clock, layers against the phases.

    PYTHONPATH=src python benchmarks/profile_overhead.py

For every algorithm, plain runs (`Agent.learn`), recorded ones (as `mileage train` makes them) and profiled ones of the
same seed take turns; the cost over each of the others is the median of the ratios of wall-clocks, replays after the run
not included, as they are no part of it. Recording has a cost of its own per run, which a profile has too. Then one full
profile per algorithm says by how much phases miss the wall-clock that another clock measured around them, and by how
much the sum of layers differs from iterations without probes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from _harness import Report, markdown_table
from mileage.meter import Phase, PhaseClock
from mileage.profiling.end_to_end import RunOptions, train
from mileage.profiling.profile import profile
from mileage.training.agents import agent_class
from mileage.training.recording import recorded

ROUNDS = 6
NEVER = 10**9
WORKLOADS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", 400_000, {"preset": "none"}),
    "a2c": ("CartPole-v1", 200_000, {"preset": "none"}),
    "sac": ("Pendulum-v1", 1_300, {}),
    "td3": ("Pendulum-v1", 1_500, {}),
    "dqn": ("CartPole-v1", 20_000, {}),
}


def plain(algorithm: str, env: str, steps: int, options: dict[str, Any]) -> float:
    """Wall-clock of a run that nobody looks at."""
    with agent_class(algorithm)(env, seed=0, **options) as agent:
        agent.prepare()
        start = time.perf_counter()
        agent.learn(steps, eval_every=NEVER)
        return time.perf_counter() - start


def recorded_run(algorithm: str, env: str, steps: int, options: dict[str, Any]) -> float:
    """Wall-clock of the same run as `mileage train` makes it: recorded, with memory sampled, not profiled."""
    with agent_class(algorithm)(env, seed=0, **options) as agent:
        agent.prepare()
        start = time.perf_counter()
        clock, panel = PhaseClock(), agent.default_panel()
        with recorded(agent, panel, None, clock, horizon=agent.plan_horizon(steps), db=False) as recorder:
            done = agent.learn(steps, panel=panel, eval_every=NEVER, clock=clock, on_evaluation=recorder.on_evaluation)
            recorder.finish(done)
        return time.perf_counter() - start


def profiled(algorithm: str, env: str, steps: int, options: dict[str, Any]) -> float:
    """Wall-clock of the same run under the profiler."""
    with agent_class(algorithm)(env, seed=0, **options) as agent:
        agent.prepare()
        start = time.perf_counter()
        train(agent, PhaseClock(), RunOptions(steps=steps, eval_every=NEVER))
        return time.perf_counter() - start


def costs(algorithm: str) -> dict[str, Any]:
    env, steps, options = WORKLOADS[algorithm]
    arms = (plain, recorded_run, profiled)
    for arm in arms:
        arm(algorithm, env, steps // 4, options)
    samples: dict[str, list[float]] = {arm.__name__: [] for arm in arms}
    for turn in range(ROUNDS):
        for arm in (*arms[turn % 3 :], *arms[: turn % 3]):
            samples[arm.__name__].append(arm(algorithm, env, steps, options))

    def cost(base: str) -> float:
        return statistics.median(b / a for a, b in zip(samples[base], samples["profiled"], strict=True)) - 1.0

    return samples | {"cost": cost("plain"), "cost over recorded": cost("recorded_run")}


def sums(algorithm: str) -> dict[str, float]:
    env, steps, options = WORKLOADS[algorithm]
    with agent_class(algorithm)(env, **options) as agent:
        agent.prepare()
    clock = PhaseClock()
    start = time.perf_counter()
    ends: list[float] = []

    def note(_: Any) -> None:
        ends.append(time.perf_counter())

    found = profile(algorithm, env, steps=steps, eval_every=NEVER, clock=clock, callback=note, **options)
    run = found.run
    assert found.calibration is not None
    # The last callback lies just before the end: another clock's word for the wall-clock up to there.
    outside = ends[-1] - start
    inside = run.wall_seconds - run.phases.get(Phase.CHECKPOINT, 0.0)
    parts = found.calibration.rollout_parts
    return {
        "wall": run.wall_seconds,
        "sum of phases": sum(run.phases.values()),
        "phases miss the wall-clock by": run.sum_error,
        "the clock misses another by": abs(inside - outside) / outside,
        "other": run.share("other"),
        "layers differ by": found.calibration.layers.difference,
        "parts of the rollout differ by": 0.0 if parts is None else parts.difference,
    }


def main() -> None:
    """Measure and write the report."""
    data: dict[str, Any] = {}
    cost_rows, sum_rows = [], []
    for algorithm, (env, steps, _) in WORKLOADS.items():
        cost, total = costs(algorithm), sums(algorithm)
        data[algorithm] = {"cost": cost, "sums": total}
        name = f"{algorithm}, {env}, {steps:,} steps"
        medians = [statistics.median(cost[arm]) for arm in ("plain", "recorded_run", "profiled")]
        shares = [f"{100 * cost[key]:+.1f} %" for key in ("cost", "cost over recorded")]
        cost_rows.append([name, *(f"{median:.3f} s" for median in medians), *shares])
        sum_rows.append(
            [
                name,
                f"{total['wall']:.3f} s",
                f"{100 * total['phases miss the wall-clock by']:.2f} %",
                f"{100 * total['the clock misses another by']:.2f} %",
                f"{100 * total['other']:.1f} %",
                f"{100 * total['layers differ by']:+.1f} %",
                f"{100 * total['parts of the rollout differ by']:+.1f} %",
            ]
        )
    header = [
        "workload",
        "wall",
        "phase sum − wall",
        "clock − another",
        "other",
        "layers − iteration",
        "parts − rollout",
    ]
    tables = [
        "## Cost of profiling a run",
        markdown_table(["workload", "plain", "recorded", "profiled", "over plain", "over recorded"], cost_rows),
        "## Sums",
        markdown_table(header, sum_rows),
    ]
    report = Report("profile_overhead", "What profiling costs, and whether its sums hold", tables, data)
    print("\n\n".join(tables), *report.write(), sep="\n")


if __name__ == "__main__":
    main()
