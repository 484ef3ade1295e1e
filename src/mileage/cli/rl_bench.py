"""`mileage rl-bench`: code-RL KPIs of a project, baseline against modes."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from mileage.cli import options
from mileage.errors import UsageError
from mileage.tables import check_writable, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mileage.coderl import BenchReport, Progress


class ReportFormat(StrEnum):
    """A file format of the report."""

    MD = "md"
    HTML = "html"


def rl_bench(
    project: Annotated[Path, Option(help="Root of the project to measure; it is never changed.")] = Path("."),
    runs: Annotated[int, Option(help="Cold builds and incremental checks of each arm.")] = 3,
    mode: Annotated[
        options.Words,
        Option(
            help="One declared difference from the baseline; may be given several times. Default: the modes of "
            "rl-bench.toml, else warm-snapshot (and cargo-slicer, if installed); 'baseline' compares none."
        ),
    ] = None,
    rollout_fraction: Annotated[float, Option(help="Share of the training loop spent in rollouts.")] = 0.80,
    gpus: Annotated[int, Option(help="GPUs of the cluster.")] = 8,
    price: Annotated[float | None, Option(help="Dollars per hour of the machine that builds.")] = None,
    db: options.Database = None,
    samples: Annotated[
        Path | None, Option(help="Candidate patches for the pass rate: a directory of diffs, or JSONL.")
    ] = None,
    step: Annotated[
        options.Words, Option(help="What a candidate must pass: check, build, test; may be repeated.")
    ] = None,
    jobs: Annotated[int | None, Option(help="Parallel jobs of each build; default: one per core.")] = None,
    timeout: Annotated[float, Option(help="Seconds after which a build is killed.")] = 1800.0,
    toolchain: Annotated[str | None, Option(help="rustup toolchain of all arms, e.g. nightly.")] = None,
    kind: Annotated[str | None, Option(help="Build system, if the detected one is not meant.")] = None,
    edit_file: Annotated[str | None, Option(help="File that gets the one-line edit.")] = None,
    lock: Annotated[
        Path | None, Option(help="File to lock during builds, shared by benchmarks that must not overlap.")
    ] = None,
    seed: Annotated[int, Option(help="Seed of the order of measurement.")] = 0,
    ledger: Annotated[bool, Option(help="Whether run, samples and rl_kpi are recorded in the ledger.")] = True,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be run, and stop.")] = False,
    json: Annotated[bool, Option("--json", help="Print the report as JSON.")] = False,
    export: Annotated[ReportFormat | None, Option(help="Also write the report in this format.")] = None,
    output: Annotated[Path | None, Option(help="File for --export; default: rl-bench.md or .html.")] = None,
) -> None:
    """Measure what a project's builds cost a code-RL loop, and what each mode would save."""
    from mileage import coderl

    report_path = _report_path(export, output)
    found = coderl.detect(project, kind, edit_file)
    modes = [each for each in mode if each != coderl.BASELINE] if mode else coderl.default_modes(found)
    config = coderl.BenchConfig(
        runs=runs, modes=tuple(modes), settings=coderl.KpiSettings(rollout_fraction, gpus, price), jobs=jobs,
        timeout_seconds=timeout, toolchain=toolchain, corpus=coderl.load_corpus(samples) if samples else (),
        corpus_steps=tuple(step or ("build",)), seed=seed,
    )  # fmt: skip
    if dry_run:
        typer.echo("\n".join(coderl.describe(found, config)))
        return
    executor = coderl.TakingTurns(coderl.LocalExecutor(), lock) if lock else None
    place = _ledger_place(db, found.root)
    store = coderl.KpiStore(place, price_usd_per_hour=price) if ledger else None
    try:
        with _progress(quiet=json) as on_progress:
            report = coderl.run_bench(found, config, store=store, executor=executor, on_progress=on_progress)
    finally:
        if store:
            store.close()
        if executor:
            executor.release()
    typer.echo(coderl.to_json(report) if json else coderl.to_text(report))
    if export and report_path:
        _export(report, export, report_path)
    if ledger and place != db:
        typer.echo(f"recorded in {place} (--db names another ledger)", err=True)
    if not report.measured:
        typer.echo("not every arm has a valid sample of a cold build: see the report", err=True)
        raise typer.Exit(1)


def _ledger_place(db: str | None, project: Path) -> str | None:
    """The ledger to write to: never one that would be made inside the project, which is not changed."""
    from mileage.ledger.address import DEFAULT_PATH, ENVIRONMENT_VARIABLE

    inside = DEFAULT_PATH.absolute().resolve().is_relative_to(project) and not DEFAULT_PATH.exists()
    if db is not None or os.environ.get(ENVIRONMENT_VARIABLE) or not inside:
        return db
    import platformdirs

    return str(platformdirs.user_data_path("mileage") / DEFAULT_PATH.name)


def _report_path(export: ReportFormat | None, output: Path | None) -> Path | None:
    """Where the report goes; a place that cannot be written is refused before anything is measured."""
    if export is None:
        if output is not None:
            raise UsageError(f"--output {output} needs a format: add --export md or --export html")
        return None
    path = output or Path(f"rl-bench.{export}")
    check_writable(path, "--output")
    return path


def _export(report: BenchReport, form: ReportFormat, path: Path) -> None:
    from mileage import coderl

    text = coderl.to_markdown(report) if form is ReportFormat.MD else coderl.to_html(report)
    write_text(path, text, "--output")
    typer.echo(f"wrote {path}", err=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress display on standard error: a bar on a terminal, one line per sample elsewhere."""
    if quiet:
        yield lambda progress: None
        return
    if not sys.stderr.isatty():
        yield lambda progress: typer.echo(f"[{progress.done}/{progress.total}] {progress.label}", err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("preparing", total=None)
        yield lambda at: bar.update(task, completed=at.done, total=at.total, description=at.label)
