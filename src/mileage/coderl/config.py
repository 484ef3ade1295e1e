"""How candidates are judged: the options of a pool, checked, and its results."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TypeVar

from mileage.coderl.patching import PatchSample, PatchVerdict
from mileage.coderl.readers import TestResult
from mileage.coderl.sandbox.containment import Isolation
from mileage.coderl.sandbox.snapshots import SnapshotMethod
from mileage.errors import UnknownNameError, UsageError, require

# --- The options of a pool, checked: what means nothing is refused by its name ---
Choice = TypeVar("Choice", bound=StrEnum)
SMALLEST_BYTES = 1 << 20


def choice(name: str, value: object, known: type[Choice]) -> Choice:
    """`value` as a member of `known`, given as such or by its name."""
    if not isinstance(value, str):
        raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    try:
        return known(value)
    except ValueError:
        raise UnknownNameError(name, value, [str(member) for member in known]) from None


def texts(name: str, values: object) -> tuple[str, ...]:
    """`values` as a tuple of texts; one text alone would be taken for its letters."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise UsageError(f"{name} must be a tuple of texts, such as ({values!r},), not {values!r}")
    found = tuple(values)
    for value in found:
        require(isinstance(value, str | os.PathLike) and str(value) != "", f"each of {name}", value, "a text")
    return tuple(str(value) for value in found)


def flag(name: str, value: object) -> bool:
    """`value`, which must be true or false: "no" would count as true."""
    require(isinstance(value, bool), name, value, "True or False")
    return bool(value)


def patterns(name: str, values: object) -> tuple[str, ...]:
    """Glob patterns of paths in a project, without a leading ./ and a trailing /."""
    found = []
    for value in texts(name, values):
        pure = PurePosixPath(value)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise UsageError(f"{name} {value!r} must be a path or pattern inside the project, relative to its root")
        found.append(str(pure))
    return tuple(found)


def absolute_paths(name: str, values: object) -> tuple[str, ...]:
    """Paths of this machine that exist."""
    found = texts(name, values)
    for value in found:
        require(os.path.isabs(value), f"each of {name}", value, "an absolute path")
        require(os.path.lexists(value), f"each of {name}", value, "a path that exists")
    return found


def reward_table(values: object) -> dict[PatchVerdict, float]:
    """The reward of each verdict; an infrastructure failure has none, so it cannot be given one."""
    if not isinstance(values, Mapping):
        raise UsageError(f"rewards must map verdicts to numbers, not {values!r}")
    table: dict[PatchVerdict, float] = {}
    for key, value in values.items():
        verdict = choice("verdict in rewards", key, PatchVerdict)
        if verdict is PatchVerdict.INFRA_ERROR:
            raise UsageError(
                "rewards cannot name 'infra-error': it says nothing about a candidate, so it has no reward"
            )
        table[verdict] = number(f"the reward of {str(verdict)!r}", value, math.isfinite, "a finite number")
    return table


def number(name: str, value: object, fits: Callable[[float], bool], need: str) -> float:
    """`value`, if it is a number that `fits`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_number and fits(float(value)), name, value, need)  # type: ignore[arg-type]
    return value  # type: ignore[return-value]


def at_least(name: str, value: object, least: int) -> None:
    """Refuse anything but a whole number of at least `least`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(fits, name, value, f"a whole number of at least {least}")


def path(name: str, value: object) -> Path:
    """`value` as a path."""
    require(isinstance(value, str | os.PathLike) and str(value) != "", name, value, "a path")
    return Path(value)  # type: ignore[arg-type]


STEPS = ("check", "build", "test")


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
    """Reward of each verdict; a verdict that is not named earns 0, a failure of the machine has none."""
    allow_broken_base: bool = False
    """Start even if the unchanged project does not pass, because candidates are to repair it."""

    def __post_init__(self) -> None:
        self._normalise()
        unknown = [step for step in self.steps if step not in STEPS]
        if unknown or not self.steps or len(set(self.steps)) < len(self.steps):
            raise UsageError(f"steps {self.steps!r} must be some of {', '.join(STEPS)}, each once")
        if self.solution is not None and not isinstance(self.solution, PatchSample):
            raise UsageError(f"solution must be a PatchSample, not {self.solution!r}")
        self._check_numbers()
        if self.method is SnapshotMethod.OVERLAY and self.isolation is Isolation.OFF:
            raise UsageError("method 'overlay' needs isolation: use isolation='auto' or another method")
        if self.method not in (None, SnapshotMethod.OVERLAY) and self.isolation is Isolation.REQUIRE:
            raise UsageError(f"method {str(self.method)!r} has no isolation: use method='overlay', or isolation='auto'")
        about_tests = ("grader_tests", "solution", "fail_to_pass", "pass_to_pass", "partial_credit")
        idle = [name for name in about_tests if vars(self)[name]] if "test" not in self.steps else []
        if idle:
            raise UsageError(f"{idle[0]} is about tests: add 'test' to steps")

    def _normalise(self) -> None:
        """Read what can be read in one way only, refuse the rest."""
        found: dict[str, object] = {
            "steps": texts("steps", self.steps),
            "isolation": choice("isolation", self.isolation, Isolation),
            "protected": patterns("protected", self.protected),
            "readable": absolute_paths("readable", self.readable),
            "pass_env": texts("pass_env", self.pass_env),
            "rewards": reward_table(self.rewards),
        }
        if self.method is not None:
            found["method"] = choice("method", self.method, SnapshotMethod)
        for name in ("network", "warm", "fuzzy", "use_cache", "allow_broken_base"):
            found[name] = flag(name, vars(self)[name])
        for name in ("fail_to_pass", "pass_to_pass"):
            if vars(self)[name] is not None:
                found[name] = texts(name, vars(self)[name])
        for name in ("grader_tests", "cache_path"):
            if vars(self)[name] is not None:
                found[name] = path(name, vars(self)[name])
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        if self.workers is not None:
            at_least("workers", self.workers, 1)
        for name in ("jobs", "max_processes", "confirmations"):
            at_least(name, vars(self)[name], 1)
        at_least("retries", self.retries, 0)
        for name in ("memory_bytes", "disk_bytes"):
            at_least(name, vars(self)[name], SMALLEST_BYTES)
        number("timeout_seconds", self.timeout_seconds, lambda value: 0 < value < 1e9, "seconds above 0")
        number("partial_credit", self.partial_credit, lambda value: 0 <= value <= 1, "from 0 to 1")
        if self.cpu_cores is not None:
            number("cpu_cores", self.cpu_cores, lambda value: 0.01 <= value < 1e6, "at least 0.01")


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
    tests: tuple[TestResult, ...] = ()
    """What each test said, where tests were run."""
    output: str = ""
    """What the commands printed, from the first to the last: the beginning and the end, where it is long."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall-clock of `waiting` for a worker, of `overhead`, and of each command that ran."""
    attempts: int = 1
    """How often it was run: more than once after a failure of the machine."""
