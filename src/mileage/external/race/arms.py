"""Attempts: one arm trained once, in processes of its own, from their start to the target or to its end.

What an arm is decides how it is started (`_Recipe`, `_Command`); a further kind is a further entry of `KINDS`. Our own
recipes are started as a user would, and record themselves; programs are recorded from outside, and ask for their exam.
"""

from __future__ import annotations

import compileall
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

from mileage.errors import LedgerError, UsageError
from mileage.external.exam.server import AskedExams
from mileage.external.race.journal import LEDGER, Attempt, AttemptBegun, Journal
from mileage.external.race.spec import ArmSpec, RaceSpec, filled
from mileage.external.record import record
from mileage.jobs.process import Ended, EndingWay, How, Program, end_marked
from mileage.ledger.recorder import Ledger
from mileage.ledger.redaction import new_note
from mileage.ledger.rows import EndState, NoteKind
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.measure import Arm, Outcome, ResourceSampler, Turn
from mileage.measure.memory import ProcessTree
from mileage.records import ReadRecord
from mileage.system import usable_cores
from mileage.version import __version__

MARK = "MILEAGE_RACE_ATTEMPT"
"""Names the attempt in the environment of everything it starts."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_OUT = {EndState.REACHED: Outcome.OK, EndState.CRASHED: Outcome.KILLED}
_COMPLETE = (EndState.REACHED, EndState.NOT_REACHED)


class BudgetSpentError(Exception):
    """The race may take no more time or money."""


class SessionOverError(Exception):
    """The race goes on another time."""


class Trained(NamedTuple):
    """What is known of an attempt when its program has ended."""

    ended: Ended
    about: ReadRecord
    """What the program says of itself: framework, version, threads."""


class ArmKind(Protocol):
    """How an arm is started."""

    def command(self, arm: ArmSpec, seed: int, source: Path | None) -> list[str]:
        """Program and arguments; `source` is where the arm's revision has been unpacked."""

    def train(self, arm: ArmSpec, seed: int, command: Sequence[str], way: EndingWay, limit: float | None) -> Trained:
        """Train to the end of the program."""


class RaceExecutor:
    """Makes the attempts of a race, and keeps its journal."""

    def __init__(
        self, spec: RaceSpec, directory: Path, journal: Journal, session_seconds: float = float("inf"),
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """Name the parts.

        Args:
            spec: the race.
            directory: its own.
            journal: is told of every beginning and end.
            session_seconds: after which no attempt is begun until the race is taken up again.
            tell: gets a sentence now and then.
        """
        self.spec, self.directory, self.journal = spec, directory, journal
        self.ledger = Ledger(directory / LEDGER)
        self.tell = tell
        self._session_ends = time.monotonic() + session_seconds
        self._sources: dict[str, Path] = {}
        self._kinds = {name: kind(self) for name, kind in KINDS.items()}

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def prepare(self, arm: Arm[ArmSpec], kind: str) -> None:
        """Unpack an arm's revision; let a recipe compile its kernels, which is done once on a machine."""
        found = arm.subject
        if found.revision is not None:
            self._sources[found.name] = unpacked(found, self.spec.directory, self.directory / "revisions")
        if found.kind != "recipe":
            return
        self.tell(f"{found.name}: compiling what is not compiled yet")
        words = self._kinds["recipe"].command(replace(found, steps=1, eval_every=1), self.spec.first_seed, None)
        done = subprocess.run(
            [*words, "--no-ledger"], env=os.environ | dict(self._variables(found)), cwd=self.spec.directory,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == UsageError.exit_code:
            said = done.stderr.strip().splitlines() or ["it said nothing"]
            raise UsageError(f"arm {found.name!r} cannot be run: {said[-1].removeprefix('mileage: ')}")

    # One attempt

    def attempt(self, arm: Arm[ArmSpec], turn: Turn) -> Attempt:
        """Train once; KeyboardInterrupt if the user wants to stop, BudgetSpentError where there is no budget left."""
        found, seed = arm.subject, self.spec.first_seed + turn.round
        left = self.seconds_left()
        if left <= 0:
            raise BudgetSpentError
        if time.monotonic() > self._session_ends:
            raise SessionOverError
        limit = min(left, self.spec.limits.attempt_seconds)
        begun = AttemptBegun(found.name, turn.round, seed, turn.order, f"{os.getpid()}-{time.time_ns()}", time.time())
        self.journal.write("begin", **vars(begun))
        ended, about = self._run(found, begun, limit)
        runs = self.runs_of(begun)
        if not runs:
            raise UsageError(f"arm {found.name!r} cannot be run: {self._last_words(begun)}")
        cut = ended.how is How.INTERRUPTED or (ended.how is How.TIMED_OUT and limit < self.spec.limits.attempt_seconds)
        attempt = self._ended(begun, runs[-1], ended, about, counted=not cut)
        if ended.how is How.INTERRUPTED:
            raise KeyboardInterrupt
        if cut:
            raise BudgetSpentError
        return attempt

    def _run(self, arm: ArmSpec, begun: AttemptBegun, limit: float) -> Trained:
        kind, source = self._kinds[arm.kind], self._sources.get(arm.name)
        command = kind.command(arm, begun.seed, source)
        logs = self.directory / "logs"
        logs.mkdir(exist_ok=True)
        place = source if source is not None and arm.kind == "command" else self.spec.directory
        way = EndingWay({**self._variables(arm), MARK: begun.mark}, place, self._log(begun))
        return kind.train(arm, begun.seed, command, way, limit if limit < float("inf") else None)

    def _ended(
        self, begun: AttemptBegun, run: RecordedRun, ended: Ended, about: ReadRecord, *, counted: bool
    ) -> Attempt:
        """Write down how an attempt ended; one that does not count is void in the ledger too."""
        if not counted:
            self._void(run, f"the race was stopped during this attempt: {ended.reason}")
        late = ended.how is How.TIMED_OUT
        outcome = Outcome.OK if run.reached else Outcome.TIMEOUT if late else _OUT.get(_state(run), Outcome.FAILED)
        said = "" if outcome is Outcome.OK else run.reason
        attempt = Attempt(
            begun.arm, run.cost("s"), outcome=outcome, round=begun.round, order=begun.order, diagnostic=said,
            seed=begun.seed, run_id=run.run_id, spent_seconds=run.wall_seconds, spent_usd=run.cost_usd or 0.0,
            counted=counted, about=dict(about),
        )  # fmt: skip
        self.journal.write("end", **attempt.as_dict())
        return attempt

    # Going on

    def take_up(self) -> None:
        """See to an attempt that was under way when the race was killed: count it if it is whole, else void it."""
        begun = self.journal.unfinished()
        if begun is None:
            return
        end_marked(MARK, begun.mark)
        runs = self.runs_of(begun)
        for run in runs[:-1]:
            self._void(run, "the race was killed during this attempt")
        if not runs:
            # It was killed before there was a run: nothing was spent that anybody knows of.
            nothing = Attempt(begun.arm, 0.0, outcome=Outcome.KILLED, round=begun.round, order=begun.order)
            self.journal.write("end", **replace(nothing, seed=begun.seed, counted=False).as_dict())
            return
        whole = runs[-1].end is not None and _state(runs[-1]) in _COMPLETE
        ended = Ended(How.FINISHED if whole else How.KILLED, 0 if whole else 128 + signal.SIGKILL, 0)
        self._ended(begun, runs[-1], ended, {}, counted=whole)

    def runs_of(self, begun: AttemptBegun) -> list[RecordedRun]:
        """The runs that an attempt has left in the ledger, in launch order; dead ones are closed."""
        taken = {attempt.run_id for attempt in self.journal.attempts()}
        try:
            found = self.ledger.records(f"name={self.run_name(begun.arm)},seed={begun.seed}")
        except (UsageError, LedgerError):  # there is no ledger yet
            return []
        fresh = [run for run in found if run.run_id not in taken and run.run.launched_at >= begun.at - 1.0]
        return sorted(fresh, key=lambda run: (run.run.launched_at, run.run_id))

    def _void(self, run: RecordedRun, why: str) -> None:
        if not run.voided:
            with Store(self.ledger.url) as store:
                store.deliver_together([new_note(run.run_id, NoteKind.VOID, why)])

    # Budgets and threads

    def seconds_left(self) -> float:
        """What the budgets leave for another attempt; what attempts cost that do not count is spent all the same."""
        attempts = self.journal.attempts()
        seconds = self.spec.limits.seconds - sum(each.spent_seconds for each in attempts)
        rate = self.spec.frozen_price.usd_per_hour
        if rate == 0:
            return seconds
        return min(seconds, (self.spec.limits.dollars - sum(each.spent_usd for each in attempts)) / rate * 3600.0)

    def run_name(self, arm: str) -> str:
        """What the runs of an arm are called in the ledger."""
        return f"{self.spec.name}/{arm}"

    def threads(self, arm: ArmSpec) -> int:
        """How many an arm may use."""
        return arm.threads or usable_cores()

    def _variables(self, arm: ArmSpec) -> Mapping[str, str]:
        # Installed, unpacked or in a directory of its own: no code is compiled by Python in every run.
        found = {"PYTHONDONTWRITEBYTECODE": ""}
        if arm.kind == "command":
            found |= dict.fromkeys(_THREADS, str(self.threads(arm)))
        source = self._sources.get(arm.name)
        if source is not None:
            path = source / "src" if (source / "src").is_dir() else source
            found["PYTHONPATH"] = f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)
        return found | {name: str(value) for name, value in arm.environment.items()}

    def _log(self, begun: AttemptBegun) -> Path:
        return self.directory / "logs" / f"{begun.arm}-{begun.seed}.log"

    def _last_words(self, begun: AttemptBegun) -> str:
        try:
            lines = self._log(begun).read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1].removeprefix("mileage: ")[:300] if lines else "it left no run in the ledger and said nothing"


def _state(run: RecordedRun) -> EndState:
    return EndState(run.state) if run.end is not None else EndState.CRASHED


class _Recipe:
    """An algorithm of ours with its settings, started as `mileage train`."""

    def __init__(self, race: RaceExecutor) -> None:
        self._race = race

    def command(self, arm: ArmSpec, seed: int, source: Path | None) -> list[str]:
        """As a user would type it."""
        race, spec = self._race, self._race.spec
        given = {
            "--seed": seed, "--target": spec.target, "--episodes": spec.episodes, "--name": race.run_name(arm.name),
            "--db": race.directory / LEDGER, "--out": race.directory / "checkpoints", "--preset": arm.preset,
            "--threads": race.threads(arm), "--steps": arm.steps, "--eval-every": arm.eval_every,
            "--success": spec.success, "--price": spec.price, "--instance": spec.instance,
            "--env-kwargs": json.dumps(dict(spec.env_kwargs)) if spec.env_kwargs else None,
        }  # fmt: skip
        words = [f"{name}={value}" for name, value in given.items() if value is not None]
        words += [f"--set={name}={json.dumps(value)}" for name, value in arm.settings.items()]
        return [sys.executable, "-m", "mileage", "train", str(arm.algorithm), spec.env, "--quiet", *words]

    def train(self, arm: ArmSpec, seed: int, command: Sequence[str], way: EndingWay, limit: float | None) -> Trained:
        """It records itself."""
        ended = Program(command, way.environment[MARK], lambda _: None, way).run(limit)
        version = __version__ if arm.revision is None else arm.revision
        return Trained(ended, {"framework": "mileage", "version": version, "threads": self._race.threads(arm)})


class _Children(ProcessTree):
    """The memory of all processes but this one, which keeps the books."""

    def rss_bytes(self) -> int:
        """What is left without this process."""
        own = ProcessTree()
        return max(0, super().rss_bytes() - own.rss_bytes())


class _Command:
    """Somebody's program, recorded from outside and examined while it trains."""

    def __init__(self, race: RaceExecutor) -> None:
        self._race = race
        self._exams: AskedExams | None = None

    def command(self, arm: ArmSpec, seed: int, source: Path | None) -> list[str]:
        """The words of the file, with seed, threads and so on filled in."""
        race = self._race
        return filled(arm.command, seed=seed, threads=race.threads(arm), env=race.spec.env, python=sys.executable)

    def train(self, arm: ArmSpec, seed: int, command: Sequence[str], way: EndingWay, limit: float | None) -> Trained:
        """Its run is launched, examined and closed here."""
        race, spec = self._race, self._race.spec
        self._exams = self._exams or AskedExams(spec.panel)
        way = replace(way, environment={**way.environment, **self._exams.environment()})
        try:
            _, ended = record(
                command, race.ledger, race.run_name(arm.name), directories=(), limit_seconds=limit, way=way,
                exams=self._exams, panel=spec.panel, target=spec.target, price_usd_per_hour=spec.price,
                instance=spec.instance, seed=seed, env_id=spec.env, framework=arm.name, threads=race.threads(arm),
                resources=ResourceSampler(tree=_Children, high_water=lambda: 0),
            )  # fmt: skip
            return Trained(ended, self._exams.about)
        finally:
            self._exams.close()


KINDS: dict[str, Callable[[RaceExecutor], ArmKind]] = {"recipe": _Recipe, "command": _Command}
"""How each kind of arm is started."""


def unpacked(arm: ArmSpec, beside: Path, into: Path) -> Path:
    """The tree of an arm's revision, in a directory named by its commit."""
    repository = (beside / str(arm.repository)).resolve()
    git = ["git", "-C", str(repository)]
    found = subprocess.run(
        [*git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{arm.revision}^{{commit}}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        raise UsageError(f"revision {arm.revision!r} of arm {arm.name!r} is not in the repository {arm.repository!r}")
    commit = found.stdout.strip()
    place = into / commit
    if not place.is_dir():
        archive = subprocess.run([*git, "archive", "--format=tar", commit], capture_output=True, check=True).stdout
        part = into / f".{commit}.part"
        part.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(part, filter="data")
        # As an installed package starts: else every run would compile what this revision imports.
        compileall.compile_dir(part, quiet=2)
        part.rename(place)
    return place
