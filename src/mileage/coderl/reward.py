"""The build-reward pool: what a trainer calls to know which candidates compile.

Workers share one warm snapshot of the built project (or have one each, where the machine has no overlays). A
candidate costs an incremental build, in a place of its own that is gone afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import os
import queue
import stat
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
from mileage.coderl.build.executor import Change, JobResult, JobRunner, Judging, Limits, LocalExecutor
from mileage.coderl.build.isolation import isolation_problem
from mileage.coderl.build.snapshots import Snapshot, SnapshotMethod, Surroundings, best_method
from mileage.coderl.corpus import PatchSample, PatchVerdict
from mileage.coderl.judging import Judgement, TestRules, grader_tests, judge_job, protected_paths
from mileage.coderl.outcomes import Expected, TestFormat, TestResult
from mileage.coderl.outcomes.formats import recognised
from mileage.coderl.patching import PatchError
from mileage.coderl.project.fingerprint import ArmSetup, fingerprint
from mileage.coderl.project.model import Command, Project
from mileage.coderl.project.modes import baseline_setup
from mileage.coderl.project.projects import detect
from mileage.coderl.project.sources import copy_project
from mileage.coderl.project.workarea import WorkArea, tree_digest, walk_files

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
    """Glob patterns of paths that candidates may not change, such as the tests that judge them.

    Where tests are run, these paths are brought back before and read-only meanwhile, and the files that say which tests
    run and how (`Project.harness`) are protected with them.
    """
    grader_tests: Path | None = None
    """A directory of tests that candidates never see: put over the tree after a candidate has been compiled."""
    solution: PatchSample | None = None
    """A candidate known to be right. The tests that it passes are expected; None: those that the base reports."""
    fail_to_pass: tuple[str, ...] | None = None
    """Names of the tests that a candidate is to repair; None: those that the base fails."""
    pass_to_pass: tuple[str, ...] | None = None
    """Names of the tests that a candidate may not break; None: those that the base passes."""
    partial_credit: float = 0.0
    """Reward of a candidate that fails tests, times its share of `fail_to_pass`; 0 if it breaks `pass_to_pass`."""
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
        if not 0.0 <= self.partial_credit <= 1.0:
            raise UsageError(f"partial_credit must be from 0 to 1, not {self.partial_credit}")
        about_tests = {
            "grader_tests": self.grader_tests,
            "solution": self.solution,
            "fail_to_pass": self.fail_to_pass,
            "pass_to_pass": self.pass_to_pass,
            "partial_credit": self.partial_credit,
        }
        idle = [name for name, value in about_tests.items() if value] if "test" not in self.steps else []
        if idle:
            raise UsageError(f"{idle[0]} is about tests: add 'test' to steps")


@dataclass(frozen=True)
class RewardResult:
    """The verdict on one candidate."""

    id: str
    verdict: PatchVerdict
    reward: float
    diagnostic: str
    wall_seconds: float
    cached: bool
    tests: tuple[TestResult, ...] = ()
    """What each test said, where tests were run."""


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
        self._copy = copy_project(self.project, self._pristine, history=self.project.git)
        for target, source in self._setup.files.items():
            (self._pristine / target).write_bytes((self._pristine / source).read_bytes())
        self.revision = tree_digest(self._pristine)
        self._limits = Limits(config.timeout_seconds, config.memory_bytes, config.max_processes)
        compile_steps = self._commands("check", config.jobs) + self._commands("build", config.jobs)
        self._steps = compile_steps + self._commands("test", config.jobs)
        # `cargo test` alone compiles: with no compile step before it, its failure is reported as a test failure.
        self._compile_steps = len(compile_steps)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        self._judging = self._make_judging()
        self._make_snapshots()
        self._rules = self._learn_rules()
        rows = fingerprint(self.project, self._setup, self._pristine, self.revision) | self._rule_rows()
        self._context = context_key(self.revision, self._steps, rows)
        self._cache = ResultCache(config.cache_path) if config.use_cache else None
        self._pending: dict[str, Future[tuple[Judgement, float]]] = {}
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
            (*self.project.readable, *self._copy.readable, *self.config.readable),
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
        # What tests say about the base is looked at when it is judged.
        compiled = result.succeeded or len(result.steps) > self._compile_steps
        if not compiled and not self.config.allow_broken_base:
            raise BuildError(
                f"{self.project.name} does not build as it is, so no candidate could pass: "
                f"{first_diagnostic(last.output)} (allow_broken_base=True if candidates are to repair it)"
            )

    @property
    def protected(self) -> tuple[str, ...]:
        """The patterns of what candidates may not change: what the configuration names, and the files around tests."""
        named = tuple(pattern.rstrip("/") for pattern in self.config.protected)
        judged = "test" in self.config.steps and (named or self.config.grader_tests)
        return named + (self.project.harness if judged else ())

    @property
    def expected(self) -> Expected:
        """The tests that candidates must pass; empty where the exit code of the test command is all there is."""
        return self._rules.expected

    def _make_judging(self) -> Judging | None:
        """What is kept out of a candidate's reach while tests run."""
        if "test" not in self.config.steps:
            return None
        return Judging(
            step=self._compile_steps,
            source=self._pristine,
            paths=protected_paths(self._pristine, self.protected),
            patterns=self.protected,
            outputs=self.project.outputs,
            tests=grader_tests(self.config.grader_tests),
            reports=self.project.test_reports,
        )

    def _rule_rows(self) -> dict[str, str]:
        """What decides verdicts besides the tree and the commands."""
        tests = self._judging.tests if self._judging else ()
        return {
            "tests.expected": repr((sorted(self.expected.fail_to_pass), sorted(self.expected.pass_to_pass))),
            "tests.grader": content_key("", tests),
            "tests.protected": repr(self.protected),
        }

    def _learn_rules(self) -> TestRules:
        """Run the tests on the base, and on the solution where there is one, to know what to expect."""
        form = self.project.test_format
        if self._judging is None:
            return TestRules(form)
        snapshot = self._snapshots.get()
        try:
            base, form = self._trial(snapshot, (), form)
            last = base
            if self.config.solution:
                changes = self.config.solution.changes(self._pristine, (*self.project.outputs, *self.protected))
                last, form = self._trial(snapshot, changes, form)
        except PatchError as error:
            raise UsageError(f"the solution cannot be applied: {error}") from None
        finally:
            self._snapshots.put(snapshot)
        expected = Expected.of(base.tests, last.tests if self.config.solution else None)
        named = self.config.fail_to_pass, self.config.pass_to_pass
        expected = Expected(
            expected.fail_to_pass if named[0] is None else frozenset(named[0]),
            expected.pass_to_pass - frozenset(named[0] or ()) if named[1] is None else frozenset(named[1]),
        )
        self._check_base(base, last, expected)
        return TestRules(form, expected, exits_cleanly=last.exit_code == 0)

    def _trial(
        self, snapshot: Snapshot, changes: tuple[Change, ...], form: TestFormat | None
    ) -> tuple[Judgement, TestFormat | None]:
        """What the tests say about a tree that nothing is expected of yet, and the format they said it in."""
        limits = replace(self._limits, timeout_seconds=None)
        result = self._run(snapshot, changes, limits, "base")
        ran = result.steps[self._compile_steps :]
        if form is None and ran:
            form = recognised("\n".join(step.output for step in ran))
        return judge_job(result, self._compile_steps, TestRules(form)), form

    def _check_base(self, base: Judgement, last: Judgement, expected: Expected) -> None:
        """Refuse a base whose tests fail where nobody said that they are to be repaired."""
        config = self.config
        if config.solution and last.verdict is not PatchVerdict.PASS:
            raise BuildError(f"the solution does not pass: {last.verdict}: {last.diagnostic}")
        declared = config.solution or config.fail_to_pass or config.grader_tests or config.allow_broken_base
        if base.verdict is not PatchVerdict.PASS and not declared:
            raise BuildError(
                f"{self.project.name} does not pass its own tests: {base.diagnostic} (name what candidates are to "
                "repair in fail_to_pass, or set allow_broken_base=True)"
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
        empty = Judgement(PatchVerdict.NO_CHANGE, "the candidate is empty")
        try:
            changes = sample.changes(self._pristine, (*self.project.outputs, *self.protected))
        except PatchError as error:
            refused = Judgement(PatchVerdict.DOES_NOT_APPLY, str(error))
            return self._result(sample, empty if sample.is_empty and not sample.path else refused, 0.0, cached=False)
        if sample.is_empty:
            return self._result(sample, empty, 0.0, cached=False)
        if all(self._is_there(change) for change in changes):
            nothing = Judgement(PatchVerdict.NO_CHANGE, "the candidate leaves every file as it was")
            return self._result(sample, nothing, 0.0, cached=False)
        key = content_key(self._context, changes)
        known = self._cache.get(key) if self._cache else None
        if known:
            return self._result(sample, Judgement(*known), 0.0, cached=True)
        judgement, seconds, shared = self._build_once(key, changes, sample.id)
        return self._result(sample, judgement, seconds, cached=shared)

    def _is_there(self, change: Change) -> bool:
        """Whether the project is already what `change` makes of it."""
        path = self._pristine / change.path
        if change.content is None:
            return not path.exists()
        return path.is_file() and path.read_bytes() == change.content

    def _build_once(self, key: str, changes: tuple[Change, ...], label: str) -> tuple[Judgement, float, bool]:
        """Build a candidate, or wait for another thread that is building the same content."""
        with self._pending_lock:
            running = self._pending.get(key) if self._cache else None
            if running is None:
                mine: Future[tuple[Judgement, float]] = Future()
                self._pending[key] = mine
        if running is not None:
            judgement, _ = running.result()
            return judgement, 0.0, True
        try:
            judgement, seconds = self._build(changes, label)
            mine.set_result((judgement, seconds))
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._pending_lock:
                self._pending.pop(key, None)
        # A partial reward hangs on single tests, which the cache does not keep.
        if self._cache and not (self.config.partial_credit and judgement.verdict is PatchVerdict.TEST_FAILURE):
            self._cache.put(key, judgement.verdict, judgement.diagnostic)
        return judgement, seconds, False

    def _build(self, changes: tuple[Change, ...], label: str) -> tuple[Judgement, float]:
        snapshot = self._snapshots.get()
        started = time.perf_counter()
        try:
            result = self._run(snapshot, changes, self._limits, label)
            judgement = judge_job(result, self._compile_steps, self._rules)
        except BuildError as error:
            # The launcher itself was killed or refused: that is the candidate's doing, the pool serves on.
            judgement = Judgement(PatchVerdict.KILLED, str(error))
        finally:
            self._snapshots.put(snapshot)
        return judgement, time.perf_counter() - started

    def _run(self, snapshot: Snapshot, changes: tuple[Change, ...], limits: Limits, label: str) -> JobResult:
        """Build and test a candidate.

        Build tools know which files they read, and not which they would have read had they been there: a header that
        shadows another, a module with two homes. So one that adds or removes a file is built with all sources new.
        """
        moved = self.config.warm and any(
            change.content is None or not (self._pristine / change.path).exists() for change in changes
        )
        renewed = self._source_names if moved else ()
        removed = self.project.configured if moved else ()
        return snapshot.run(self._steps, changes, limits, label, self._judging, renewed, removed)

    @functools.cached_property
    def _source_names(self) -> tuple[str, ...]:
        """The files of the project that builds read, installed packages apart."""
        inputs = tuple(path + "/" for path in self.project.inputs)
        return tuple(
            name
            for name, info in walk_files(self._pristine)
            if stat.S_ISREG(info.st_mode) and not name.startswith(inputs)
        )

    def _result(self, sample: PatchSample, judgement: Judgement, seconds: float, *, cached: bool) -> RewardResult:
        verdict = judgement.verdict
        reward = self.config.rewards.get(verdict, 0.0)
        if verdict is PatchVerdict.TEST_FAILURE and self.config.partial_credit:
            reward = max(reward, self.config.partial_credit * judgement.share)
        return RewardResult(sample.id, verdict, reward, judgement.diagnostic, seconds, cached, judgement.tests)

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
