"""A profiled run from start to end, and profiles in the ledger."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from mileage.errors import LedgerError, UsageError
from mileage.kernels.machine.jit import compiled_here
from mileage.ledger import queries
from mileage.ledger.queries import Selector
from mileage.ledger.rows import EndState, check_json
from mileage.ledger.rows import Profile as ProfileRow
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.ledger.targets import Target
from mileage.measure import Phase, PhaseClock, PhaseTimes
from mileage.measure.machine import Load, between, counters
from mileage.metrics import Totals, steady_steps_per_second, steps_per_second, train_seconds
from mileage.profiling import drift
from mileage.profiling.drift import Moment, PhaseMemory, WatchedCallback, available_mib
from mileage.records import ReadRecord, Record
from mileage.training.agent import Agent

# With fewer entries than this a half of a run says less than the whole.
_FEWEST_ENTRIES = 5
THE_ENV = "the environment"
"""What stands among compiled kernels for the functions of an environment."""
# Functions of a user's environment are compiled in this module.
_OF_ENV = "envs.native.compile."


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How the profiled run is trained; the same words as `Agent.learn`."""

    steps: int | None = None
    target: str | None = None
    eval_every: int | None = None
    episodes: int = 100
    checkpoint: str | None = None
    checkpoint_every: int = 0
    callback: Callable[..., bool | None] | None = None
    on_compile: Callable[[list[str]], None] | None = None
    db: str | Literal[False] | None = False
    """Ledger to record the run in; None is the default one, False none."""
    name: str | None = None
    price: float | str | None = None


@dataclasses.dataclass(frozen=True)
class EndToEnd:
    """One run: its exclusive phases add up to its wall-clock."""

    recorded: RecordedRun
    """Its rows, in the ledger or not."""
    compiled: tuple[str, ...] = ()
    """Kernels that were not on disk and had to be compiled."""
    memory_mib: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Highest resident memory by phase."""
    later_each: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Seconds per entry of each phase in the second half of the run, when everything has started; where known."""
    clock_seconds: float = 0.0
    """What the phase clock itself took, measured per entry; it is part of the wall-clock with or without a profile."""
    memory_seconds: float = 0.0
    """CPU time of the memory readings, which run beside the training."""
    moments: tuple[Moment, ...] = ()
    """The run at some instants, in their order."""
    load: Load | None = None
    """Who used the machine while the run trained; None where nobody looked."""
    callback: str = ""
    """Where the user's callback is written, if there was one."""
    callback_mib: float = 0.0
    """What it added to the memory."""
    left_mib: float | None = None
    """Memory that the process could still take at the end."""
    episodes: int | None = None
    """Held-out episodes of an evaluation."""

    @property
    def run_id(self) -> str | None:
        """In the ledger; None if the run was not recorded."""
        return self.recorded.run_id if self.recorded.in_ledger else None

    @property
    def state(self) -> str:
        """How the run ended, or `running`."""
        return str(self.recorded.state)

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds by phase, `other` included."""
        return self.recorded.phases

    @property
    def entries(self) -> Mapping[str, int]:
        """How often each phase was entered."""
        return self.recorded.entries

    @property
    def wall_seconds(self) -> float:
        """Wall-clock at the instant of the phase totals; a run that crashed may have gone on after them."""
        return next((row.wall_seconds for row in self.recorded.phase_rows), 0.0)

    @property
    def env_steps(self) -> int:
        """Environment steps of this run."""
        return self.recorded.totals.env_steps

    @property
    def evaluations(self) -> int:
        """How many held-out evaluations there were."""
        rows = self.recorded.checkpoints
        return sum(row.target_value is not None or row.mean_return is not None for row in rows)

    @property
    def peak_rss_gb(self) -> float | None:
        """Highest resident memory of all processes."""
        return self.recorded.metric("peak_rss_gb")

    @property
    def totals(self) -> Totals:
        """What metrics are derived from."""
        return Totals(self.wall_seconds, self.phases, self.env_steps)

    @property
    def train_seconds(self) -> float:
        """Wall-clock without held-out evaluation."""
        return train_seconds(self.totals)

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per training second."""
        return steps_per_second(self.totals)

    @property
    def steady_steps_per_second(self) -> float | None:
        """The same without start-up and compilation."""
        return steady_steps_per_second(self.totals)

    def share(self, phase: str) -> float:
        """Share of the wall-clock spent in `phase`."""
        return self.phases.get(phase, 0.0) / self.wall_seconds if self.wall_seconds > 0 else 0.0

    def mean_seconds(self, phase: str) -> float:
        """Seconds per entry of `phase`; 0 if it was never entered."""
        entries = self.entries.get(phase, 0)
        return self.phases.get(phase, 0.0) / entries if entries else 0.0

    def steady_seconds(self, phase: str) -> float:
        """Seconds per entry of `phase` once everything has started: in the second half of the run where it is known."""
        return self.later_each.get(phase) or self.mean_seconds(phase)

    @property
    def off_cpu(self) -> float | None:
        """Share of the training in which its thread neither ran nor waited for a core: it slept, or waited for data."""
        seen = [each for each in drift.training(self.moments) if each.on_cpu is not None and each.waited is not None]
        if len(seen) < 2:
            return None
        first, last = seen[0], seen[-1]
        wall = last.times.wall_seconds - first.times.wall_seconds
        used = (last.on_cpu or 0.0) - (first.on_cpu or 0.0) + (last.waited or 0.0) - (first.waited or 0.0)
        return min(1.0, max(0.0, 1.0 - used / wall)) if wall > 0.0 else None

    @property
    def sum_error(self) -> float:
        """By how much the phases miss the wall-clock, as a share of it."""
        return abs(sum(self.phases.values()) - self.wall_seconds) / self.wall_seconds if self.wall_seconds else 0.0


def train(agent: Agent, clock: PhaseClock, options: RunOptions) -> EndToEnd:
    """Train `agent` as `Agent.learn` would, and keep where the time and the memory went."""
    compiled: list[str] = []

    def on_compile(names: list[str]) -> None:
        compiled.extend(names)
        if options.on_compile is not None:
            options.on_compile(names)

    with clock.phase(Phase.INIT):
        goal = None if options.target is None else Target.parse(options.target)
        panel = agent.default_panel(goal, options.episodes)
        memory = PhaseMemory(clock)
    watched = None if options.callback is None else WatchedCallback(options.callback, memory)
    known, before = len(compiled_here), counters()
    run = agent.learn(
        options.steps, target=goal, panel=panel, eval_every=options.eval_every, callback=watched,
        checkpoint=options.checkpoint, checkpoint_every=options.checkpoint_every, clock=clock, on_compile=on_compile,
        on_evaluation=lambda _: memory.look(Phase.EVAL), ledger=True if options.db is None else options.db,
        name=options.name, price_usd_per_hour=options.price, resources=memory.sampler,
    )  # fmt: skip
    times = clock.stop()
    load = between(before, counters())
    memory.close()
    if any(_OF_ENV in name for name in compiled_here[known:]):
        compiled.append(THE_ENV)
    return EndToEnd(
        run,
        compiled=tuple(dict.fromkeys(compiled)),
        memory_mib=dict(memory.peaks_mib),
        later_each=_later_each([each.times for each in memory.moments], times),
        memory_seconds=memory.sampler.peaks().sampler_share * times.wall_seconds,
        moments=tuple(memory.moments),
        load=load,
        callback="" if watched is None else watched.place,
        callback_mib=0.0 if watched is None else watched.grown_mib,
        left_mib=available_mib(),
        episodes=len(panel.seeds),
    )


def _later_each(history: Sequence[PhaseTimes], end: PhaseTimes) -> dict[str, float]:
    """Seconds per entry of every phase after the middle of the training."""
    started = sum(end.phases_ns.get(phase, 0) for phase in (Phase.INIT, Phase.COMPILE))
    middle_ns = started + (end.wall_ns - started) // 2
    middle = next((times for times in history if times.wall_ns >= middle_ns), None)
    if middle is None:
        return {}
    found = {}
    for phase, entries in end.entries.items():
        more = entries - middle.entries.get(phase, 0)
        if more >= _FEWEST_ENTRIES:
            found[phase] = (end.phases_ns[phase] - middle.phases_ns.get(phase, 0)) / more / 1e9
    return found


def with_clock_cost(run: EndToEnd) -> EndToEnd:
    """Add what the phase clock took; measured now, when the run is over."""
    return dataclasses.replace(run, clock_seconds=sum(run.entries.values()) * phase_entry_seconds())


def phase_entry_seconds(entries: int = 5_000) -> float:
    """What entering and leaving a phase costs on this machine."""
    clock = PhaseClock()
    phase = clock.phase(Phase.LEARN)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(entries):
            with phase:
                pass
        best = min(best, time.perf_counter() - start)
    return best / entries


def workload_of(agent: Agent) -> Record:
    """What was profiled, as plain data."""
    from mileage.envs.native.vector import NativeEnv
    from mileage.measure import fingerprint

    return {
        "algorithm": agent.name,
        "env": agent.env_id,
        "backend": agent.backend,
        "seed": agent.seed,
        "threads": agent.threads,
        "config": dataclasses.asdict(agent.config),
        "native_env": isinstance(agent.spec, NativeEnv),
        "machine": fingerprint().as_dict(),
    }


# --- Profiles and the ledger: a profile under its run's id, anyone's run read back, the time failed runs took ---
_FAILED = (EndState.FAILED, EndState.CRASHED)


def save(db: str | None, run_id: str, summary: ReadRecord, wall_seconds: float) -> None:
    """Keep a profile's summary under the id of its run."""
    with Store(db, create=False) as store:
        seq = 1 + max((row.seq for row in store.read(queries.profiles, run_id)), default=0)
        store.deliver([ProfileRow(run_id, seq, wall_seconds, check_json("profiler summary", dict(summary)))])


def failed_share(db: str | None, workload: ReadRecord, name: str | None = None) -> float:
    """Of the wall-clock of all ended runs of this workload (or name), the share of those that failed or crashed."""
    selector = Selector(name=name)
    if name is None:
        selector = Selector(fields=(("algorithm", workload["algorithm"]), ("env_id", workload["env"])))
    try:
        with Store(db, create=False) as store:
            records = store.read(queries.records, selector)
    except LedgerError:
        return 0.0
    billed = [(record.state, record.metric("billable_seconds") or 0.0) for record in records if record.end is not None]
    whole = sum(seconds for _, seconds in billed)
    failed = sum(seconds for state, seconds in billed if state in _FAILED)
    return failed / whole if whole > 0.0 else 0.0


def read_run(db: str | None, selection: str) -> tuple[EndToEnd, Record, float]:
    """A recorded run as phases, its workload, and the share of time that failed runs like it took."""
    with Store(db, create=False) as store:
        recorded = store.read(queries.complete, store.read(queries.only_record, selection), episodes_too=False)
    run = recorded.run
    if not recorded.phase_rows:
        raise UsageError(f"run {run.run_id} has no phases yet: wait until it has written some, or ended")
    workload = {
        "algorithm": run.algorithm,
        "env": run.env_id,
        "backend": run.framework,
        "seed": run.seed,
        "threads": 1,
        "config": json.loads(run.config),
        "machine": json.loads(run.machine),
        "name": run.name,
        "native_env": "rollout" in recorded.phases,
    }
    return EndToEnd(recorded), workload, failed_share(db, workload, run.name)
