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
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from mileage.coderl.cache import ResultCache, content_key, context_key, machine_rows
from mileage.coderl.config import STEPS, RewardConfig, RewardResult
from mileage.coderl.judge import (
    Judged,
    Judgement,
    TestRules,
    check_base,
    grader_tests,
    idle_names,
    infra_error,
    judge_job,
    learned_rules,
    of_job,
    protected_paths,
    recalled,
    remedy,
    remembered,
)
from mileage.coderl.patches import PatchError
from mileage.coderl.patching import PatchSample, PatchVerdict
from mileage.coderl.projects.detection import detect
from mileage.coderl.projects.fingerprint import ArmSetup, fingerprint
from mileage.coderl.projects.modes import baseline_setup
from mileage.coderl.projects.systems import Command, Project
from mileage.coderl.projects.workarea import WorkArea, copy_project, tree_digest, walk_files
from mileage.coderl.readers import Expected, TestFormat, recognised
from mileage.coderl.sandbox.containment import Isolation, choose_method, containment
from mileage.coderl.sandbox.executor import (
    BuildResult,
    Change,
    JobRunner,
    Judging,
    Limits,
    LocalExecutor,
    first_diagnostic,
)
from mileage.coderl.sandbox.snapshots import Snapshot, SnapshotMethod, Surroundings
from mileage.coderl.tamper import NOT_HEARD, Witnesses, make_witnesses
from mileage.errors import BuildError, ChangeError, UsageError
from mileage.version import __version__

__all__ = ["STEPS", "BuildReward", "Isolation", "RewardConfig", "RewardResult"]

RETRY_SECONDS = 0.2
# Nothing but its own object hangs on such a file, so even a careless Makefile sees that it has changed.
TRANSLATED_ALONE = frozenset({".c", ".cc", ".cpp", ".cxx"})


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
        self._pristine = self._area.path / "pristine"
        self._copy = copy_project(self.project, self._pristine, history=self.project.git)
        for target, source in self._setup.files.items():
            (self._pristine / target).write_bytes((self._pristine / source).read_bytes())
        self.containment = self.containment.but(*(idle := idle_names(self._pristine, config)))
        for sentence in (*fallbacks, *idle):
            warnings.warn(sentence, stacklevel=4)
        self.revision = tree_digest(self._pristine)
        cores = config.cpu_cores or max(config.jobs, len(os.sched_getaffinity(0)) / self.workers)
        self._limits = Limits(config.timeout_seconds, config.memory_bytes, config.max_processes, cpu_cores=cores)
        compile_steps = self._commands("check", config.jobs) + self._commands("build", config.jobs)
        self._steps = compile_steps + self._commands("test", config.jobs)
        # `cargo test` alone compiles: with no compile step before it, its failure is reported as a test failure.
        self._compile_steps = len(compile_steps)
        self._snapshots: queue.SimpleQueue[Snapshot] = queue.SimpleQueue()
        judged = "test" in config.steps and (self.protected or config.grader_tests)
        self._heard = Witnesses()
        if judged:
            self._heard = make_witnesses(self._area.path / "witness", self.project.kind, self._setup.env)
        self.containment = self.containment.but(*self._heard.problems)
        self._judging = self._make_judging(self._heard)
        self._make_snapshots()
        self._rules = self._learn_rules()
        rows = fingerprint(self.project, self._setup, self._pristine, self.revision) | self._rule_rows()
        self._context = context_key(self.revision, self._steps, rows)
        confirmations = config.confirmations if "test" in config.steps else 1
        self._cache = ResultCache(config.cache_path, confirmations) if config.use_cache else None
        self._pending: dict[str, Future[Judged]] = {}
        self._pending_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="build-reward")

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
            {**self._setup.env, **self._heard.always},
            (*self.project.readable, *self._copy.readable, *self.config.readable, str(self._area.path / "witness")),
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
        # What tests say about the base is looked at when it is judged.
        compiled = result.succeeded or len(result.steps) > self._compile_steps
        if not compiled and not self.config.allow_broken_base:
            raise BuildError(
                f"{self.project.name} does not build as it is, so no candidate could pass: "
                f"{first_diagnostic(last.output)} ({remedy(last.output)})"
            )

    @property
    def protected(self) -> tuple[str, ...]:
        """The patterns of what candidates may not change: what the configuration names, and the files around tests."""
        named = tuple(pattern.rstrip("/") for pattern in self.config.protected)
        judged = "test" in self.config.steps and (named or self.config.grader_tests)
        return named + (self.project.harness if judged else ())

    @property
    def _closed(self) -> tuple[str, ...]:
        """The patterns of what patches may not touch: what is protected, what builds make, and installed packages."""
        return (*self.project.outputs, *(self.project.inputs if self.protected else ()), *self.protected)

    @property
    def expected(self) -> Expected:
        """The tests that candidates must pass; empty where the exit code of the test command is all there is."""
        return self._rules.expected

    def _make_judging(self, heard: Witnesses) -> Judging | None:
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
            witness=heard.library,
            variables=heard.variables,
        )

    def _rule_rows(self) -> dict[str, str]:
        """What decides verdicts besides the tree and the commands: limits, surroundings, machine, expected tests."""
        tests = self._judging.tests if self._judging else ()
        limits = ("timeout_seconds", "memory_bytes", "disk_bytes", "max_processes")
        return {
            **{f"rule.{name}": repr(vars(self.config)[name]) for name in (*limits, "network", "warm", "readable")},
            "rule.cpu_cores": repr(self._limits.cpu_cores),
            "rule.method": str(self.method),
            "rule.containment": repr(sorted(self.containment.rows.items())),
            "rule.compile_steps": str(self._compile_steps),
            "mileage": __version__,
            **machine_rows((*self._steps, *self.project.tools.values()), self._setup.env),
            "tests.expected": repr((sorted(self.expected.fail_to_pass), sorted(self.expected.pass_to_pass))),
            "tests.grader": content_key("", tests),
            "tests.witness": str(bool(self._judging and self._judging.variables)),
            "tests.protected": repr(self.protected),
        }

    def _learn_rules(self) -> TestRules:
        """Judge the base, and the solution where there is one, under a candidate's limits, to know what to expect."""
        snapshot = self._snapshots.get()
        form = self.project.test_format
        try:
            base, form = self._trial(snapshot, (), form)
            if self._heard != Witnesses() and base.judgement.verdict is PatchVerdict.TEST_FAILURE:
                base, form = self._try_unheard(snapshot, base, form)
            last = base.judgement
            if self.config.solution:
                changes = self.config.solution.changes(self._pristine, self._closed)
                trial, form = self._trial(snapshot, changes, form)
                last = trial.judgement
        except PatchError as error:
            raise UsageError(f"the solution cannot be applied: {error}") from None
        finally:
            self._snapshots.put(snapshot)
        self.base = self._result(PatchSample("base"), base, cached=False)
        """The verdict on the project as it is."""
        check_base(self.project.name, self.config, base.judgement, last)
        return learned_rules(self.config, form, base.judgement, last) if self._judging else TestRules(form)

    def _try_unheard(
        self, snapshot: Snapshot, base: Judged, form: TestFormat | None
    ) -> tuple[Judged, TestFormat | None]:
        """Tests that fail because something hears how they end (some sanitisers want to be first) are not heard."""
        heard = self._judging
        self._judging = self._make_judging(Witnesses())
        again, again_form = self._trial(snapshot, (), form)
        if again.judgement.verdict is base.judgement.verdict:
            self._judging = heard
            return base, form
        self.containment = self.containment.but(f"{NOT_HEARD}the project's tests fail with what hears it")
        return again, again_form

    def _trial(
        self, snapshot: Snapshot, changes: tuple[Change, ...], form: TestFormat | None
    ) -> tuple[Judged, TestFormat | None]:
        """What a tree that nothing is expected of yet comes to, and the format in which its tests said so."""
        result = self._run(snapshot, changes, self._limits, "base")
        ran = result.steps[self._compile_steps :]
        if form is None and ran:
            form = recognised("\n".join(step.output for step in ran))
        return of_job(judge_job(result, self._compile_steps, TestRules(form), learning=True), result), form

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
            refused = Judgement(PatchVerdict.DOES_NOT_APPLY, str(error))
            return self._result(sample, Judged(refused), cached=False)
        except Exception as error:
            # Nothing a model writes may end the training; what is not foreseen is no fault of the candidate either.
            return self._result(sample, infra_error(error), cached=False)

    def _judge_changes(self, sample: PatchSample) -> RewardResult:
        if sample.is_empty:
            empty = Judgement(PatchVerdict.NO_CHANGE, "the candidate is empty")
            if sample.path:
                sample.changes(self._pristine, self._closed)
            return self._result(sample, Judged(empty), cached=False)
        changes = sample.changes(self._pristine, self._closed, self.config.fuzzy)
        if all(self._is_there(change) for change in changes):
            nothing = Judgement(PatchVerdict.NO_CHANGE, "the candidate leaves every file as it was")
            return self._result(sample, Judged(nothing), cached=False)
        key = content_key(self._context, changes)
        known = self._cache.get(key) if self._cache else None
        if known:
            return self._result(sample, Judged(recalled(*known, self._rules)), cached=True)
        judged, shared = self._build_once(key, changes, sample.id)
        return self._result(sample, judged, cached=shared)

    def _is_there(self, change: Change) -> bool:
        """Whether the project is already what `change` makes of it."""
        path = self._pristine / change.path
        if change.content is None:
            return not path.exists()
        return path.is_file() and path.read_bytes() == change.content

    def _build_once(self, key: str, changes: tuple[Change, ...], label: str) -> tuple[Judged, bool]:
        """Build a candidate, or wait for another thread that is building the same content."""
        with self._pending_lock:
            running = self._pending.get(key) if self._cache else None
            if running is None:
                mine: Future[Judged] = Future()
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
            self._cache.put(key, judged.judgement.verdict, remembered(judged.judgement))
        return judged, False

    def _build(self, changes: tuple[Change, ...], label: str) -> Judged:
        """Build a candidate; after a failure of the machine, again."""
        attempt = 1
        while True:
            judged = replace(self._try_build(changes, label), attempts=attempt)
            failed = judged.judgement.verdict is PatchVerdict.INFRA_ERROR
            if not failed or self._is_closed or attempt > self.config.retries:
                return judged
            time.sleep(RETRY_SECONDS * attempt)
            attempt += 1

    def _try_build(self, changes: tuple[Change, ...], label: str) -> Judged:
        asked = time.perf_counter()
        snapshot = self._snapshots.get()
        started = time.perf_counter()
        try:
            result = self._run(snapshot, changes, self._limits, label)
            judged = of_job(judge_job(result, self._compile_steps, self._rules), result)
        except ChangeError as error:
            judged = Judged(Judgement(PatchVerdict.DOES_NOT_APPLY, str(error)))
        except (BuildError, OSError) as error:
            judged = infra_error(error)
        finally:
            self._snapshots.put(snapshot)
        seconds = {"waiting": started - asked, **judged.seconds}
        return replace(judged, wall_seconds=time.perf_counter() - started, seconds=seconds)

    def _run(self, snapshot: Snapshot, changes: tuple[Change, ...], limits: Limits, label: str) -> BuildResult:
        """Build and test a candidate.

        Build tools know which files they read, and not which they would have read had they been there: a header that
        shadows another, a module with two homes. So one that adds or removes a file is built with all sources new; and
        where Makefiles are to name what depends on what, so is one that changes anything but a C source.
        """
        moved = self.config.warm and any(map(self._may_be_missed, changes))
        renewed = self._source_names if moved else ()
        removed = self.project.configured if moved else ()
        return snapshot.run(self._steps, changes, limits, label, self._judging, renewed, removed)

    def _may_be_missed(self, change: Change) -> bool:
        """Whether a build tool may overlook what hangs on a change."""
        if change.content is None or not (self._pristine / change.path).exists():
            return True
        return not self.project.knows_dependencies and Path(change.path).suffix not in TRANSLATED_ALONE

    @functools.cached_property
    def _source_names(self) -> tuple[str, ...]:
        """The files of the project that builds read, installed packages apart."""
        inputs = tuple(path + "/" for path in self.project.inputs)
        return tuple(
            name
            for name, info in walk_files(self._pristine)
            if stat.S_ISREG(info.st_mode) and not name.startswith(inputs)
        )

    def _result(self, sample: PatchSample, judged: Judged, *, cached: bool) -> RewardResult:
        judgement = judged.judgement
        return RewardResult(
            id=sample.id,
            verdict=judgement.verdict,
            reward=self._reward(judgement),
            diagnostic=judgement.diagnostic.encode("utf-8", "backslashreplace").decode(),
            wall_seconds=judged.wall_seconds,
            cached=cached,
            tests=judgement.tests,
            output=judged.output,
            seconds=judged.seconds,
            attempts=judged.attempts,
        )

    def _reward(self, judgement: Judgement) -> float | None:
        if judgement.verdict is PatchVerdict.INFRA_ERROR:
            return None
        reward = self.config.rewards.get(judgement.verdict, 0.0)
        if judgement.verdict is PatchVerdict.TEST_FAILURE and self.config.partial_credit:
            return max(reward, self.config.partial_credit * judgement.share)
        return reward

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
