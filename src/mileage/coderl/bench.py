"""rl-bench from end to end: copy, fingerprint, refuse or measure, judge, store."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from mileage.coderl.arms import BuildArm, Building, SampleKind, TimedBuild, WarmArm, measure
from mileage.coderl.config import STEPS, RewardConfig
from mileage.coderl.kpi import KpiSettings
from mileage.coderl.patching import PatchSample, PatchVerdict, count_verdicts
from mileage.coderl.pool import BuildReward
from mileage.coderl.projects.fingerprint import (
    NOT_INSTALLED,
    ArmSetup,
    check_fair,
    differences,
    fingerprint,
    used_rustflags,
)
from mileage.coderl.projects.modes import BASELINE, Mode, baseline_setup, find_mode
from mileage.coderl.projects.systems import Project
from mileage.coderl.projects.workarea import Copy, WorkArea, copy_project, tree_digest
from mileage.coderl.report import ArmInput, BenchReport, build_report
from mileage.coderl.sandbox.executor import JobRunner, Limits, LocalExecutor
from mileage.coderl.sandbox.snapshots import Snapshot, Surroundings, best_method
from mileage.coderl.store import KpiStore, now
from mileage.errors import InfraError, UnmatchedError, UsageError

DEFAULT_RUNS = 3
DEFAULT_TIMEOUT_SECONDS = 1800.0
_Arm = BuildArm | WarmArm


@dataclass(frozen=True)
class BenchConfig:
    """What to measure."""

    runs: int = DEFAULT_RUNS
    """Cold builds and incremental checks of each arm."""
    modes: tuple[str, ...] = ()
    settings: KpiSettings = field(default_factory=KpiSettings)
    jobs: int | None = None
    """Parallel jobs of each build; None is one per usable core."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    toolchain: str | None = None
    """A rustup toolchain that all arms use."""
    corpus: tuple[PatchSample, ...] = ()
    """Candidate patches for the pass rate of KPI 3."""
    corpus_steps: tuple[str, ...] = ("build",)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise UsageError(f"runs must be at least 1, not {self.runs}")
        if self.jobs is not None and self.jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {self.jobs}")
        unknown = [step for step in self.corpus_steps if step not in STEPS]
        if unknown or not self.corpus_steps:
            raise UsageError(f"step {unknown[0] if unknown else ''!r} is not known: use {', '.join(STEPS)}")
        if self.timeout_seconds <= 0:
            raise UsageError(f"timeout must be above 0 seconds, not {self.timeout_seconds}")
        if len(set(self.modes)) != len(self.modes) or BASELINE in self.modes:
            raise UsageError(f"modes {', '.join(self.modes)} must be different, and the baseline is always there")


class Progress(NamedTuple):
    """Where a benchmark is."""

    done: int
    total: int
    label: str


class _Plan(NamedTuple):
    """An arm before it is built; the baseline has no mode."""

    name: str
    about: str
    setup: ArmSetup
    mode: Mode | None = None


def plan_arms(project: Project, config: BenchConfig) -> tuple[_Plan, ...]:
    """The arms: the baseline, then one for each mode."""
    jobs = config.jobs or len(os.sched_getaffinity(0))
    base = baseline_setup(project, jobs, config.toolchain)
    plans = [_Plan(BASELINE, "the project as it is", base)]
    for name in config.modes:
        mode = find_mode(name, project)
        if mode.check:
            mode.check(base, project)
        plans.append(_Plan(name, mode.about, mode.change(base, project), mode))
    return tuple(plans)


def describe(project: Project, config: BenchConfig) -> list[str]:
    """Return, line by line, what `run_bench` would do; nothing is run."""
    where = f"project {project.name} ({project.kind}) in {project.root}"
    lines = [f"{where}, measured in a copy that is removed afterwards"]
    clean = " && ".join(" ".join(step) for step in project.clean)
    outputs = ", ".join(project.outputs)
    cold = clean or (f"remove {outputs}" if outputs else "copy the project again")
    edit = project.edit.path if project.edit else " ".join(project.edit_command or ("nothing",))
    for arm in plan_arms(project, config):
        setup = arm.setup
        lines.append(f"arm {arm.name}: {arm.about}")
        lines.append(f"  restore the built tree, add a line to {edit}" if setup.warm_snapshot else f"  cold: {cold}")
        lines += [f"    {' '.join(step)}" for step in setup.commands(setup.build)]
        lines.append(f"  incremental: one new line in {edit}")
        lines += [f"    {' '.join(step)}" for step in setup.commands(setup.check)]
        base = plan_arms(project, replace(config, modes=()))[0].setup.env
        lines += [f"  with {name}={value}" for name, value in sorted(setup.env.items()) if base.get(name) != value]
    kinds = 2 if project.edit or project.edit_command else 1
    lines.append(f"{config.runs} runs of each, {kinds * config.runs * (1 + len(config.modes))} samples in random order")
    if config.corpus:
        steps = ", ".join(config.corpus_steps)
        lines.append(f"{len(config.corpus)} candidate patches for the pass rate, steps: {steps}")
    return lines


def run_bench(
    project: Project, config: BenchConfig, *, store: KpiStore | None = None, executor: JobRunner | None = None,
    work_base: Path | None = None, on_progress: Callable[[Progress], None] = lambda progress: None,
) -> BenchReport:  # fmt: skip
    """Measure a project and return the report; finished samples are in `store` as soon as they exist."""
    plans = plan_arms(project, config)
    _check_corpus_steps(project, config)
    runner = executor or LocalExecutor()
    limits = Limits(timeout_seconds=config.timeout_seconds)
    with WorkArea(work_base) as area:
        pristine = area.path / "pristine"
        copy = copy_project(project, pristine, history=True)
        revision = tree_digest(pristine)
        plans = tuple(plan._replace(setup=_own_caches(plan.setup, area.path)) for plan in plans)
        arms = [_make_arm(plan, project, pristine, area, runner, limits, copy) for plan in plans]
        inputs = _check_arms(plans, arms, project, revision)
        prints = {arm.name: dict(arm.fingerprint) for arm in inputs}
        setup = {"runs": config.runs, "seed": config.seed, "arms": prints}
        run_id = store.start_run(project.name, revision, setup) if store else ""

        def on_sample(sample: TimedBuild, done: int, total: int) -> None:
            if store:
                store.add_sample(run_id, sample)
            on_progress(Progress(done, total, f"{sample.arm} {sample.kind} {sample.wall_seconds:.1f} s"))

        started_at = now()
        try:
            kinds = tuple(SampleKind) if project.edit or project.edit_command else (SampleKind.COLD,)
            on_progress(Progress(0, len(arms) * config.runs * len(kinds), "preparing"))
            samples = measure(arms, config.runs, kinds=kinds, seed=config.seed, on_sample=on_sample)
            inputs = _check_again(plans, arms, inputs, project, revision)
            inputs, verdicts, fallbacks = _measure_corpus(inputs, plans, project, config, work_base, on_progress)
            report = build_report(
                project=project.name, kind=project.kind, revision=_revision(project.root, revision),
                started_at=started_at, settings=config.settings, arms=inputs, samples=samples,
                notes=[*_notes(project, copy, arms, area), *fallbacks], machine=_machine(), corpus=verdicts,
            )  # fmt: skip
        except BaseException:
            if store:
                store.finish_run(run_id, None)
            raise
        if store:
            store.finish_run(run_id, report)
        return report


def _check_corpus_steps(project: Project, config: BenchConfig) -> None:
    """Refuse a corpus that the project could not be asked about, before anything is built."""
    for step in config.corpus_steps if config.corpus else ():
        if not {"check": project.check, "build": project.build, "test": project.test}[step]:
            raise UsageError(f"the project names no {step} command: add {step} to its [rl-bench] table")


def _own_caches(setup: ArmSetup, area: Path) -> ArmSetup:
    """Give the compiler caches directories and a server of the run's own: empty at first, gone at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    own = {"SCCACHE_DIR": str(area / "sccache"), "SCCACHE_SERVER_PORT": port, "SCCACHE_IDLE_TIMEOUT": "0"}
    return replace(setup, env={**setup.env, **own, "CCACHE_DIR": str(area / "ccache")})


def _make_arm(
    plan: _Plan, project: Project, pristine: Path, area: WorkArea, executor: JobRunner, limits: Limits, copy: Copy
) -> _Arm:
    directory = area.directory(f"arm-{plan.name}")
    if plan.setup.warm_snapshot:
        readable = (*project.readable, *copy.readable)
        around = Surroundings(plan.setup.env, readable, network=True, layer_on_disk=True)
        snapshot = Snapshot(pristine, directory, best_method(area.path), executor, around)
        return WarmArm(plan.name, project, plan.setup, snapshot, pristine, limits)
    fill = plan.mode.fill_runs if plan.mode else 0
    arm = BuildArm(plan.name, project, plan.setup, pristine, directory / "tree", executor, limits, fill)
    arm.make_tree()
    return arm


def _check_arms(plans: Sequence[_Plan], arms: Sequence[_Arm], project: Project, revision: str) -> tuple[ArmInput, ...]:
    """Fingerprint all arms; refuse a mode that differs from the baseline in more than it declares."""
    trees = [arm.tree if isinstance(arm, BuildArm) else arm.pristine for arm in arms]
    replaced = {name for plan in plans for name in plan.setup.files}
    rows = [fingerprint(project, plan.setup, tree, revision, replaced) for plan, tree in zip(plans, trees, strict=True)]
    toolchain = plans[0].setup.env.get("RUSTUP_TOOLCHAIN")
    if toolchain and rows[0].get("toolchain.rustc") == NOT_INSTALLED:
        raise UsageError(f"toolchain {toolchain!r} is not installed: see `rustup toolchain list`")
    found = []
    for plan, row in zip(plans, rows, strict=True):
        difference = check_fair(plan.name, plan.mode.difference, rows[0], row) if plan.mode else None
        found.append(ArmInput(plan.name, plan.about, row, difference))
    return tuple(found)


def _check_again(
    plans: Sequence[_Plan], arms: Sequence[_Arm], before: Sequence[ArmInput], project: Project, revision: str
) -> tuple[ArmInput, ...]:
    """Refuse the result if a toolchain or a lock file changed while it was being measured."""
    built = [arm for arm in arms if isinstance(arm, BuildArm)]
    for arm in built:
        plan, first = next((p, b) for p, b in zip(plans, before, strict=True) if p.name == arm.name)
        _check_flags(plan, arm)
        rows = fingerprint(project, plan.setup, arm.tree, revision, {name for p in plans for name in p.setup.files})
        # A first build may write the lock file that was not there; that all arms wrote the same one is checked below.
        changed = [d for d in differences(first.fingerprint, rows) if d.baseline != "absent"]
        if changed:
            listed = "; ".join(str(difference) for difference in changed)
            remedy = "Bring the lock files up to date and run again"
            raise UnmatchedError(f"arm {arm.name!r} changed while it was measured: {listed}. {remedy}")
    for name in project.lock_files:
        contents = {arm.name: (arm.tree / name).read_bytes() for arm in built if (arm.tree / name).is_file()}
        if len(set(contents.values())) > 1 and not any(plan.setup.files for plan in plans):
            raise UnmatchedError(f"the arms ended with different {name} files: commit one, so that all arms use it")
    return tuple(before)


def _check_flags(plan: _Plan, arm: BuildArm) -> None:
    """Refuse an arm whose compiler was called with other flags than those it was compared by."""
    if arm.project.kind != "cargo":
        return
    meant = tuple(plan.setup.env.get("RUSTFLAGS", "").split())
    # With a configured target, build scripts and macros are built without any.
    other = [flags for flags in used_rustflags(arm.tree / "target") if flags and flags != meant]
    if other:
        raise UnmatchedError(
            f"arm {arm.name!r} was to be built with rustflags {' '.join(meant) or 'none'!r}, but rustc was called with "
            f"{' '.join(other[0])!r}: look for flags in Cargo's configuration files and in the environment"
        )


def _measure_corpus(
    inputs: Sequence[ArmInput], plans: Sequence[_Plan], project: Project, config: BenchConfig, work_base: Path | None,
    on_progress: Callable[[Progress], None],
) -> tuple[tuple[ArmInput, ...], dict[str, dict[str, int]], tuple[str, ...]]:  # fmt: skip
    """Judge the corpus once for each arm that compiles differently; a snapshot compiles like its baseline.

    What the machine failed to judge counts for no rate. Last come sentences on what is contained less than asked.
    """
    if not config.corpus:
        return tuple(inputs), {}, ()
    fallbacks: dict[str, None] = {}
    verdicts: dict[str, dict[str, int]] = {}
    rates: dict[str, float] = {}
    total = len(config.corpus)
    for plan in plans:
        if plan.setup.warm_snapshot:
            verdicts[plan.name], rates[plan.name] = verdicts[BASELINE], rates[BASELINE]
            continue
        rules = RewardConfig(steps=config.corpus_steps, jobs=1, timeout_seconds=config.timeout_seconds, use_cache=False)
        with BuildReward(project, rules, setup=replace(plan.setup, jobs=1), work_base=work_base) as pool:
            fallbacks |= dict.fromkeys(pool.containment.fallbacks)
            found: list[PatchVerdict] = []
            for number, future in enumerate(pool.submit(config.corpus), 1):
                found.append(future.result().verdict)
                on_progress(Progress(number, total, f"{plan.name} corpus"))
        verdicts[plan.name] = count_verdicts(found)
        judged = total - found.count(PatchVerdict.INFRA_ERROR)
        if judged == 0:
            raise InfraError(f"no candidate of the corpus could be judged for {plan.name}: the machine failed on each")
        rates[plan.name] = found.count(PatchVerdict.PASS) / judged
    return tuple(replace(arm, corpus_pass_rate=rates[arm.name]) for arm in inputs), verdicts, tuple(fallbacks)


def _revision(root: Path, digest: str) -> str:
    """The git commit of the project, marked where the tree differs, with the hash of what was measured."""
    git = ("git", "--no-optional-locks", "-C", str(root))
    try:
        commit = subprocess.run((*git, "rev-parse", "HEAD"), capture_output=True, text=True)
        changed = subprocess.run((*git, "status", "--porcelain"), capture_output=True, text=True)
    except FileNotFoundError:
        return f"tree {digest[:16]}"
    if commit.returncode != 0:
        return f"tree {digest[:16]}"
    return f"git {commit.stdout.strip()}{' with changes' if changed.stdout.strip() else ''}, tree {digest[:16]}"


def _notes(project: Project, copy: Copy, arms: Sequence[Building], area: WorkArea) -> list[str]:
    notes = [
        *project.notes,
        *copy.notes,
        f"copy of the project: {copy.method}; page cache: not dropped, so sources and tools are read from memory "
        "after the first run",
        "cold builds start without build output and with compiler caches disabled, except in a mode that is a cache, "
        "which is filled by one build that is not counted",
    ]
    for arm in (each for each in arms if isinstance(each, WarmArm)):
        restoring = f"restoring the built tree ({arm.snapshot.method})"
        notes.append(f"{arm.name}: 'cold build' is {restoring}, one edited line, and the build of that")
    if area.removed_leftovers:
        notes.append(f"removed the leftovers of {area.removed_leftovers} earlier run that had died")
    return notes


def _machine() -> dict[str, str]:
    """What the report says about the machine."""
    model = platform.processor() or "unknown"
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": f"{model}, {len(os.sched_getaffinity(0))} usable cores",
        "memory": f"{memory:.0f} GiB",
        "os": f"{platform.system()} {platform.release()}",
    }
