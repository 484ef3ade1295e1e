"""The build-reward pool: what a trainer calls to know which candidates compile.

Workers share one warm snapshot of the built project (or have one each, where the machine has no overlays). A
candidate costs an incremental build, in a place of its own that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mileage._errors import BuildError, ChangeError, InfraError, UsageError
from mileage._version import __version__
from mileage.coderl import options
from mileage.coderl.build.cache import ResultCache, content_key, context_key, machine_rows
from mileage.coderl.build.containment import Isolation, choose_method, containment
from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import Change, JobResult, JobRunner, Limits, LocalExecutor
from mileage.coderl.build.isolation import toolchain_paths
from mileage.coderl.build.snapshots import Snapshot, SnapshotMethod, Surroundings
from mileage.coderl.corpus import PatchSample, PatchVerdict, judge
from mileage.coderl.patching import PatchError
from mileage.coderl.project.fingerprint import ArmSetup, fingerprint
from mileage.coderl.project.modes import baseline_setup
from mileage.coderl.project.projects import Command, Project, detect
from mileage.coderl.project.workarea import WorkArea, copy_tree, tree_digest

__all__ = ["STEPS", "BuildReward", "Isolation", "RewardConfig", "RewardResult"]

STEPS = ("check", "build", "test")
RETRY_SECONDS = 0.2


@dataclass(frozen=True)
class RewardConfig:
    """How candidates are judged."""

    steps: tuple[str, ...] = ("build",)
    """Which of check, build and test a candidate must pass."""
    workers: int | None = None
    """Candidates built at the same time; None is one per usable core."""
    jobs: int = 1
    """Parallel jobs of each build."""
    timeout_seconds: float = 120.0
    memory_bytes: int = 4 << 30
    """Of all processes together, with shared memory, swap and, where candidates are isolated, the files they write."""
    disk_bytes: int = 2 << 30
    """What one candidate may write, where it runs isolated; its files are in memory, and count as such too."""
    max_processes: int = 512
    """Processes and threads at a time."""
    cpu_cores: float | None = None
    """CPU time per second; None is an equal share of the usable cores for each worker, at least `jobs`."""
    network: bool = False
    isolation: Isolation = Isolation.AUTO
    warm: bool = True
    """Start from a built tree; False builds every candidate from clean."""
    method: SnapshotMethod | None = None
    """How snapshots are restored; None is the best this machine has."""
    protected: tuple[str, ...] = ()
    """Glob patterns of paths that candidates may not change, such as the tests that judge them."""
    readable: tuple[str, ...] = ()
    """Further paths of this machine that builds may read."""
    pass_env: tuple[str, ...] = ()
    """Variables of this process that builds may see, besides those that toolchains read."""
    fuzzy: bool = False
    """Accept diffs whose hunks have other line counts than they claim."""
    retries: int = 2
    """How often a candidate is tried again after a failure of the machine."""
    confirmations: int = 2
    """How many equal verdicts of tests make one that is cached; two different ones are never cached."""
    cache_path: Path | None = None
    """A file to keep verdicts in between runs."""
    use_cache: bool = True
    rewards: Mapping[PatchVerdict, float] = field(default_factory=lambda: {PatchVerdict.PASS: 1.0})
    """Reward of each verdict; a verdict that is not named earns 0."""
    allow_broken_base: bool = False
    """Start even if the unchanged project does not pass, because candidates are to repair it."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "steps", options.texts("steps", self.steps))
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or not self.steps:
            raise UsageError(f"steps {self.steps!r} must be some of {', '.join(STEPS)}")
        put(self, "isolation", options.choice("isolation", self.isolation, Isolation))
        if self.method is not None:
            put(self, "method", options.choice("method", self.method, SnapshotMethod))
        put(self, "protected", options.patterns("protected", self.protected))
        put(self, "readable", options.absolute_paths("readable", self.readable))
        put(self, "pass_env", options.texts("pass_env", self.pass_env))
        put(self, "rewards", options.reward_table(self.rewards))
        self._check_numbers()
        if self.method is SnapshotMethod.OVERLAY and self.isolation is Isolation.OFF:
            raise UsageError("method 'overlay' needs isolation: use isolation='auto' or another method")
        if self.method not in (None, SnapshotMethod.OVERLAY) and self.isolation is Isolation.REQUIRE:
            raise UsageError(f"method {str(self.method)!r} has no isolation: use method='overlay', or isolation='auto'")

    def _check_numbers(self) -> None:
        if self.workers is not None:
            options.at_least("workers", self.workers, 1)
        for name in ("jobs", "max_processes", "confirmations"):
            options.at_least(name, vars(self)[name], 1)
        options.at_least("retries", self.retries, 0)
        for name in ("memory_bytes", "disk_bytes"):
            options.at_least(name, vars(self)[name], options.SMALLEST_BYTES)
        options.number("timeout_seconds", self.timeout_seconds, lambda value: 0 < value < 1e9, "seconds above 0")
        if self.cpu_cores is not None:
            options.number("cpu_cores", self.cpu_cores, lambda value: 0.01 <= value < 1e6, "at least 0.01")


@dataclass(frozen=True)
class RewardResult:
    """The verdict on one candidate."""

    id: str
    verdict: PatchVerdict
    reward: float | None
    """None where the machine failed, which says nothing about the candidate."""
    diagnostic: str
    wall_seconds: float
    cached: bool
    output: str = ""
    """What the commands printed, from the first to the last; the beginning and the end of each."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock of `waiting`, `overhead` and of each command that ran."""
    attempts: int = 1
    """How often it was run: more than once after a failure of the machine."""


@dataclass(frozen=True)
class _Judged:
    """What a candidate's job came to, before it is anybody's reward."""

    verdict: PatchVerdict
    diagnostic: str = ""
    wall_seconds: float = 0.0
    output: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 1


def _infra_error(error: Exception) -> _Judged:
    return _Judged(PatchVerdict.INFRA_ERROR, f"{type(error).__name__}: {error}")


def _record(result: JobResult) -> dict[str, Any]:
    """Output and times of a job, by command."""
    seconds = {"overhead": result.overhead_seconds}
    for step in result.steps:
        name = " ".join(step.argv)
        seconds[name] = seconds.get(name, 0.0) + step.wall_seconds
    return {"output": "".join(step.output for step in result.steps), "seconds": seconds}


class BuildReward:
    """A pool that turns candidates into verdicts; a context manager, safe to call from several threads."""

    def __init__(
        self,
        project: str | Path | Project,
        config: RewardConfig | None = None,
        *,
        executor: JobRunner | None = None,
        setup: ArmSetup | None = None,
        work_base: Path | None = None,
    ) -> None:
        self.config = config or RewardConfig()
        self.project = project if isinstance(project, Project) else detect(Path(project))
        self._setup = self._with_passed(setup or baseline_setup(self.project, self.config.jobs))
        self._executor = executor or LocalExecutor()
        self.workers = self.config.workers or len(os.sched_getaffinity(0))
        self._closing: list[Callable[[], None]] = []
        self._is_closed = False
        self._area = WorkArea(work_base)
        try:
            self._start()
        except BaseException:
            self._area.close()
            raise

    def _with_passed(self, setup: ArmSetup) -> ArmSetup:
        missing = [name for name in self.config.pass_env if name not in os.environ]
        if missing:
            raise UsageError(f"pass_env {missing[0]!r} is not set in this process")
        return replace(setup, env={**setup.env, **{name: os.environ[name] for name in self.config.pass_env}})

    def _start(self) -> None:
        config = self.config
        self.method, fallbacks = choose_method(config.isolation, config.method, self._area.path)
        self.containment = containment(self.isolated, config.network, fallbacks)
        for sentence in fallbacks:
            warnings.warn(sentence, stacklevel=4)
        self._pristine = self._area.path / "pristine"
        copy_tree(self.project.root, self._pristine, self.project.outputs)
        for target, source in self._setup.files.items():
            (self._pristine / target).write_bytes((self._pristine / source).read_bytes())
        self.revision = tree_digest(self._pristine)
        cores = config.cpu_cores or max(config.jobs, len(os.sched_getaffinity(0)) / self.workers)
        self._limits = Limits(config.timeout_seconds, config.memory_bytes, config.max_processes, cpu_cores=cores)
        compile_steps = self._commands("check", config.jobs) + self._commands("build", config.jobs)
        self._steps = compile_steps + self._commands("test", config.jobs)
        # `cargo test` alone compiles: with no compile step before it, its failure is reported as a test failure.
        self._compile_steps = len(compile_steps)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._make_snapshots()
        rows = fingerprint(self.project, self._setup, self._pristine, self.revision)
        self._context = context_key(self.revision, self._steps, rows, self._rules())
        confirmations = config.confirmations if "test" in config.steps else 1
        self._cache = ResultCache(config.cache_path, confirmations) if config.use_cache else None
        self._pending: dict[str, Future[_Judged]] = {}
        self._pending_lock = threading.Lock()
        self.base = self._judge_base()
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="build-reward")

    def _rules(self) -> dict[str, object]:
        """All that can change a verdict besides the project, its commands and its toolchain."""
        config = self.config
        limits = ("timeout_seconds", "memory_bytes", "disk_bytes", "max_processes")
        return {
            **{name: vars(config)[name] for name in (*limits, "network", "warm", "readable", "steps")},
            "cpu_cores": self._limits.cpu_cores,
            "method": str(self.method),
            "containment": dict(self.containment.rows),
            "version": __version__,
            **machine_rows((*self._steps, *self.project.tools.values()), self._setup.env),
        }

    def _judge_base(self) -> RewardResult:
        """Judge the project as it is, under the limits of a candidate; refuse one that does not pass."""
        judged = self._build((), "base")
        base = self._result(PatchSample("base"), judged, cached=False)
        if base.verdict is PatchVerdict.INFRA_ERROR:
            raise InfraError(f"{self.project.name} could not be judged: {base.diagnostic}")
        if base.verdict is not PatchVerdict.PASS and not self.config.allow_broken_base:
            raise BuildError(
                f"{self.project.name} does not pass as it is ({base.verdict}), so no candidate could: "
                f"{base.diagnostic} (allow_broken_base=True if candidates are to repair it)"
            )
        return base

    @property
    def isolated(self) -> bool:
        """Whether candidates run in namespaces of their own: no network, no view of the machine, nothing left."""
        return self.method is SnapshotMethod.OVERLAY

    def _commands(self, step: str, jobs: int) -> tuple[Command, ...]:
        if step not in self.config.steps:
            return ()
        steps = {"check": self._setup.check, "build": self._setup.build, "test": self.project.test}[step]
        if not steps:
            raise UsageError(f"the project names no {step} command: add {step} to its [rl-bench] table")
        return replace(self._setup, jobs=jobs).commands(steps)

    def _make_snapshots(self) -> None:
        around = Surroundings(
            self._setup.env,
            (*toolchain_paths(self.project.kind), *self.config.readable),
            disk_bytes=self.config.disk_bytes,
            network=self.config.network,
        )
        started = time.perf_counter()
        shared: Snapshot | None = None
        for number in range(self.workers):
            directory = self._area.directory(f"worker-{number}")
            if shared:
                self._snapshots.put(shared.share(directory))
                continue
            snapshot = Snapshot(self._pristine, directory, self.method, self._executor, around)
            self._warm(snapshot)
            self._snapshots.put(snapshot)
            shared = snapshot if self.method is SnapshotMethod.OVERLAY else None
        self.warm_seconds = time.perf_counter() - started

    def _warm(self, snapshot: Snapshot) -> None:
        # The first build is the cold one, so it gets more time than a candidate.
        limits = replace(self._limits, timeout_seconds=None, cpu_cores=None)
        if not self.config.warm:
            snapshot.warm((), limits)
            return
        # It is also alone on the machine.
        jobs = max(self.config.jobs, self.workers)
        result = snapshot.warm(tuple(step for name in STEPS for step in self._commands(name, jobs)), limits)
        last = result.steps[-1]
        compiled = result.succeeded or len(result.steps) > self._compile_steps > 0
        if not compiled and not self.config.allow_broken_base:
            raise BuildError(
                f"{self.project.name} does not build as it is, so no candidate could pass: "
                f"{first_diagnostic(last.output)} (allow_broken_base=True if candidates are to repair it)"
            )

    def reward(self, samples: Sequence[PatchSample]) -> list[RewardResult]:
        """Judge `samples` and return their results in the same order."""
        return [future.result() for future in self.submit(samples)]

    async def areward(self, samples: Sequence[PatchSample]) -> list[RewardResult]:
        """Judge `samples` without blocking the event loop."""
        return list(await asyncio.gather(*(asyncio.wrap_future(future) for future in self.submit(samples))))

    __call__ = reward

    def submit(self, samples: Sequence[PatchSample]) -> list[Future[RewardResult]]:
        """Start judging `samples`; return a future for each."""
        return [self._threads.submit(self._judge, sample) for sample in samples]

    def _judge(self, sample: PatchSample) -> RewardResult:
        try:
            return self._judge_changes(sample)
        except PatchError as error:
            return self._result(sample, _Judged(PatchVerdict.DOES_NOT_APPLY, str(error)), cached=False)
        except Exception as error:
            # Nothing a model writes may end the training; what is not foreseen is no fault of the candidate either.
            return self._result(sample, _infra_error(error), cached=False)

    def _judge_changes(self, sample: PatchSample) -> RewardResult:
        changes = sample.changes(self._pristine, (*self.project.outputs, *self.config.protected), self.config.fuzzy)
        key = content_key(self._context, changes)
        known = self._cache.get(key) if self._cache else None
        if known:
            return self._result(sample, _Judged(*known), cached=True)
        judged, shared = self._build_once(key, changes, sample.id)
        return self._result(sample, judged, cached=shared)

    def _build_once(self, key: str, changes: tuple[Change, ...], label: str) -> tuple[_Judged, bool]:
        """Build a candidate, or wait for another thread that is building the same content."""
        with self._pending_lock:
            running = self._pending.get(key) if self._cache else None
            if running is None:
                mine: Future[_Judged] = Future()
                self._pending[key] = mine
        if running is not None:
            return replace(running.result(), wall_seconds=0.0), True
        try:
            judged = self._build(changes, label)
            mine.set_result(judged)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._pending_lock:
                self._pending.pop(key, None)
        if self._cache:
            self._cache.put(key, judged.verdict, judged.diagnostic)
        return judged, False

    def _build(self, changes: tuple[Change, ...], label: str) -> _Judged:
        """Build a candidate; after a failure of the machine, again."""
        for attempt in range(1, self.config.retries + 2):
            judged = replace(self._try_build(changes, label), attempts=attempt)
            if judged.verdict is not PatchVerdict.INFRA_ERROR or self._is_closed:
                break
            time.sleep(RETRY_SECONDS * attempt)
        return judged

    def _try_build(self, changes: tuple[Change, ...], label: str) -> _Judged:
        asked = time.perf_counter()
        snapshot = self._snapshots.get()
        started = time.perf_counter()
        try:
            result = snapshot.run(self._steps, changes, self._limits, label)
            verdict, diagnostic = judge(result, self._compile_steps)
            judged = _Judged(verdict, diagnostic, **_record(result))
        except ChangeError as error:
            judged = _Judged(PatchVerdict.DOES_NOT_APPLY, str(error))
        except (BuildError, OSError) as error:
            judged = _infra_error(error)
        finally:
            self._snapshots.put(snapshot)
        seconds = {"waiting": started - asked, **judged.seconds}
        return replace(judged, wall_seconds=time.perf_counter() - started, seconds=seconds)

    def _result(self, sample: PatchSample, judged: _Judged, *, cached: bool) -> RewardResult:
        infra = judged.verdict is PatchVerdict.INFRA_ERROR
        return RewardResult(
            id=sample.id,
            verdict=judged.verdict,
            reward=None if infra else self.config.rewards.get(judged.verdict, 0.0),
            diagnostic=judged.diagnostic.encode("utf-8", "backslashreplace").decode(),
            wall_seconds=judged.wall_seconds,
            cached=cached,
            output=judged.output,
            seconds=judged.seconds,
            attempts=judged.attempts,
        )

    def on_close(self, function: Callable[[], None]) -> None:
        """Call `function` when the pool is closed."""
        self._closing.append(function)

    def close(self) -> None:
        """Kill what is running, remove everything the pool made."""
        self._is_closed = True
        for function in self._closing:
            function()
        if isinstance(self._executor, LocalExecutor):
            self._executor.cancel()
        self._threads.shutdown(cancel_futures=True)
        if self._cache:
            self._cache.close()
        self._area.close()

    def __enter__(self) -> BuildReward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
