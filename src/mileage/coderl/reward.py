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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from mileage._errors import BuildError, UsageError
from mileage.coderl.build.cache import ResultCache, content_key, context_key
from mileage.coderl.build.diagnostics import first_diagnostic
from mileage.coderl.build.executor import Change, JobRunner, Limits, LocalExecutor
from mileage.coderl.build.isolation import isolation_problem, toolchain_paths
from mileage.coderl.build.snapshots import Snapshot, SnapshotMethod, Surroundings, best_method
from mileage.coderl.corpus import PatchSample, PatchVerdict, judge
from mileage.coderl.patching import PatchError
from mileage.coderl.project.fingerprint import ArmSetup, fingerprint
from mileage.coderl.project.modes import baseline_setup
from mileage.coderl.project.projects import Command, Project, detect
from mileage.coderl.project.workarea import WorkArea, copy_tree, tree_digest

STEPS = ("check", "build", "test")


class Isolation(StrEnum):
    """Whether candidates run in namespaces of their own."""

    AUTO = "auto"
    REQUIRE = "require"
    OFF = "off"


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
    disk_bytes: int = 2 << 30
    """What one candidate may write, where it runs isolated."""
    max_processes: int = 512
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
    cache_path: Path | None = None
    """A file to keep verdicts in between runs."""
    use_cache: bool = True
    rewards: Mapping[PatchVerdict, float] = field(default_factory=lambda: {PatchVerdict.PASS: 1.0})
    """Reward of each verdict; a verdict that is not named earns 0."""
    allow_broken_base: bool = False

    def __post_init__(self) -> None:
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or not self.steps:
            raise UsageError(f"steps {self.steps!r} must be some of {', '.join(STEPS)}")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"workers must be at least 1, not {self.workers}")
        if self.method is SnapshotMethod.OVERLAY and self.isolation is Isolation.OFF:
            raise UsageError("method 'overlay' needs isolation: use isolation='auto' or another method")


@dataclass(frozen=True)
class RewardResult:
    """The verdict on one candidate."""

    id: str
    verdict: PatchVerdict
    reward: float
    diagnostic: str
    wall_seconds: float
    cached: bool


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
        self._setup = setup or baseline_setup(self.project, self.config.jobs)
        self._executor = executor or LocalExecutor()
        self.workers = self.config.workers or len(os.sched_getaffinity(0))
        self._area = WorkArea(work_base)
        try:
            self._start()
        except BaseException:
            self._area.close()
            raise

    def _start(self) -> None:
        config = self.config
        self.method = self._choose_method()
        self._pristine = self._area.path / "pristine"
        copy_tree(self.project.root, self._pristine, self.project.outputs)
        for target, source in self._setup.files.items():
            (self._pristine / target).write_bytes((self._pristine / source).read_bytes())
        self.revision = tree_digest(self._pristine)
        self._limits = Limits(config.timeout_seconds, config.memory_bytes, config.max_processes)
        compile_steps = self._commands("check", config.jobs) + self._commands("build", config.jobs)
        self._steps = compile_steps + self._commands("test", config.jobs)
        # `cargo test` alone compiles: with no compile step before it, its failure is reported as a test failure.
        self._compile_steps = len(compile_steps)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._make_snapshots()
        rows = fingerprint(self.project, self._setup, self._pristine, self.revision)
        self._context = context_key(self.revision, self._steps, rows)
        self._cache = ResultCache(config.cache_path) if config.use_cache else None
        self._pending: dict[str, Future[tuple[PatchVerdict, str, float]]] = {}
        self._pending_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="build-reward")

    def _choose_method(self) -> SnapshotMethod:
        config = self.config
        problem = isolation_problem() if config.isolation is not Isolation.OFF else "isolation is off"
        if problem and config.isolation is Isolation.REQUIRE:
            raise BuildError(f"candidates cannot be isolated here: {problem}")
        if config.method:
            return config.method
        if config.isolation is Isolation.OFF:
            best = best_method(self._area.path)
            return SnapshotMethod.HARD_LINK if best is SnapshotMethod.OVERLAY else best
        return best_method(self._area.path)

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
        limits = replace(self._limits, timeout_seconds=None)
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
            changes = sample.changes(self._pristine, (*self.project.outputs, *self.config.protected))
        except PatchError as error:
            return self._result(sample, PatchVerdict.DOES_NOT_APPLY, str(error), 0.0, cached=False)
        key = content_key(self._context, changes)
        known = self._cache.get(key) if self._cache else None
        if known:
            return self._result(sample, *known, 0.0, cached=True)
        verdict, diagnostic, seconds, shared = self._build_once(key, changes, sample.id)
        return self._result(sample, verdict, diagnostic, seconds, cached=shared)

    def _build_once(self, key: str, changes: tuple[Change, ...], label: str) -> tuple[PatchVerdict, str, float, bool]:
        """Build a candidate, or wait for another thread that is building the same content."""
        with self._pending_lock:
            running = self._pending.get(key) if self._cache else None
            if running is None:
                mine: Future[tuple[PatchVerdict, str, float]] = Future()
                self._pending[key] = mine
        if running is not None:
            verdict, diagnostic, _ = running.result()
            return verdict, diagnostic, 0.0, True
        try:
            verdict, diagnostic, seconds = self._build(changes, label)
            mine.set_result((verdict, diagnostic, seconds))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._pending_lock:
                self._pending.pop(key, None)
        if self._cache:
            self._cache.put(key, verdict, diagnostic)
        return verdict, diagnostic, seconds, False

    def _build(self, changes: tuple[Change, ...], label: str) -> tuple[PatchVerdict, str, float]:
        snapshot = self._snapshots.get()
        started = time.perf_counter()
        try:
            result = snapshot.run(self._steps, changes, self._limits, label)
            verdict, diagnostic = judge(result, self._compile_steps)
        except BuildError as error:
            # The launcher itself was killed or refused: that is the candidate's doing, the pool serves on.
            verdict, diagnostic = PatchVerdict.KILLED, str(error)
        finally:
            self._snapshots.put(snapshot)
        return verdict, diagnostic, time.perf_counter() - started

    def _result(
        self, sample: PatchSample, verdict: PatchVerdict, diagnostic: str, seconds: float, *, cached: bool
    ) -> RewardResult:
        return RewardResult(sample.id, verdict, self.config.rewards.get(verdict, 0.0), diagnostic, seconds, cached)

    def close(self) -> None:
        """Kill what is running, remove everything the pool made."""
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
