"""The rows of the ledger. A row is written once and never changed.

Rows are named tuples: immutable like frozen dataclasses, and ten times cheaper to make, which matters for a row that
may be written a thousand times a second. Fields that hold structure (config, machine, reset reasons) are JSON text.

Format history (`FORMAT_VERSION`, written into every run and every spool file):
    1  first format
"""

from __future__ import annotations

import functools
import math
import numbers
import os
import re
import time
import types
import typing
from enum import StrEnum
from typing import Any, NamedTuple

from mileage.errors import UsageError
from mileage.records import Record, strict_json

FORMAT_VERSION = 1

MAX_NAME = 200
MAX_TEXT = 4_096
MAX_JSON = 1_000_000
MOST_USD_PER_HOUR = 1e12

_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,63}")


class EndState(StrEnum):
    """How a run ended."""

    REACHED = "reached"
    """Its target was met by a checkpoint."""
    NOT_REACHED = "not_reached"
    """It used its budget without meeting the target."""
    FINISHED = "finished"
    """It used its budget, and had no target to meet."""
    FAILED = "failed"
    """It raised an error."""
    CRASHED = "crashed"
    """Its process disappeared without writing an end."""
    STOPPED = "stopped"
    """Someone stopped it."""
    CLAIMED = "claimed"
    """Whoever imported it says that it met its target, and has no episodes to show for it."""


class ClosedBy(StrEnum):
    """Who wrote an end row."""

    SELF = "self"
    """The run itself; this is what counts when both are there."""
    OPENER = "opener"
    """Whoever opened the ledger next and found the process gone."""


class Run(NamedTuple):
    """What was launched; written before training starts."""

    run_id: str
    """Unique; begins with the launch time."""
    name: str
    """Given by the user; the runs of one arm share it."""
    launched_at: float
    """Seconds since the epoch when the row was made."""
    started_at: float
    """Seconds since the epoch when the run's clock started (process start)."""
    launched_by: str
    """User name."""
    host: str
    """Host name."""
    pid: int
    """Process id."""
    process_token: str
    """Identifies the process beyond its reusable id: boot id and start time."""
    framework: str
    """What trained: `mileage`, or the foreign library."""
    algorithm: str
    """`ppo`, `sac`, …"""
    env_id: str
    """What was trained on."""
    config: str
    """JSON of all hyperparameters."""
    git_revision: str | None
    """Revision of the working directory, with `+dirty` where it had changes."""
    command: str
    """Command line."""
    seed: int | None
    """Training seed."""
    panel: str | None
    """Canonical JSON of the held-out panel."""
    panel_id: str | None
    """Hash of the panel."""
    success: str | None
    """Success definition of the panel."""
    target: str | None
    """`mean_return>=475.0`"""
    eval_every_steps: int | None
    """Evaluation cadence."""
    batch_size: int | None
    """Env steps per update."""
    step_budget: int | None
    """Env steps after which the run gives up."""
    step_rule: str
    """What one env step is: `env_steps`, or `frames/4` where a frame-skip of 4 counts frames."""
    accounting_window: str
    """What is billable: `wall-clock` is everything from the start of the run's clock to its end."""
    machine: str
    """JSON of the machine fingerprint."""
    machine_id: str
    """Hash of the machine fingerprint."""
    instances: int
    """Number of billed instances."""
    instance: str | None
    """Instance type, by the name of the price book."""
    price_usd_per_hour: float
    """Frozen at launch, per instance; 0 means that no price was set."""
    price: str
    """JSON of the frozen price: parts, market, source, date."""
    parent_run_id: str | None
    """The run this one resumes."""
    mileage_version: str
    """Version that wrote the row."""
    format_version: int
    """`FORMAT_VERSION` of the row."""


class Checkpoint(NamedTuple):
    """Where a run stood at one checkpoint; all seconds and dollars are since the run's start."""

    run_id: str
    seq: int
    """Position among all rows of the run."""
    step: int
    """Env steps so far."""
    wall_seconds: float
    train_seconds: float
    """Wall-clock minus evaluation."""
    eval_seconds: float
    cost_usd: float
    """Billable cost so far."""
    success_rate: float | None
    mean_return: float | None
    target_value: float | None
    """The number the target looks at."""
    target_met: bool | None
    peak_rss_gb: float | None
    peak_gpu_gb: float | None
    """Of the fullest GPU; absent is None, never 0."""
    reset_reasons: str | None
    """JSON of counts: why episodes were reset since the last checkpoint."""
    path: str | None
    sha256: str | None
    """Hash of the checkpoint file."""
    claimed: str | None
    """JSON of a foreign framework's own figures, kept beside ours."""


class Phase(NamedTuple):
    """Seconds of one phase of a run, total since its start."""

    run_id: str
    seq: int
    phase: str
    wall_seconds: float
    """Wall-clock of the run when the totals were taken."""
    seconds: float
    entries: int
    """How often the phase was entered."""
    beside: bool
    """True for busy time of collector threads, which is not part of the wall-clock."""


class Episode(NamedTuple):
    """One episode of a held-out evaluation."""

    run_id: str
    seq: int
    """`seq` of the checkpoint that was evaluated."""
    episode: int
    """Position in the panel."""
    seed: int
    episode_return: float | None
    length: int
    success: bool | None


class Profile(NamedTuple):
    """A profiler's summary of the run."""

    run_id: str
    seq: int
    wall_seconds: float
    summary: str
    """JSON."""


class End(NamedTuple):
    """How a run ended, with the totals a report needs, so that listing never reads checkpoints."""

    run_id: str
    closed_by: str
    state: str
    reason: str
    ended_at: float
    """Seconds since the epoch."""
    env_steps: int
    wall_seconds: float
    train_seconds: float
    eval_seconds: float
    init_seconds: float
    compile_seconds: float
    billable_seconds: float
    """Wall-clock times number of instances."""
    cost_usd: float
    success_rate: float | None
    """At the first checkpoint that met the target, otherwise at the last evaluated one."""
    mean_return: float | None
    steps_to_target: int | None
    wall_to_target: float | None
    cost_to_target: float | None
    target_seq: int | None
    """`seq` of the first checkpoint that met the target."""
    checkpoints: int
    peak_rss_gb: float | None
    peak_gpu_gb: float | None
    gpus: str | None
    """JSON: peak memory and mean utilisation per GPU."""


class BuildSample(NamedTuple):
    """One timed build of a build benchmark."""

    run_id: str
    arm: str
    """`baseline`, or the mode."""
    kind: str
    """`cold` or `incremental`."""
    round: int
    order: int
    """Position among all samples of the run."""
    outcome: str
    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    peak_rss_bytes: int
    diagnostic: str
    """First line of what a failed build said."""
    ts: str
    """When it ended, in UTC."""


class BuildKpi(NamedTuple):
    """What a build benchmark found of one mode, against the baseline; the names are those of queries that exist.

    `slicer_*` is the accelerated mode, whatever it is.
    """

    run_id: str
    seq: int
    """Position among the modes of the run."""
    project: str | None
    mode: str | None
    baseline_cold_secs: float | None
    slicer_cold_secs: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    verdict: str | None
    baseline_throughput_per_hr: float | None
    slicer_throughput_per_hr: float | None
    baseline_incr_secs: float | None
    slicer_incr_secs: float | None
    incr_speedup: float | None
    pass_rate: float | None
    pass_rate_source: str | None
    secs_per_valid_sample: float | None
    usd_per_valid_sample: float | None
    gpus: int | None
    rollout_fraction: float | None
    rollout_bound_per_cluster_hr: float | None
    training_loop_per_cluster_hr: float | None
    training_loop_gain: float | None
    revision: str | None
    """Of the project."""
    ts: str | None
    """When the benchmark began, in UTC."""


class NoteKind(StrEnum):
    """What a note does to its run."""

    VOID = "void"
    """The run does not count: it stays, and is labelled wherever it is shown."""
    ANNOTATION = "annotation"
    """Something worth knowing about it."""
    REDACTION = "redaction"
    """A field of its record was emptied; the one trace of a row that was changed."""


class Note(NamedTuple):
    """What somebody said about a run after the fact."""

    run_id: str
    note_id: str
    """Unique; begins with the time."""
    noted_at: float
    """Seconds since the epoch."""
    noted_by: str
    """User name."""
    kind: str
    """A `NoteKind`."""
    field: str | None
    """Which field was redacted."""
    text: str
    """Why, in the words of who made it."""


Row = Run | Checkpoint | Phase | Episode | Profile | BuildSample | BuildKpi | Note | End
ROW_TYPES: dict[str, type[Any]] = {
    "run": Run,
    "checkpoint": Checkpoint,
    "phase": Phase,
    "episode": Episode,
    "profile": Profile,
    "sample": BuildSample,
    "kpi": BuildKpi,
    "note": Note,
    "end": End,
}
KIND_OF: dict[type[Any], str] = {row_type: kind for kind, row_type in ROW_TYPES.items()}


def new_run_id(now: float | None = None) -> str:
    """A fresh run id that begins with the launch time, such as `20260901-142233-9f86d081`."""
    now = time.time() if now is None else now
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    return f"{stamp}-{os.urandom(4).hex()}"


def check_run_id(run_id: str) -> str:
    """`run_id` if it is one: it becomes part of file names, so nothing but letters, digits, `-` and `_`."""
    if not isinstance(run_id, str) or _RUN_ID.fullmatch(run_id) is None:
        raise UsageError(f"run id {str(run_id)[:80]!r} is not one: use up to 64 letters, digits, '-' and '_'")
    return run_id


def check_text(field: str, text: str, limit: int = MAX_TEXT) -> str:
    """`text` if every database can hold it: not too long, no NUL, valid Unicode."""
    if not isinstance(text, str):
        raise UsageError(f"{field} must be a string, not {type(text).__name__}")
    if len(text) > limit:
        raise UsageError(f"{field} is {len(text):,} characters long: shorten it to {limit:,}")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise UsageError(f"{field} contains a character no database can store (NUL or a lone surrogate): remove it")
    return text


def check_step(step: object) -> int:
    """`step` as a whole number that every database can hold."""
    try:
        whole: int = int(step)  # type: ignore[call-overload]
    except (TypeError, ValueError, OverflowError):
        whole = -1
    if not 0 <= whole < 2**63 or whole != step:
        raise UsageError(f"step must be a whole number of steps, 0 or more, not {str(step)[:80]}")
    return whole


def check_json(field: str, value: object) -> str:
    """The JSON text of `value` if it is plain and not too long."""
    try:
        text = strict_json(value, sort_keys=True, separators=(",", ":"), default=str)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{field} must be plain JSON (strings, numbers, lists, dicts): {error}") from None
    if len(text) > MAX_JSON:
        raise UsageError(f"{field} is {len(text):,} characters of JSON: keep it under {MAX_JSON:,}")
    return text


@functools.cache
def field_types(kind: str) -> dict[str, tuple[type, ...]]:
    """What each field of a row may hold; whole numbers are fine where numbers are."""
    found = {}
    for name, hint in typing.get_type_hints(ROW_TYPES[kind]).items():
        allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[name] = (*allowed, int) if float in allowed else allowed
    return found


def check_types(row: Any) -> Any:
    """`row` if every field has its type; a row from a file may hold anything."""
    for name, allowed in field_types(KIND_OF[type(row)]).items():
        value = getattr(row, name)
        if type(value) not in allowed:
            raise UsageError(f"{name} of a {KIND_OF[type(row)]} row cannot be {str(value)[:80]!r}")
        if isinstance(value, str):
            check_text(name, value, MAX_JSON)
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise UsageError(f"{name} of a {KIND_OF[type(row)]} row is too large: {str(value)[:80]}")
        elif isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name} of a {KIND_OF[type(row)]} row must be a finite number, not {value}")
    return row


def check_run(run: Run) -> Run:
    """`run` if every text in it can be stored and printed later, and every number is one that a database can hold."""
    check_run_id(run.run_id)
    # Numbers of NumPy count as those that they stand for.
    given: Record = {name: each for name, each in run._asdict().items() if not isinstance(each, bool)}
    whole: Record = {name: int(each) for name, each in given.items() if isinstance(each, numbers.Integral)}
    run = check_types(run._replace(**whole))
    if run.parent_run_id is not None:
        check_run_id(run.parent_run_id)
    limits = {"name": MAX_NAME, "config": MAX_JSON, "machine": MAX_JSON, "panel": MAX_JSON, "price": MAX_JSON}
    for field, value in zip(run._fields, run, strict=True):
        if isinstance(value, str):
            check_text(field, value, limits.get(field, MAX_TEXT))
        elif field in ("batch_size", "step_budget", "eval_every_steps") and value is not None and value < 0:
            raise UsageError(f"{field} of a run must be 0 or more, not {value}")
    if not run.name:
        raise UsageError("name of a run must not be empty")
    if run.instances < 1:
        raise UsageError(f"instances must be at least 1, not {run.instances}")
    if not 0.0 <= run.price_usd_per_hour * run.instances < MOST_USD_PER_HOUR:
        raise UsageError(
            f"price_usd_per_hour must be 0 or more, and below {MOST_USD_PER_HOUR:,.0f} for all instances, not "
            f"{run.price_usd_per_hour:g} for {run.instances:,}"
        )
    return run
