"""JSON: everything, and back again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import NoneType
from typing import Any

from mileage._errors import UsageError
from mileage._records import Record, strict_json
from mileage.ledger.formats.flat import JSON_FIELDS, unpacked
from mileage.ledger.rows import FORMAT_VERSION, ROW_TYPES, Row, check_run, check_types, field_types
from mileage.ledger.runs import RecordedRun
from mileage.ledger.streams import RunStream

FORMAT = "mileage-ledger"
_PARTS = {f"{kind}s": kind for kind in ("checkpoint", "phase", "episode", "profile", "sample", "kpi", "note")}


def dumps(runs: Sequence[RecordedRun]) -> str:
    """The runs as one JSON document."""
    return "".join(chunks(map(RunStream.of, runs)))


def chunks(runs: Iterable[RunStream]) -> Iterator[str]:
    """The same in parts, a row at a time."""
    yield f'{{"format": "{FORMAT}", "format_version": {FORMAT_VERSION}, "runs": ['
    for i, stream in enumerate(runs):
        recorded = stream.recorded
        end = unpacked(recorded.end._asdict()) if recorded.end else None
        head = {"state": str(recorded.state), "run": unpacked(recorded.run._asdict()), "end": end}
        yield (",\n" if i else "\n") + strict_json(head)[:-1]
        for part, kind in _PARTS.items():
            yield f',\n "{part}": ['
            for j, row in enumerate(stream.rows(kind)):
                yield (",\n  " if j else "\n  ") + strict_json(unpacked(row._asdict()))
            yield "]"
        yield "}"
    yield "]}"


def as_dict(recorded: RecordedRun) -> Record:
    """One run as plain JSON values."""
    end = unpacked(recorded.end._asdict()) if recorded.end else None
    found: Record = {"state": str(recorded.state), "run": unpacked(recorded.run._asdict()), "end": end}
    for part in _PARTS:
        rows = getattr(recorded, "phase_rows" if part == "phases" else part)
        found[part] = [unpacked(row._asdict()) for row in rows]
    return found


def is_ours(document: object) -> bool:
    """Whether a parsed JSON document was written by `dumps`."""
    return isinstance(document, dict) and document.get("format") == FORMAT


def loads(document: Record) -> list[Row]:
    """The rows of a document written by `dumps`; delivering them twice changes nothing."""
    version = document.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        known = f"this mileage reads up to {FORMAT_VERSION}"
        raise UsageError(f"the file has format version {version}, {known}: upgrade it")
    rows: list[Row] = []
    try:
        for entry in document["runs"]:
            run = check_run(_row("run", entry["run"]))
            rows.append(run)
            for part, kind in _PARTS.items():
                rows += [_row(kind, values) for values in entry.get(part, ())]
            if entry.get("end"):
                rows.append(_row("end", entry["end"]))
            if any(row.run_id != run.run_id for row in rows[rows.index(run) :]):
                raise UsageError("the file has rows that belong to another run than the one they are under")
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"the file is not a ledger export: {type(error).__name__} {error}") from None
    return rows


def _row(kind: str, values: Record) -> Any:
    row_type = ROW_TYPES[kind]
    packed = {
        name: strict_json(value, sort_keys=True, separators=(",", ":"))
        if name in JSON_FIELDS and value is not None and not isinstance(value, str)
        else value
        for name, value in values.items()
        if name in row_type._fields
    }
    allowed = field_types(kind)
    missing = [name for name in row_type._fields if name not in packed and NoneType not in allowed[name]]
    if missing:
        raise UsageError(f"a {kind} row of the file has no {missing[0]!r}")
    # What an earlier version did not know is absent.
    return check_types(row_type(**(dict.fromkeys(row_type._fields) | packed)))
