"""Recording a run, ours or anyone's: phases, checkpoints and how it ended.

with Ledger().run("my-loop", panel=panel, target="mean_return>=475", price_usd_per_hour=2.20) as run:
    with run.phase("env_step"):
        ...
    run.checkpoint(step, evaluation, path="policy.safetensors")
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from mileage.errors import LedgerError, UsageError
from mileage.ledger import announce, exits, launch
from mileage.ledger.address import DbAddress, check_is_database, database_url
from mileage.ledger.launch import identified, launched_run
from mileage.ledger.panels import Panel
from mileage.ledger.prices import Price, launch_price
from mileage.ledger.rows import (
    Checkpoint,
    End,
    EndState,
    Episode,
    Phase,
    Profile,
    Row,
    Run,
    check_json,
    check_step,
    check_text,
)
from mileage.ledger.runs import RecordedRun, episode_rows, finite
from mileage.ledger.secrets import scrubbed_row, scrubbed_text, scrubbed_value
from mileage.ledger.summary import Ending, Progress, cost_usd, end_row
from mileage.ledger.targets import Evaluation, Target, examined
from mileage.measure import PhaseClock, PhaseTimes, ResourceSampler, compile_phase
from mileage.measure.machine import OTHERS, between, counters
from mileage.records import ReadRecord

if TYPE_CHECKING:
    from mileage.ledger.trackers import Mirroring
    from mileage.ledger.writer import Writer


# --- Rows and fields that say what a clock and a disk have shown ---
def phase_rows(run_id: str, seq: int, times: PhaseTimes) -> list[Phase]:
    """A row for every phase so far, and for what went on beside them."""
    wall = times.wall_seconds
    rows = [
        Phase(run_id, seq, name, wall, seconds, times.entries.get(name, 0), False)
        for name, seconds in times.phases.items()
    ]
    for lane, phases in times.beside.items():
        rows += [Phase(run_id, seq, f"{lane}/{name}", wall, spent, 0, True) for name, spent in phases.items()]
    return rows


def file_hash(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


PHASES_EVERY_SECONDS = 1.0
"""Phase totals are written with a checkpoint, but no more often than this."""
PEAKS_EVERY_SECONDS = 0.5
"""Memory peaks are read with a checkpoint, but no more often than this."""


class Ledger:
    """The ledger at a path or address; nothing is opened until a run is launched or read."""

    def __init__(self, db: DbAddress = None, *, enabled: bool = True, mirrors: Sequence[str] | None = None) -> None:
        """Name the ledger.

        Args:
            db: path or address; None takes `MILEAGE_DB` or `runs/mileage.db`.
            enabled: False measures runs and reports them, and writes nothing.
            mirrors: trackers that are told of every run as it goes on: mlflow, wandb, trackio, tensorboard; None takes
                those that `MILEAGE_MIRROR` names.
        """
        self.url = database_url(db)
        self.enabled = enabled
        self.mirrors = mirrors

    def run(
        self,
        name: str,
        *,
        panel: Panel | None = None,
        target: str | Target | None = None,
        price_usd_per_hour: float | str | None = None,
        instance: str | None = None,
        spot: bool = False,
        instances: int = 1,
        seed: int | None = None,
        config: ReadRecord | None = None,
        algorithm: str = "",
        env_id: str | None = None,
        framework: str = "custom",
        eval_every_steps: int | None = None,
        batch_size: int | None = None,
        step_budget: int | None = None,
        step_rule: str = "env_steps",
        parent_run_id: str | None = None,
        threads: int | None = None,
        clock: PhaseClock | None = None,
        resources: bool | ResourceSampler = True,
        keep: bool = False,
        price: float | str | None = None,
    ) -> RunRecorder:
        """Launch a run: its row is on disk before this returns, and its clock runs.

        Args:
            name: the arm this run belongs to; runs that differ only in their seed share it.
            panel: the held-out exam.
            target: `mean_return>=475`, `success_rate>=0.9`, …
            price_usd_per_hour: US dollars an hour and instance, or a sum `0.35+0.19`; frozen now.
            instance: name in the price book.
            spot: whether the instance is bought on the spot market.
            instances: how many instances are billed.
            seed: training seed; a held-out seed is refused.
            config: all hyperparameters, plain JSON.
            algorithm: such as `ppo`.
            env_id: what is trained on; the panel's by default.
            framework: what trains.
            eval_every_steps: evaluation cadence in env steps.
            batch_size: env steps per update.
            step_budget: env steps after which the run gives up.
            step_rule: what one env step is; `frames/4` where a frame-skip of 4 is counted in frames.
            parent_run_id: the run this one resumes; its cost and steps count as this one's.
            threads: how many the run may use, where it says so.
            clock: an already running clock, whose owner also watches compilers. Without it, the first run of a process
                counts from the start of the process.
            resources: whether memory and GPUs are sampled in the background, or the sampler to do it with.
            keep: whether the result has every checkpoint and every episode, and not the end alone.
            price: the former name of `price_usd_per_hour`.
        """
        if price is not None:
            if price_usd_per_hour is not None:
                raise UsageError("price is the former name of price_usd_per_hour: give only the latter")
            warnings.warn("price is called price_usd_per_hour now", DeprecationWarning, stacklevel=2)
            price_usd_per_hour = price
        if self.enabled:
            check_is_database(self.url)
        goal = None if target is None else Target.parse(target)
        if goal is not None and panel is None:
            raise UsageError(f"target {goal} needs the panel it is to be reached on: give panel=Panel.default(ENV)")
        if goal is not None and goal.aggregate == "success_rate" and panel is not None and panel.success is None:
            raise UsageError("target success_rate needs a panel with a success definition, such as 'return>=475'")
        frozen = launch_price(price_usd_per_hour, instance, spot=spot)
        own_clock = clock is None
        clock = PhaseClock.for_run() if clock is None else clock
        announced = announce.pending(self.url) if self.enabled else None
        row = launched_run(
            name, clock, panel=panel, target=goal, price=frozen, instances=instances, seed=seed, config=config or {},
            algorithm=algorithm, env_id=env_id, framework=framework, eval_every_steps=eval_every_steps,
            batch_size=batch_size, step_budget=step_budget, step_rule=step_rule, parent_run_id=parent_run_id,
            announced=announced.writer.run if announced else None,
        )  # fmt: skip
        writer, mirrors = None, self._mirror_names()
        if self.enabled:
            writer = announced.begin() if announced else self._writer(row)
            row = identified(row, threads, launch.begin(clock.times().wall_seconds))
            writer.launch(row)
        return RunRecorder(
            row, writer, clock, goal, frozen, panel=panel, resources=resources, watch_compilers=own_clock, keep=keep,
            mirrors=mirrors,
        )  # fmt: skip

    def _mirror_names(self) -> tuple[str, ...]:
        """What runs are mirrored to; nothing is imported where that is nothing, as it nearly always is."""
        if not self.enabled or not (self.mirrors or (self.mirrors is None and os.environ.get("MILEAGE_MIRROR"))):
            return ()
        from mileage.ledger.trackers import mirror_names

        return mirror_names(self.mirrors)

    def _writer(self, row: Run) -> Writer:
        from mileage.ledger.writer import Writer  # what a run that is not written need not wait for

        return Writer(row, self.url, launched=False)

    def records(self, selection: str | None = None, *, limit: int | None = None) -> list[RecordedRun]:
        """The selected runs, newest first; closes dead runs first. Their other rows are read when they are asked for.

        Args:
            selection: as on the command line: a run id or its beginning, a name, or `field=value` with commas; all
                runs if left out.
            limit: how many at most.
        """
        from mileage.ledger import queries
        from mileage.ledger.store import Store

        with Store(self.url, create=False) as store:
            if selection is None:
                found = store.read(queries.records, limit=limit)
            else:
                found = store.read(queries.selected, selection)[::-1][:limit]
            return [run.reading(self._complete) for run in store.read(queries.with_parents, found)]

    def _complete(self, run: RecordedRun) -> RecordedRun:
        """A run with all its rows."""
        from mileage.ledger import queries
        from mileage.ledger.store import Store

        with Store(self.url, create=False) as store:
            return store.read(queries.complete, store.read(queries.with_phases, [run])[0])

    def with_parents(self, run: RecordedRun) -> RecordedRun:
        """A run of this ledger with what the runs have used that it resumes; as it is where that cannot be read."""
        if not self.enabled or run.run.parent_run_id is None:
            return run
        from mileage.ledger import queries
        from mileage.ledger.store import Store

        try:
            with Store(self.url, create=False) as store:
                return store.read(queries.with_parents, [run])[0]
        except LedgerError:
            return run


class RunRecorder:
    """One run being recorded; made by `Ledger.run`."""

    def __init__(
        self,
        row: Run,
        writer: Writer | None,
        clock: PhaseClock,
        target: Target | None,
        price: Price,
        *,
        panel: Panel | None = None,
        resources: bool | ResourceSampler = True,
        watch_compilers: bool = True,
        keep: bool = False,
        mirrors: Sequence[str] = (),
    ) -> None:
        self.row = row
        self.run_id = row.run_id
        self.clock = clock
        self._target = target
        self._panel = panel
        self.price = price
        self.result: RecordedRun | None = None
        """What was recorded, once the run has ended."""
        self._progress = Progress()
        self._usd_per_second = cost_usd(1.0, row)
        self._seq = 0
        self._phases_at = 0.0
        self._peaks_at = float("-inf")
        self._keep_rows = keep
        self._checkpoints: list[Checkpoint] = []
        self._episodes: list[Episode] = []
        self._profiles: list[Profile] = []
        self._log = clock.phase("log")
        self._began = counters()
        self._writer = writer
        sampler = resources if isinstance(resources, ResourceSampler) else ResourceSampler() if resources else None
        self._sampler = None if sampler is None else sampler.start()
        self._watching = ExitStack()
        if watch_compilers:
            self._watching.enter_context(compile_phase(clock))
        if writer is not None:
            exits.watch(self)
        self._mirrors: list[Mirroring] = []
        if mirrors:
            from mileage.ledger.trackers import mirrored

            self._mirrors = mirrored(row, mirrors)

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.end()
        elif self._writer is not None and self._writer.forked:
            return
        elif isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            self.end(EndState.STOPPED, type(error).__name__)
        else:
            self.end(EndState.FAILED, f"{type(error).__name__}: {error}")

    # While it runs

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A context manager that spends its body in phase `name`."""
        return self.clock.phase(name)

    @property
    def panel(self) -> Panel | None:
        """The held-out exam, as it was when the run was launched."""
        return self._panel

    @property
    def target(self) -> Target | None:
        """What is to be reached on it."""
        return self._target

    @property
    def reached(self) -> bool:
        """Whether a checkpoint has met the target."""
        return self._progress.first_reached is not None

    @property
    def wall_seconds(self) -> float:
        """Wall-clock so far."""
        return self.clock.times().wall_seconds

    @property
    def cost_usd(self) -> float:
        """Billable cost so far."""
        return cost_usd(self.wall_seconds, self.row)

    @property
    def writes(self) -> bool:
        """Whether rows go to a ledger."""
        return self._writer is not None

    @property
    def problem(self) -> str | None:
        """What keeps rows from the database at the moment, in one sentence; None if nothing does."""
        return None if self._writer is None else self._writer.problem

    def checkpoint(
        self,
        step: int,
        evaluation: Evaluation | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        sha256: str | None = None,
        reset_reasons: Mapping[str, int] | None = None,
        claimed: ReadRecord | None = None,
        at: float | None = None,
    ) -> Checkpoint:
        """Record where the run stands.

        Args:
            step: env steps so far.
            evaluation: the held-out episodes just played, if any: those of the panel, in its order.
            path: the checkpoint file, if one was written.
            sha256: its hash; computed from the file where it is not given.
            reset_reasons: how many episodes were reset for which reason since the last checkpoint.
            claimed: a foreign framework's own figures.
            at: wall-clock seconds of the run at which they came, where that was before this call.
        """
        if self.result is not None:
            raise UsageError(f"run {self.run_id} has ended: a checkpoint cannot be recorded any more")
        step = check_step(step)
        with self._log:
            if evaluation is not None:
                evaluation = examined(self._panel, evaluation)
            if path is not None:
                path = scrubbed_text(check_text("path", os.fspath(path)))
                if sha256 is None and self._writer is not None:
                    sha256 = file_hash(Path(path))
            wall_ns, eval_ns = self.clock.split("eval")
            wall, eval_seconds = wall_ns / 1e9, eval_ns / 1e9
            self._read_peaks(wall)
            if at is not None:  # never before the row before it, nor after now
                last = self._progress.last
                wall = min(wall, max(at, last.wall_seconds if last else 0.0))
                eval_seconds = min(eval_seconds, wall)
            value = met = None
            if evaluation is not None and self._target is not None:
                value, met = finite(self._target.value(evaluation)), self._target.met(evaluation)
            row = Checkpoint(
                run_id=self.run_id, seq=self._next_seq(), step=step, wall_seconds=wall,
                train_seconds=wall - eval_seconds, eval_seconds=eval_seconds, cost_usd=wall * self._usd_per_second,
                success_rate=None if evaluation is None else evaluation.success_rate,
                mean_return=None if evaluation is None else finite(evaluation.mean_return),
                target_value=value, target_met=met,
                reset_reasons=None if reset_reasons is None else check_json("reset_reasons", dict(reset_reasons)),
                path=path, sha256=sha256,
                claimed=None if claimed is None else check_json("claimed", scrubbed_value(dict(claimed))),
                **self._progress.peaks,
            )  # fmt: skip
            self._progress.add(row)
            rows: list[Row] = [row]
            episodes = [] if evaluation is None else episode_rows(self.run_id, row.seq, evaluation)
            rows += episodes
            if self._keep_rows:
                self._checkpoints.append(row)
                self._episodes += episodes
            if wall - self._phases_at >= PHASES_EVERY_SECONDS:
                rows += self._phase_rows(self.clock.times())
            if self._writer is not None:
                self._writer.append(rows, at_once=self._progress.first_reached is row)
            for mirror in self._mirrors:
                mirror.checkpoint(row)
        return row

    def record(self, rows: Sequence[Row]) -> None:
        """Hand over rows of another kind that belong to this run, such as the samples of a benchmark."""
        own = next((row for row in rows if isinstance(row, Run | Checkpoint | Episode | Phase | End)), None)
        if own is not None or any(row.run_id != self.run_id for row in rows):
            what = f"a {type(own).__name__.lower()} row" if own is not None else "a row of another run"
            raise UsageError(f"rows of run {self.run_id} cannot hold {what}: those come of its checkpoints and its end")
        if self._writer is not None:
            self._writer.append([scrubbed_row(row) for row in rows])

    def profile(self, summary: ReadRecord) -> None:
        """Record a profiler's summary under this run's id."""
        text = check_json("profiler summary", scrubbed_value(dict(summary)))
        with self._log:
            self._profiles.append(Profile(self.run_id, self._next_seq(), self.wall_seconds, text))
            if self._writer is not None:
                self._writer.append(self._profiles[-1:])

    def end(self, state: EndState | str | None = None, reason: str = "") -> RecordedRun:
        """Record how the run ended and deliver everything; the first call counts.

        Args:
            state: None means `reached` if a checkpoint met the target, `not_reached` if none did, and `finished` if
                there is no target. What says `reached` and has no such checkpoint is `claimed`.
            reason: why, in a few words.
        """
        if self.result is not None:
            return self.result
        if state is None:
            missed = EndState.FINISHED if self.target is None else EndState.NOT_REACHED
            state = EndState.REACHED if self.reached else missed
            if not reason:
                reason = "" if self.reached else "the budget was used up" if self.target else "no target was set"
        try:
            state = EndState(state)
        except ValueError:
            raise UsageError(f"state {state!r} is not an end state: use one of {', '.join(EndState)}") from None
        if state is EndState.REACHED and not self.reached:
            state, reason = EndState.CLAIMED, reason or "claimed: no checkpoint of it met the target"
        exits.forget(self)
        self._watching.close()
        gpus = None if self._writer is not None and self._writer.forked else self._stop_sampler()
        times = self.clock.stop()
        phases = self._phase_rows(times)
        if others := between(self._began, counters()).foreign_seconds:
            phases.append(Phase(self.run_id, phases[0].seq, OTHERS, times.wall_seconds, others, 0, True))
        reason = scrubbed_text(reason.encode("utf-8", "replace").decode("utf-8").replace("\0", ""))[:2000]
        ending = Ending(state, reason, time.time(), times.wall_seconds, phases=times.phases, gpus=gpus)
        end = end_row(self.row, self._progress, ending)
        rows = (tuple(self._checkpoints), tuple(phases), tuple(self._episodes), tuple(self._profiles))
        self.result = RecordedRun(self.row, end, *rows, in_ledger=self._writer is not None)
        if self._writer is not None:
            launch.end()
            self._writer.append([*phases, end])
            self._writer.close()
            for mirror in self._mirrors if not self._writer.forked else ():
                mirror.end(end)
        return self.result

    # Building rows

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _phase_rows(self, times: PhaseTimes) -> list[Phase]:
        self._phases_at = times.wall_seconds
        return phase_rows(self.run_id, self._next_seq(), times)

    def _read_peaks(self, wall: float) -> None:
        if self._sampler is not None and wall - self._peaks_at >= PEAKS_EVERY_SECONDS:
            self._peaks_at = wall
            self._progress.see(self._sampler.peaks().readings)

    def _stop_sampler(self) -> str | None:
        if self._sampler is None:
            return None
        peaks = self._sampler.stop()
        self._progress.see(peaks.readings)
        return None if peaks.per_gpu is None else check_json("gpus", peaks.per_gpu)
