"""`mileage record`: any training program as a run of the ledger."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from mileage.cli import options
from mileage.cli.options import script
from mileage.errors import UsageError


def record(
    command: Annotated[list[str] | None, Argument(help="The program, after --.", metavar="-- PROGRAM …")] = None,
    name: Annotated[str | None, Option(help="Name of the run in the ledger (the program's by default).")] = None,
    env: Annotated[str, Option(help="Environment that is trained on, for the ledger.")] = "",
    algorithm: Annotated[str, Option(help="Algorithm that trains, for the ledger.")] = "",
    seed: Annotated[int | None, Option(help="Training seed, for the ledger.")] = None,
    watch: Annotated[list[Path] | None, Option(help="Where trackers' files are looked for; may be repeated.")] = None,
    limit: Annotated[float | None, Option("--timeout", help="Seconds after which the program is ended.")] = None,
    panel: Annotated[str | None, Option(help="The held-out exam: an environment's id, or a panel's FILE.json.")] = None,
    target: Annotated[str | None, Option(help='What to reach on the panel, such as "mean_return>=475".')] = None,
    policy: Annotated[
        str | None,
        Option(help="Where the program leaves its policy (a path or pattern); it is examined when it changes."),
    ] = None,
    adapter: options.Adapter = None,
    unit_actions: options.UnitActions = False,
    keep_going: Annotated[bool, Option("--keep-going", help="Do not end the program when the target is met.")] = False,
    variable: Annotated[
        list[str] | None,
        Option(help="An environment variable to keep with the run, beside those that are known; may be repeated."),
    ] = None,
    price: options.PriceText = None,
    instance: Annotated[str | None, Option(help="Cloud instance whose listed price counts.")] = None,
    spot: Annotated[bool, Option("--spot", help="The instance is bought on the spot market.")] = False,
    db: options.Database = None,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print nothing but the program's output.")] = False,
) -> None:
    """Run a training program and record what it took: mileage record -- python train.py.

    Time, memory and end are those of all its processes. Its figures (TensorBoard, W&B, trackio, CSV, metrics.jsonl,
    lines METRIC name=value) are kept as claimed. The exit code is the program's own. With --panel and --policy, the
    policy that it leaves sits a held-out exam, during which the program is halted.
    """
    from mileage.external.record import record as record_program
    from mileage.ledger.recorder import Ledger

    if not command:
        raise UsageError("name the program to record: mileage record -- python train.py")
    if limit is not None and not limit > 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {limit:g}")
    exam = exams = None
    closing = contextlib.ExitStack()
    if (panel is None) != (policy is None) or (target is not None and panel is None):
        raise UsageError("--panel and --policy go together, and --target with them: the exam, and who sits it")
    if panel is not None and policy is not None:
        from mileage.external.adapters import loader_of
        from mileage.external.exam import find_panel
        from mileage.external.record import FileExams

        exam = find_panel(panel, target=target)
        loader = None if adapter is None else loader_of(adapter)
        exams = FileExams(exam, policy, loader, unit_actions=unit_actions, stop_at_target=not keep_going)
        closing.callback(exams.close)
    with closing:
        run, ended = record_program(
            command, Ledger(db), name or Path(command[-1] if len(command) == 1 else script(command)).stem,
            directories=tuple(watch or (Path(),)), limit_seconds=limit, exams=exams, panel=exam, target=target,
            variables=variable or (),
            env_id=env or (exam.env_id if exam else ""), algorithm=algorithm, seed=seed,
            price_usd_per_hour=price, instance=instance, spot=spot, framework="recorded",
        )  # fmt: skip
    if not quiet:
        end = run.end
        memory = "" if end is None or end.peak_rss_gb is None else f", peak memory {end.peak_rss_gb:.2f} GB"
        print(f"mileage: {ended.reason} after {run.wall_seconds:.1f} s{memory}; run {run.run.run_id}", file=sys.stderr)
    raise typer.Exit(ended.code)
