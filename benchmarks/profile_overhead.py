"""What profiling costs a run, and whether its sums hold: phases against the wall-clock, layers against the iterations.

    PYTHONPATH=src python benchmarks/profile_overhead.py

A profile costs something fixed, and something that grows with the run; each is measured where it can be told from the
noise of a shared machine, by arms that take turns:

- fixed: plain runs (`Agent.learn`), recorded ones (as `mileage train` makes them) and profiled ones of a single
  iteration, from start to end. A recorded run has fixed costs of its own (git's revision, the sampler of memory), which
  a profile has too.
- growing: what a profiled run carries is a thread that reads the memory now and then. Within one training, blocks of
  some ten milliseconds in which it reads once take turns with blocks in which it does not: the difference is what a
  reading costs the training. How often it reads is counted in a second of training under the real sampler.

Medians over rounds, of wall-clock and of CPU time; replays after the run are no part of it. Then one full profile per
workload says by how much phases miss the wall-clock that another clock measured around them, and by how much the sum of
layers differs from iterations without probes.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from _harness import Report, markdown_table
from mileage import Ledger
from mileage.kernels.machine.blas import single_threaded_blas
from mileage.measure import Arm, Phase, PhaseClock
from mileage.measure.memory import ProcessTree
from mileage.measure.timing import TimingComparison, Work, compare
from mileage.profiling.drift import PhaseMemory
from mileage.profiling.profile import profile_run
from mileage.profiling.run import RunOptions, train
from mileage.training.agent import Agent
from mileage.training.agents import agent_class

FIXED_ROUNDS, READING_ROUNDS = 15, 500
BLOCK_SECONDS, READING_SECONDS, COUNTING_SECONDS = 0.01, 12.0, 1.0
# A profile is of a run that takes at least about as long.
RUN_SECONDS = 2.0
NEVER = 10**9
PLAIN, RECORDED, PROFILED = "plain", "recorded", "profiled"


class Workload(NamedTuple):
    """What is trained, for as many steps as take one or two seconds on a slow core."""

    algorithm: str
    env: str
    steps: int
    options: dict[str, Any]

    def agent(self) -> Agent:
        """A new agent, the same every time."""
        return agent_class(self.algorithm)(self.env, seed=0, **self.options)


WORKLOADS = {
    "ppo": Workload("ppo", "CartPole-v1", 400_000, {"preset": "none"}),
    "a2c": Workload("a2c", "CartPole-v1", 700_000, {"preset": "none"}),
    "impala": Workload("impala", "CartPole-v1", 600_000, {"preset": "none"}),
    "sac": Workload("sac", "Pendulum-v1", 15_000, {}),
    "td3": Workload("td3", "Pendulum-v1", 18_000, {}),
    "dqn": Workload("dqn", "CartPole-v1", 18_000, {}),
    "ppo, torch": Workload("ppo", "CartPole-v1", 20_480, {"preset": "none", "backend": "torch"}),
    "sac, torch": Workload("sac", "Pendulum-v1", 1_500, {"backend": "torch"}),
}


def learn_plainly(agent: Agent, steps: int) -> None:
    """Train with nobody looking."""
    agent.learn(steps, eval_every=NEVER)


def learn_recorded(agent: Agent, steps: int) -> None:
    """The same as `mileage train` does it: recorded, with memory sampled, not profiled."""
    agent.learn(steps, eval_every=NEVER, clock=PhaseClock(), ledger=Ledger(enabled=False))


def learn_profiled(agent: Agent, steps: int) -> None:
    """The same under the profiler."""
    train(agent, PhaseClock(), RunOptions(steps=steps, eval_every=NEVER))


def timed(workload: Workload, learn: Callable[[Agent, int], None], steps: int, _: int) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one run; building the agent is not part of it."""
    with workload.agent() as agent:
        agent.prepare()
        cpu, wall = time.process_time(), time.perf_counter()
        learn(agent, steps)
        return time.perf_counter() - wall, time.process_time() - cpu


WAYS = {PLAIN: learn_plainly, RECORDED: learn_recorded, PROFILED: learn_profiled}


def single_iterations(name: str) -> TimingComparison:
    """Runs of one iteration in all ways, in turn."""
    arms = [Arm(way, Work(timer=partial(timed, WORKLOADS[name], learn, 1))) for way, learn in WAYS.items()]
    return compare(f"{name}, one iteration", arms, rounds=FIXED_ROUNDS, warmups=2)


class Reader:
    """Reads the memory as the sampler of a profiled run does, on a thread of its own, when it is told to."""

    def __init__(self, clock: PhaseClock) -> None:
        self._sampler = PhaseMemory(clock).sampler
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Reader:
        self._sampler.start()
        self._sampler.stop()
        self._sampler._tree = ProcessTree()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.put(False)
        self._thread.join()

    def read(self) -> None:
        """Have it read once, now, on its own thread."""
        self._wanted.put(True)

    def _serve(self) -> None:
        while self._wanted.get():
            self._sampler._sample()


def readings(name: str) -> tuple[TimingComparison, float]:
    """Blocks of iterations of one training with and without a reading, in turn; readings per second of a real run."""
    with WORKLOADS[name].agent() as agent, single_threaded_blas():
        # Off-policy algorithms have begun to learn.
        agent.learn(max(1, getattr(agent.config, "learning_starts", 0) + 1), eval_every=NEVER)
        algorithm, clock = agent.learner, PhaseClock()
        try:
            per_second, size = _cadence(algorithm, clock)
            with Reader(clock) as reader:
                arms = [
                    Arm(PLAIN, Work(timer=partial(_block, algorithm, clock, size, None))),
                    Arm(PROFILED, Work(timer=partial(_block, algorithm, clock, size, reader))),
                ]
                job = f"{name}, {size} iterations"
                return compare(job, arms, rounds=READING_ROUNDS, warmups=2, budget=READING_SECONDS), per_second
        finally:
            getattr(algorithm, "rest", lambda: None)()


def _cadence(algorithm: Any, clock: PhaseClock) -> tuple[float, int]:
    """Readings per second of the sampler beside this training, and the iterations of a block."""
    memory, iterations = PhaseMemory(clock), 0
    start = time.perf_counter()
    with memory.sampler:
        while time.perf_counter() < start + COUNTING_SECONDS:
            algorithm.iterate(clock, 0.5)
            iterations += 1
    seconds = time.perf_counter() - start
    return memory.sampler.peaks().samples / seconds, max(1, round(BLOCK_SECONDS * iterations / seconds))


def _block(algorithm: Any, clock: PhaseClock, size: int, reader: Reader | None, _: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    if reader is not None:
        reader.read()
    for _ in range(size):
        algorithm.iterate(clock, 0.5)
    return time.perf_counter() - wall, time.process_time() - cpu


def extra_seconds(found: TimingComparison, way: str, field: str = "wall") -> float:
    """What this way takes more than the plain one: the median of the differences within rounds."""
    pairs = zip(found[PLAIN].samples, found[way].samples, strict=True)
    return statistics.median(
        getattr(more, f"{field}_seconds") - getattr(less, f"{field}_seconds") for less, more in pairs
    )


def cost(once: TimingComparison, often: TimingComparison, per_second: float, field: str = "wall") -> dict[str, float]:
    """What profiling costs: something fixed, something for every reading, and both in a run of `RUN_SECONDS`."""
    fixed, reading = extra_seconds(once, PROFILED, field), extra_seconds(often, PROFILED, field)
    return {"fixed": fixed, "reading": reading, "of the run": fixed / RUN_SECONDS + reading * per_second}


def sums(workload: Workload) -> dict[str, float | None]:
    """One full profile: what its phases and its layers miss."""
    with workload.agent() as agent:
        agent.prepare()
    clock = PhaseClock()
    start = time.perf_counter()
    ends: list[float] = []

    def note(_: Any) -> None:
        ends.append(time.perf_counter())

    found = profile_run(
        workload.algorithm, workload.env, steps=workload.steps, eval_every=NEVER, clock=clock, callback=note,
        **workload.options,
    )  # fmt: skip
    run = found.run
    assert found.calibration is not None
    # The last callback lies just before the end: another clock's word for the wall-clock up to there.
    outside = ends[-1] - start
    inside = run.wall_seconds - run.phases.get(Phase.CHECKPOINT, 0.0)
    parts, stages = found.calibration.rollout_parts, found.calibration.update_stages
    return {
        "wall": run.wall_seconds,
        "sum of phases": sum(run.phases.values()),
        "phases miss the wall-clock by": run.sum_error,
        "the clock misses another by": abs(inside - outside) / outside,
        "other": run.share("other"),
        "iteration": found.calibration.layers.plain,
        "layers differ by": found.calibration.layers.difference,
        "probes cost in place": found.calibration.trace.in_place,
        "parts of the rollout differ by": None if parts is None else parts.difference,
        "stages of the update differ by": None if stages is None else stages.difference,
        "calibration": found.calibration.seconds,
    }


def percent(share: float | None, form: str = "+.1f") -> str:
    """A share as per cent."""
    return "–" if share is None else f"{100 * share:{form}} %"


def cost_row(name: str, once: TimingComparison, often: TimingComparison, per_second: float) -> list[str]:
    """One row of the table of costs."""
    wall, cpu = (cost(once, often, per_second, field) for field in ("wall", "cpu"))
    return [
        name,
        f"{1e3 * extra_seconds(once, RECORDED):+.0f} ms",
        f"{1e3 * wall['fixed']:+.0f} ms ({1e3 * cpu['fixed']:+.0f} ms CPU)",
        f"{1e6 * wall['reading']:+,.0f} µs ({1e6 * cpu['reading']:+,.0f} µs CPU)",
        f"{per_second:.1f}",
        percent(wall["reading"] * per_second, "+.2f"),
        percent(wall["of the run"]),
    ]


def sum_row(name: str, total: dict[str, float | None]) -> list[str]:
    """One row of the table of sums."""
    return [
        name,
        f"{total['wall']:.2f} s",
        percent(total["phases miss the wall-clock by"], ".2f"),
        percent(total["the clock misses another by"], ".2f"),
        percent(total["other"], ".1f"),
        f"{1e6 * (total['iteration'] or 0.0):,.0f} µs",
        percent(total["layers differ by"]),
        percent(total["parts of the rollout differ by"]),
        percent(total["stages of the update differ by"]),
    ]


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(WORKLOADS), action="append", help="this workload (may be repeated)")
    options = parser.parse_args()
    data: dict[str, Any] = {}
    cost_rows, sum_rows = [], []
    for name in options.only or WORKLOADS:
        workload = WORKLOADS[name]
        once, (often, per_second), total = single_iterations(name), readings(name), sums(workload)
        data[name] = {
            "workload": workload._asdict(),
            "runs": [once.record(), often.record()],
            "readings_per_second": per_second,
            "cost": {field: cost(once, often, per_second, field) for field in ("wall", "cpu")},
            "sums": total,
        }
        cost_rows.append(cost_row(f"{name}: {workload.env}", once, often, per_second))
        sum_rows.append(sum_row(f"{name}: {workload.env}, {workload.steps:,} steps", total))
        print(*cost_rows[-1], "|", *sum_rows[-1][1:], flush=True)
    costs = ["workload", "recording, fixed", "profiling, fixed", "each reading", "readings/s", "growing with the run",
             f"of a run of {RUN_SECONDS:g} s"]  # fmt: skip
    header = ["workload", "wall", "phase sum − wall", "clock − another", "other", "iteration", "layers − iteration",
              "parts − rollout", "stages − update"]  # fmt: skip
    tables = [
        "## Cost of profiling a run",
        markdown_table(costs, cost_rows),
        f"Over a plain run: medians of {FIXED_ROUNDS} rounds for what is fixed and of up to {READING_ROUNDS} for a "
        f"reading, arms in turn. The last column is the fixed cost and that of the readings in a run of "
        f"{RUN_SECONDS:g} s; what is fixed weighs less in a longer one.",
        "## Sums",
        markdown_table(header, sum_rows),
        "An iteration is that of a run without probes; layers are added up from iterations with them, net of what "
        "probes cost, in turn with the others.",
    ]
    report = Report("profile_overhead", "What profiling costs, and whether its sums hold", tables, data)
    if options.only is None:
        print(*report.write(), sep="\n")


if __name__ == "__main__":
    main()
