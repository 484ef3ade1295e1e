"""Halves of one race, run on two machines or on two days, as one race in a directory of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from mileage._errors import UsageError
from mileage._records import Record
from mileage.ledger import queries
from mileage.ledger.imports import take_in
from mileage.ledger.store import Store
from mileage.racing.journal import FILE, LEDGER, ended, parsed, read_lines
from mileage.racing.result import Race, read_race


def merge(directories: Sequence[Path], out: Path) -> Race:
    """Put the journals and ledgers of `directories` together in the new directory `out`.

    They must be of the same race, and no attempt may be in two of them: whoever has run it twice has to say which one
    counts, and not we.
    """
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty: name a new directory for the merged race")
    halves = [read_lines(each) for each in directories]
    heads = [lines[0] for lines in halves]
    for directory, head in zip(directories, heads, strict=True):
        if head["digest"] != heads[0]["digest"]:
            raise UsageError(
                f"{directory} is of another race than {directories[0]}: only halves of one race are merged"
            )
    owner: dict[tuple[str, int], Path] = {}
    for directory, lines in zip(directories, halves, strict=True):
        for attempt in ended(lines):
            key = (attempt.arm, attempt.seed)
            if attempt.counted and owner.setdefault(key, directory) != directory:
                both = f"{owner[key]} and in {directory}"
                raise UsageError(f"seed {attempt.seed} of arm {attempt.arm!r} is in {both}: an attempt counts once")
    out.mkdir(parents=True, exist_ok=True)
    with Store(out / LEDGER) as store:
        for directory in directories:
            with Store.reader(directory / LEDGER) as half:
                for run in half.read(queries.records, newest_first=False):
                    take_in(store, half.rows_of(run.run_id))
    _write_journal(out / FILE, heads, halves)
    return read_race(out)


def _write_journal(path: Path, heads: Sequence[Record], halves: Sequence[Sequence[Record]]) -> None:
    """One journal: the first head with all hosts, then everything else as it happened."""
    from mileage._records import strict_json

    hosts = list(dict.fromkeys(host for head in heads for host in head.get("hosts", [head["host"]])))
    rest = sorted(
        (line for lines in halves for line in lines[1:] if line["event"] != "stopped"), key=lambda line: line["at"]
    )
    data = b"".join(strict_json(line, sort_keys=True).encode() + b"\n" for line in [heads[0] | {"hosts": hosts}, *rest])
    parsed(data, path)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
