"""`mileage bench`: the primitives on this machine, alone or side by side with other libraries."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage.profiling.bench import ExportFormat
from mileage.tables import write_text

if TYPE_CHECKING:
    from mileage.profiling.bench.baseline import BaselineCheck
    from mileage.profiling.bench.suite import PrimitivesReport
    from mileage.records import ReadRecord

_QUICK_ROUNDS, _ROUNDS = 5, 15
_QUICK_SECONDS, _SECONDS = 3.0, 12.0
# Processes in which a baseline is measured, and how one is told to measure controls as well.
_PASSES = 3
_CONTROLS = "MILEAGE_BENCH_CONTROLS"


def bench(
    primitive: Annotated[list[str] | None, Argument(help="What to measure; default: everything.")] = None,
    list_only: Annotated[bool, Option("--list", help="List the primitives and who else does them.")] = False,
    peers: Annotated[bool, Option("--peers", help="Also measure the other libraries that are installed.")] = False,
    peer_python: Annotated[
        list[Path] | None,
        Option(help="Python that has other libraries, implies --peers; default: this one; may be repeated."),
    ] = None,
    peers_from: Annotated[
        Path | None,
        Option(
            envvar="MILEAGE_PEERS",
            help="Folder benchmarks/primitives of a clone, which drives other libraries; default: that of this source.",
        ),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Five rounds, without what takes long to set up.")] = False,
    rounds: Annotated[int | None, Option(help="Samples of each arm; default: 15, or 5 with --quick.")] = None,
    json_output: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
    export: Annotated[
        list[ExportFormat] | None, Option(help="Also write the report in this format; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, Option(help="File for --export, its suffix that of the format; default: bench.json, …")
    ] = None,
    save_baseline: Annotated[Path | None, Option(help="Keep this run to compare later ones with.")] = None,
    baseline: Annotated[
        Path | None, Option(help="Compare with this earlier run of the same machine; exits with 1 if slower.")
    ] = None,
    tolerance: Annotated[float, Option(help="How much slower is a regression: 0.15 is 15 %.")] = 0.15,
) -> None:
    """Time the primitives on this machine: median and spread, with warnings where a number is not to be trusted."""
    from mileage.measure import fingerprint
    from mileage.profiling.bench import baseline as bench_baseline
    from mileage.profiling.bench import peers as clones
    from mileage.profiling.bench import suite as bench_run
    from mileage.profiling.bench.cases import chosen

    cases = chosen(primitive or (), quick)
    if list_only:
        _print_list(peers_from)
        return
    earlier = bench_baseline.load(baseline, fingerprint().hardware_id) if baseline else None
    pythons = tuple(peer_python or ([Path(sys.executable)] if peers else ()))
    usual, seconds = (_QUICK_ROUNDS, _QUICK_SECONDS) if quick else (_ROUNDS, _SECONDS)
    controlled = save_baseline is not None or baseline is not None
    options = bench_run.BenchOptions(rounds or usual, seconds, controls=controlled or os.environ.get(_CONTROLS) == "1")
    folder = clones.find(peers_from) if pythons else None
    with clones.opened(folder, pythons, fingerprint().cores) as others, _progress(quiet=json_output) as on_progress:
        command = shown_command(sys.argv[1:])
        report = bench_run.run(cases, options, others=others, command=command, on_progress=on_progress)
    again = functools.partial(_again, quick=quick, rounds=options.rounds)
    check = bench_baseline.check(report, earlier, tolerance, again) if earlier else None
    if json_output:
        print(clones.to_json(report))
    else:
        _print_report(report)
        if check is not None:
            _print_check(check)
    for form in export or ():
        path = (output or Path("bench")).with_suffix(f".{form.value}")
        write_text(path, clones.to_text(report, form), "--output")
        typer.echo(f"wrote {path}", err=True)
    if save_baseline:
        bench_baseline.save(report, save_baseline, [again(primitive or ()) for _ in range(_PASSES - 1)])
        typer.echo(f"wrote {save_baseline}", err=True)
    if check is not None and check.regressions:
        raise typer.Exit(1)


def _again(names: Sequence[str], *, quick: bool, rounds: int) -> ReadRecord:
    """Measure primitives once more in a process of its own: much of what differs between runs differs by process."""
    from mileage.errors import UsageError

    typer.echo(f"measuring again: {', '.join(names) or 'everything'}", err=True)
    command = [sys.executable, "-m", "mileage", "bench", *names, "--json", "--rounds", str(rounds)]
    command += ["--quick"] if quick else []
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, _CONTROLS: "1"})
    if done.returncode:
        raise UsageError(f"measuring {', '.join(names)} again failed: {done.stderr.strip().splitlines()[-1:]}")
    record: ReadRecord = json.loads(done.stdout)
    return record


def shown_command(arguments: list[str]) -> str:
    """The command as somebody else would type it: interpreters by their last two or three parts."""
    shown = []
    for argument in arguments:
        path = Path(argument)
        local = path.is_absolute() and path.parent.name == "bin"
        shown.append(str(Path(*path.parts[-3:])) if local else argument)
    return shlex.join(["mileage", *shown])


def _print_list(peers_from: Path | None) -> None:
    """All primitives; without a clone nobody can say who else does them."""
    from rich.console import Console

    from mileage.errors import UsageError
    from mileage.profiling.bench import peers as clones
    from mileage.profiling.bench.cases import CASES
    from mileage.tables import Table

    libraries: Mapping[str, Sequence[str]] = {}
    try:
        libraries = clones.known(clones.find(peers_from))
    except UsageError:
        if peers_from is not None:
            raise
    header = ("primitive", "measured as", "also by") if libraries else ("primitive", "measured as")
    rows = []
    named = ""
    for case in CASES:
        first = case.primitive != named
        named = case.primitive
        row = (named, case.title, ", ".join(libraries.get(named, ()))) if first else ("", case.title, "")
        rows.append(row[: len(header)])
    Console().print(Table.of(header, rows, left=header, title="Primitives").terminal())


def _print_report(report: PrimitivesReport) -> None:
    from rich.console import Console

    from mileage.profiling.bench.peers import machine_line, summary_table, warning_lines

    record = report.record()
    console = Console()
    console.print(summary_table(record).terminal())
    console.print(machine_line(record), highlight=False, markup=False)
    for line in warning_lines(record):
        console.print(f"warning: {line}", highlight=False, markup=False)


def _print_check(check: BaselineCheck) -> None:
    from mileage.profiling.bench.baseline import Change
    from mileage.profiling.bench.peers import duration, times

    for line in check.versions:
        print(f"not the baseline's software: {line}")
    for each in check.changes:
        if each.change is not Change.SAME:
            took = f"{duration(each.before)} → {duration(each.after)}"
            against = f"at least {times(each.least)} against its control, measured {each.measured} times"
            print(f"{each.change.value}: {each.title}, {took}" + (f" ({against})" if each.least > 1.0 else ""))
    for title in check.new:
        print(f"not in the baseline: {title}")
    if check.busy:
        print("others used the machine: times count by those of controls, and by CPU time")
    slower = len(check.regressions)
    print(f"{slower} of {len(check.changes)} cases slower than the baseline" if slower else "no regression")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Say on standard error which case is on: a bar on a terminal, one line per case elsewhere."""
    if quiet:
        yield lambda done, total, title: None
        return
    if not sys.stderr.isatty():
        yield lambda done, total, title: typer.echo(f"[{done + 1}/{total}] {title}", err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, title: bar.update(task, completed=done, total=total, description=title)
