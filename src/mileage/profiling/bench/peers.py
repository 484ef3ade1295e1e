"""Where the code that drives other libraries is, and a run of the benchmarks as JSON, Markdown, CSV and text."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from mileage.errors import UsageError
from mileage.measure import Cause, Caveat
from mileage.measure.timing import ratio_of
from mileage.profiling.bench import ExportFormat
from mileage.profiling.bench.suite import OURS, Others, PrimitivesReport
from mileage.records import ReadRecord, Record, strict_json
from mileage.tables import Cell, Strong, Table

_NAME = "primitives"
# Of an editable install, whose package lies in src/mileage of the clone.
_BESIDE = Path(__file__).resolve().parents[4] / "benchmarks" / _NAME


def find(given: Path | None = None) -> Path:
    """The folder `benchmarks/primitives` of a clone: the one given, or the one beside this very source."""
    folder = _BESIDE if given is None else given
    if (folder / "__init__.py").is_file() and (folder / "worker.py").is_file():
        return folder
    if given is not None:
        raise UsageError(f"--peers-from {given} holds no peers: name the folder benchmarks/{_NAME} of a clone")
    raise UsageError(
        "the code that drives other libraries comes with a clone of the repository: "
        f"clone it and add --peers-from CLONE/benchmarks/{_NAME}"
    )


def known(folder: Path) -> Mapping[str, Sequence[str]]:
    """Names of the libraries that do a job, by primitive, installed or not."""
    peers = _package(folder).PEERS
    return {primitive: [peer.library for peer in others] for primitive, others in peers.items()}


@contextlib.contextmanager
def opened(folder: Path | None, pythons: Sequence[Path], threads: int) -> Iterator[list[Others]]:
    """The libraries of these interpreters, each in a process of its own that ends with the context."""
    with contextlib.ExitStack() as stack:
        found: list[Others] = []
        for python in pythons:
            assert folder is not None
            package = _package(folder)
            channel = package.ProcessChannel(python)
            stack.callback(channel.close)
            found.append(package.PeerLibraries(channel, threads))
        yield found


def _package(folder: Path) -> ModuleType:
    loaded = sys.modules.get(_NAME)
    if loaded is not None and loaded.__file__ == str(folder / "__init__.py"):
        return loaded
    places = [str(folder)]
    spec = importlib.util.spec_from_file_location(_NAME, folder / "__init__.py", submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    return module


# --- A run of the benchmarks as JSON, Markdown, CSV and a table for a terminal ---
# Cases that a gathered warning names.
_NAMED = 3


def duration(seconds: float) -> str:
    """Seconds with three digits and the unit that fits: "8.30 µs"."""
    for scale, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if seconds * scale < 999.5:
            return f"{_digits(seconds * scale)} {unit}"
    return f"{_digits(seconds)} s"


def rate(work: float, unit: str, seconds: float) -> str:
    """Work per second with three digits: "123 M steps/s", "186 GFLOP/s"."""
    value = work / seconds
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{_digits(value / scale)} {prefix}{_unit(unit)}/s"
    return f"{_digits(value)} {_unit(unit).strip()}/s"


def _unit(unit: str) -> str:
    return {"FLOP": "FLOP", "bytes": "B"}.get(unit, f" {unit}")


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def times(ratio: float) -> str:
    """A ratio: "7.3×"."""
    return f"{_digits(ratio) if ratio < 9.995 else f'{ratio:,.0f}'}×"


def summary_rows(record: ReadRecord) -> list[Record]:
    """One row per case from a report's record: own time, spread, rate, and peers, fastest first."""
    rows = []
    for case in record["cases"]:
        arms = {arm["arm"]: arm for arm in case["arms"]}
        ours = arms.pop(OURS)
        # The library alone; in which of its ways is in the record.
        own = ours["samples"]
        peers = [(name.split(",")[0], arm["median"], ratio_of(arm["samples"], own)) for name, arm in arms.items()]
        row = {"title": case["title"], "median": ours["median"], "spread": ours["spread"]}
        speed = rate(case["work"], case["unit"], ours["median"])
        rows.append(row | {"rate": speed, "peers": sorted(peers, key=lambda peer: peer[2])})
    return rows


def peer_cells(peers: list[tuple[str, float, float]]) -> tuple[str, str]:
    """The fastest other library in full, and the others by their ratios alone."""
    if not peers:
        return "–", ""
    name, seconds, ratio = peers[0]
    return f"{name}: {duration(seconds)} ({times(ratio)})", ", ".join(f"{n} {times(r)}" for n, _, r in peers[1:])


def summary_table(record: ReadRecord) -> Table:
    """The table of a report's record, with peers if it has any."""
    rows = summary_rows(record)
    others = ("fastest other", "others") if any(row["peers"] for row in rows) else ()
    cells = [
        (row["title"], Strong(duration(row["median"])), f"{row['spread']:.0%}", row["rate"])
        + (peer_cells(row["peers"]) if others else ())
        for row in rows
    ]
    header = ("primitive", OURS, "spread", "rate", *others)
    return Table.of(header, cells, left=("primitive", *others), title="Micro-benchmarks")


def machine_line(record: ReadRecord) -> str:
    """When and where a report was made, and with which versions."""
    machine = record["machine"]
    versions = {**machine["versions"], **record["versions"]}
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    load = record["readings"][0]["load"]
    return (
        f"{record['time']}, {machine['cores']} cores of {machine['cpu'] or 'an unknown CPU'}, load {load:.1f}, "
        f"Python {machine['python']}, {named}."
    )


def warning_lines(record: ReadRecord) -> list[str]:
    """Everything to keep in mind about a report."""
    lines = [f"{each['evidence']}: {Caveat(Cause[each['kind']], '')}" for each in record["conditions"]]
    lines += _grouped(record["cases"])
    lines += [f"{each['case']}: {each['library']} is left out ({each['why']})" for each in record["absent"]]
    return lines


def _grouped(cases: Sequence[ReadRecord]) -> list[str]:
    """One line per kind of warning, with the arms it is about; the evidence of each is in the record."""
    where: dict[tuple[str, str], dict[str, list[str]]] = {}
    for case in cases:
        for each in case["warnings"]:
            where.setdefault((each["kind"], each["remedy"]), {}).setdefault(case["title"], []).append(each["arm"])
    lines = []
    for (kind, remedy), titles in where.items():
        named = [f"{title}: {', '.join(arms)}" for title, arms in titles.items()]
        rest = [f"{len(named) - _NAMED} more cases"] if len(named) > _NAMED else []
        count = sum(map(len, titles.values()))
        lines.append(f"{kind} in {count} arm{'s' * (count > 1)} ({'; '.join(named[:_NAMED] + rest)}): {remedy}")
    return lines


def to_json(report: PrimitivesReport) -> str:
    """Everything, raw samples included."""
    return strict_json(report.record())


def to_markdown(report: PrimitivesReport) -> str:
    """A page to read."""
    record = report.record()
    note = (
        "Medians over rounds in which all arms take turns; spread is the interquartile range over the median; in "
        f"brackets and among the others, how many times as long as {OURS} in the same rounds."
    )
    parts = ["# Micro-benchmarks", f"`{report.command}`", machine_line(record), note, summary_table(record).markdown()]
    warnings = warning_lines(record)
    if warnings:
        parts += ["## To keep in mind", "\n".join(f"- {line}" for line in warnings)]
    return "\n\n".join(parts) + "\n"


def to_csv(report: PrimitivesReport) -> str:
    """One line per case and arm."""
    header = ("primitive", "case", "arm", "median_s", "best_s", "spread", "cpu_s", "rounds", "times_mileage")
    rows: list[list[Cell]] = []
    for result in report.results:
        for each in result.comparison.measurements:
            ratio = result.comparison.ratio(each.arm, OURS)
            times = [each.median, each.best, each.spread, each.median_cpu]
            row: list[Cell] = [result.case.primitive, result.case.title, each.arm, *(f"{value:.6g}" for value in times)]
            rows.append([*row, len(each.samples), f"{ratio:.4g}"])
    return Table.of(header, rows).csv()


def to_text(report: PrimitivesReport, form: ExportFormat) -> str:
    """The report in one of the formats."""
    return {ExportFormat.JSON: to_json, ExportFormat.MD: to_markdown, ExportFormat.CSV: to_csv}[form](report)
