"""`mileage train --on …` and `--emit …`: the same seeds elsewhere, and job files as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mileage._errors import UsageError
from mileage.placing.jobs import Job, Needs, words_without
from mileage.text import plain

if TYPE_CHECKING:
    from mileage.cli.train import Arguments
    from mileage.ledger.runs import RecordedRun

_OURS = ("--on", "--emit", "--cores", "--memory", "--gpus", "--retries", "--patience")
_PER_JOB = ("--seeds", "--seed", "--out", "--db")
_FLAGS = ("--json", "--quiet", "-q")
_AGAIN = {
    "--target": "target", "--steps": "", "--name": "name", "--price": "price", "--instance": "instance",
    "--eval-every": "eval_every", "--checkpoint-every": "checkpoint_every", "--threads": "threads",
}  # fmt: skip
"""Options that an attempt which goes on from a checkpoint is told again; the checkpoint knows how far to train."""


def needs_of(wanted: Arguments, default_cores: int = 1) -> Needs:
    """What the options ask of a machine."""
    return Needs(wanted.cores or default_cores, wanted.memory, wanted.gpus)


def own_words() -> list[str]:
    """What was typed after `mileage train`."""
    return list(sys.argv[sys.argv.index("train") + 1 :]) if "train" in sys.argv else []


def emitted(wanted: Arguments, words: Sequence[str]) -> str:
    """The job file that runs the same command."""
    from mileage.placing.manifests import manifest

    assert wanted.emit is not None
    name = wanted.name or f"{wanted.algorithm}-{wanted.env}"
    return manifest(wanted.emit, ["train", *words_without(words, *_OURS)], needs_of(wanted), name)


def jobs_of(wanted: Arguments, words: Sequence[str], directory: str, needs: Needs, share: float) -> list[Job]:
    """A job for each seed."""
    from pathlib import Path

    plain_words = [word for word in words_without(words, *_OURS, *_PER_JOB) if word not in _FLAGS]
    again: list[str] = [] if wanted.env is None or ":" not in wanted.env else [str(wanted.algorithm), wanted.env]
    for option, field in _AGAIN.items():
        value = getattr(wanted, field) if field else None
        if value is not None:
            again += [option, str(value)]
    again += ["--spot"] if wanted.spot else []
    variables = {} if share == 1.0 else {"MILEAGE_PRICE_SHARE": repr(share)}
    return [
        Job(
            f"seed {seed}", (*plain_words, "--seed", str(seed)), tuple(again), Path(directory) / f"seed-{seed}", needs,
            variables,
        )
        for seed in range(wanted.seed, wanted.seed + wanted.seeds)
    ]  # fmt: skip


def run_elsewhere(wanted: Arguments, words: Sequence[str]) -> list[RecordedRun]:
    """Train all seeds where `--on` says; every attempt is in the ledger when this returns."""
    from mileage.ledger.address import check_is_database, database_url
    from mileage.placing.driver import Settings, batch, drive
    from mileage.placing.local import Local
    from mileage.placing.places import place_called

    assert wanted.on is not None
    if wanted.resume is not None:
        raise UsageError("--on places whole runs: drop --resume")
    if not wanted.ledger:
        raise UsageError("--on brings results back through the ledger: drop --no-ledger")
    check_is_database(database_url(wanted.db))
    place = place_called(wanted.on)
    share = place.share if isinstance(place, Local) else 1.0
    needs = needs_of(wanted, place.cores_each if isinstance(place, Local) else 1)
    try:
        place.check(needs)
        with batch(wanted.out.resolve() / "placed", wanted.db) as directory:
            jobs = jobs_of(wanted, words, str(directory), needs, share)
            tell = _silent if wanted.json_output or wanted.quiet else _say
            results = drive(jobs, place, wanted.db, Settings(wanted.retries, wanted.patience), tell)
    finally:
        place.close()
    failed = [result for result in results if not result.run_ids]
    if failed:
        raise UsageError(f"{failed[0].job.name} left no run: {failed[0].ended.why}")
    return _recorded([result.run_ids[-1] for result in results], wanted.db)


def _recorded(run_ids: Sequence[str], db: str | None) -> list[RecordedRun]:
    from mileage.ledger import queries
    from mileage.ledger.store import Store

    with Store(db) as store:
        runs = [store.read(queries.complete, store.read(queries.only_record, i), episodes_too=True) for i in run_ids]
        return store.read(queries.with_parents, runs)


def _say(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    pass
