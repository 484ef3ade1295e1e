"""Jobs and what runs them: the seam between the harness and real processes, and a compiler's first complaint.

A `JobRunner` takes a `Job` (changes to a tree, then commands) and returns what happened; `LocalExecutor` starts
processes.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from mileage.coderl.sandbox.limits import (
    GroupLimits,
    Hierarchy,
    JobGroup,
    NoGroupError,
    find_hierarchies,
    remove_leftovers,
)
from mileage.errors import BuildError, ChangeError, InfraError
from mileage.records import Record

# The directory above this package goes onto the path, so that the package is all of mileage that the launcher loads.
COMMAND = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); "
    "from sandbox.launcher import main; sys.exit(main())"
)
# How long a launcher may take to end its job after the time of the job is up, or to begin it.
GRACE_SECONDS = 60.0
DEFAULT_OUTPUT_BYTES = 64 * 1024
DEFAULT_SAMPLE_SECONDS = 0.05


class StepOutcome(StrEnum):
    """How a command ended."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Change:
    """One file of a tree that becomes `content`, or is deleted where `content` is None."""

    path: str
    content: bytes | None
    executable: bool = False


@dataclass(frozen=True)
class Limits:
    """What a job may use before it is killed; None is no limit."""

    timeout_seconds: float | None = None
    memory_bytes: int | None = None
    max_processes: int | None = None
    """Processes and threads."""
    file_bytes: int | None = None
    cpu_cores: float | None = None

    @property
    def group(self) -> GroupLimits:
        """Those that a control group keeps."""
        return GroupLimits(self.memory_bytes, self.max_processes, self.cpu_cores)


class TreeMount(NamedTuple):
    """Where a project is and where the job sees it; with `overlay` the job writes into a throw-away layer."""

    source: Path
    at: str
    overlay: bool
    upper: Path | None = None


@dataclass(frozen=True)
class Jail:
    """The file system and network of an isolated job."""

    root: Path
    tree: TreeMount
    read_only: tuple[str, ...]
    home: str = "/home/mileage"
    disk_bytes: int = 2 << 30
    network: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Judging:
    """What of a job's tree judges a candidate, and so is kept out of its reach."""

    step: int
    """The first command that runs tests."""
    source: Path
    """A tree that holds protected paths as they are to be."""
    paths: tuple[str, ...] = ()
    """Protected files and directories that exist in `source`."""
    patterns: tuple[str, ...] = ()
    """Globs of protected paths: what matches and is not in `source` is removed before the tests."""
    outputs: tuple[str, ...] = ()
    """Globs of what builds make, where nothing is protected."""
    tests: tuple[Change, ...] = ()
    """The grader's own tests, written after the candidate has been compiled."""
    reports: tuple[str, ...] = ()
    """Globs of files in which the tests say what they did."""
    witness: str = ""
    """A library that is loaded into what tests start, and says how it ended; empty where there is none."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the commands that run tests, for runners that can tell what each test did."""


@dataclass(frozen=True)
class BuildJob:
    """Changes to a tree, then commands, run in order up to the first that fails."""

    steps: tuple[tuple[str, ...], ...]
    cwd: str
    env: Mapping[str, str]
    changes: tuple[Change, ...] = ()
    limits: Limits = Limits()
    jail: Jail | None = None
    judging: Judging | None = None
    renewed: tuple[str, ...] = ()
    """Files that get a new time after the changes, so that what was built of them counts as stale."""
    removed: tuple[str, ...] = ()
    """Files that are removed after the changes, where they exist."""
    output_bytes: int = DEFAULT_OUTPUT_BYTES
    sample_seconds: float = DEFAULT_SAMPLE_SECONDS
    label: str = ""


@dataclass(frozen=True)
class StepResult:
    """What one command did; `output` is the beginning and the end of what it printed."""

    argv: tuple[str, ...]
    outcome: StepOutcome
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    output: str

    @property
    def succeeded(self) -> bool:
        """Whether the command ended by itself with exit code 0."""
        return self.outcome is StepOutcome.EXITED and self.exit_code == 0


@dataclass(frozen=True)
class BuildResult:
    """The steps that were started; the last one is the one that failed, if any did."""

    steps: tuple[StepResult, ...]
    overhead_seconds: float = 0.0
    """Starting the launcher, making namespaces and mounts, applying changes, killing and reaping."""
    reports: Mapping[str, str] = field(default_factory=dict)
    """What the tests wrote about themselves, by file."""
    tampered: tuple[str, ...] = ()
    """Protected paths that were changed while the tests ran."""
    left_early: tuple[str, ...] = ()
    """Commands that run tests and did not come to the end of their main function."""
    told: frozenset[str] = frozenset()
    """What test runners said past their output."""

    @property
    def succeeded(self) -> bool:
        """Whether every step that was started succeeded."""
        return all(step.succeeded for step in self.steps)

    @property
    def wall_seconds(self) -> float:
        """Wall-clock of all steps together."""
        return sum(step.wall_seconds for step in self.steps)


class JobRunner(Protocol):
    """Runs jobs."""

    def run(self, job: BuildJob) -> BuildResult:
        """Run `job` to its end and return what happened; nothing of it is left behind."""
        ...


class LocalExecutor:
    """Runs jobs as processes of this machine, each under a launcher of its own."""

    def __init__(self, hierarchies: Mapping[str, Hierarchy] | None = None) -> None:
        """Keep limits by control groups in `hierarchies`; None is those that this machine offers."""
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._hierarchies = usable_hierarchies() if hierarchies is None else hierarchies

    def run(self, job: BuildJob) -> BuildResult:
        """Run `job`; a broken launcher or an impossible jail is an InfraError, impossible changes a ChangeError."""
        if not self._hierarchies or job.limits.group == GroupLimits():
            return self._run(job, None)
        try:
            group = JobGroup(self._hierarchies, job.limits.group)
        except NoGroupError as error:
            raise InfraError(str(error)) from None
        try:
            return self._run(job, group)
        finally:
            group.close()

    def _run(self, job: BuildJob, group: JobGroup | None) -> BuildResult:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True, pass_fds=group.descriptors if group else (),
            )  # fmt: skip
        except OSError as error:
            raise InfraError(f"the build launcher cannot be started: {error}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with self._lock:
            self._running.add(process)
        try:
            # A launcher that dies at once breaks the pipe; what it said follows below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(_wire(job, group)).encode() + b"\n")
                process.stdin.flush()
            with _killed_after(process, job.limits.timeout_seconds):
                answer = process.stdout.read()
                errors = process.stderr.read()
        except BaseException:
            # Closing standard input makes the launcher kill the job and leave.
            _close(process.stdin)
            process.wait()
            raise
        finally:
            with self._lock:
                self._running.discard(process)
        _close(process.stdin)
        process.wait()
        for pipe in (process.stdout, process.stderr):
            pipe.close()
        result = _parse(answer, errors)
        return replace(result, overhead_seconds=time.perf_counter() - started - result.wall_seconds)

    def cancel(self) -> None:
        """Kill every job that is running now; their `run` returns `cancelled` results."""
        with self._lock:
            for process in self._running:
                if process.stdin is not None:
                    _close(process.stdin)


@functools.cache
def usable_hierarchies() -> Mapping[str, Hierarchy]:
    """The control groups that jobs of this machine can really be put into: it is tried once, for real."""
    found = find_hierarchies()
    remove_leftovers(found)
    if not found or _can_hold_jobs(found):
        return found
    return {name: hierarchy for name, hierarchy in found.items() if _can_hold_jobs({name: hierarchy})}


def _can_hold_jobs(hierarchies: Mapping[str, Hierarchy]) -> bool:
    limits = Limits(timeout_seconds=10, memory_bytes=64 << 20, max_processes=16, cpu_cores=1.0)
    try:
        return (
            LocalExecutor(hierarchies)
            .run(BuildJob((("true",),), "/", {"PATH": "/usr/bin:/bin"}, limits=limits))
            .succeeded
        )
    except BuildError:
        return False


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float | None) -> Iterator[None]:
    """Kill a launcher that does not end its job in time; without a time, never."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds + GRACE_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _close(pipe: IO[bytes]) -> None:
    """Close a pipe whose reader may be gone."""
    with contextlib.suppress(BrokenPipeError):
        pipe.close()


class TakingTurns:
    """Runs jobs while holding a file lock, so that benchmarks on one machine wait for each other.

    The lock is kept from job to job for `hold_seconds`, and given up after the job that exceeds it, so that waiting
    benchmarks get their turn and this one does not wait for them before every build. Used by one thread.
    """

    def __init__(self, executor: JobRunner, lock: Path, hold_seconds: float = 90.0) -> None:
        self._executor = executor
        self._path = lock
        self._hold_seconds = hold_seconds
        self._file: IO[str] | None = None
        self._taken_at = 0.0

    def run(self, job: BuildJob) -> BuildResult:
        """Wait for the lock, then run `job`; the waiting is not part of its time."""
        if self._file is None:
            self._file = self._path.open("a")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._taken_at = time.monotonic()
        try:
            return self._executor.run(job)
        finally:
            if time.monotonic() - self._taken_at > self._hold_seconds:
                self.release()

    def release(self) -> None:
        """Give the lock up."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _wire(job: BuildJob, group: JobGroup | None) -> Record:
    """`job` as the launcher reads it."""
    limits = asdict(job.limits)
    return {
        "steps": [list(step) for step in job.steps],
        "cwd": job.cwd,
        "env": dict(job.env),
        "changes": [_wire_change(change) for change in job.changes],
        "renewed": job.renewed,
        "removed": job.removed,
        "timeout": limits.pop("timeout_seconds"),
        **limits,
        "output_bytes": job.output_bytes,
        "sample_seconds": job.sample_seconds,
        "isolate": _wire_jail(job) if job.jail else None,
        "judging": _wire_judging(job.judging) if job.judging else None,
        "group": group.wire(job.limits.group) if group else None,
    }


def _wire_change(change: Change) -> Record:
    content = None if change.content is None else base64.b64encode(change.content).decode()
    return {"path": change.path, "content": content, "mode": 0o755 if change.executable else None}


def _wire_judging(judging: Judging) -> Record:
    tests = [_wire_change(test) for test in judging.tests]
    return vars(judging) | {"source": str(judging.source), "tests": tests}


def _wire_jail(job: BuildJob) -> Record:
    jail = job.jail
    assert jail is not None
    upper = str(jail.tree.upper) if jail.tree.upper else None
    tree = jail.tree._asdict() | {"source": str(jail.tree.source), "upper": upper}
    judge = str(job.judging.source) if job.judging else None
    return vars(jail) | {"root": str(jail.root), "tree": tree, "files": dict(jail.files), "judge": judge}


def _parse(answer: bytes, errors: bytes) -> BuildResult:
    """Turn the launcher's answer into a result."""
    try:
        data = json.loads(answer)
    except json.JSONDecodeError:
        said = errors.decode("utf-8", "replace").strip() or "killed"
        raise InfraError(f"the build launcher died without an answer: {said}") from None
    if "refused" in data:
        raise ChangeError(f"the changes cannot be written: {data['refused']}")
    if "error" in data:
        raise InfraError(f"the build could not be started: {data['error']}")
    steps = (step | {"argv": tuple(step["argv"]), "outcome": StepOutcome(step["outcome"])} for step in data["steps"])
    return BuildResult(
        tuple(StepResult(**step) for step in steps),
        reports=data.get("reports", {}),
        tampered=tuple(data.get("tampered", ())),
        left_early=tuple(data.get("left_early", ())),
        told=frozenset(data.get("told", ())),
    )


def shell(command: str | Sequence[str]) -> tuple[str, ...]:
    """The argument vector of a command given as a shell line or as a list."""
    return ("sh", "-c", command) if isinstance(command, str) else tuple(command)


# --- The first thing a compiler complained about ---
LONGEST = 300
# In the order they are tried; each matches one line.
_PATTERNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^error(?:\[E\d+\])?: (?!could not compile|aborting|test failed).+$",  # rustc, cargo
        r"^\S+?:\d+:(?:\d+:)? (?:fatal )?error: .+$",  # gcc, clang
        r"^\S+?\(\d+,\d+\): error TS\d+: .+$",  # tsc
        r"^\[ERROR\] \S+\.java:.+$",  # maven
        r"^\[ERROR\] \S.+$",  # maven, other than the compiler
        r"^\S+\.go:\d+(?::\d+)?: .+$",  # go
        r"^(?:E\s+)?(?:\w+\.)*\w*(?:Error|Exception)\b.*$",  # python
        r"^.*\b(?:error|FAILED|panicked at|undefined reference|No space left|cannot start)\b.*$",
    )
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RUST_PLACE = re.compile(r"\s*--> (\S+)")


def first_diagnostic(output: str) -> str:
    """The first error line of a build's output, with its place where the compiler names one apart."""
    text = _COLOUR.sub("", output)
    for pattern in _PATTERNS:
        match = pattern.search(text)
        if match:
            place = _RUST_PLACE.match(text[match.end() :])
            line = match[0].strip() + (f" ({place[1]})" if place else "")
            return line[:LONGEST]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""
