"""`mileage profile -- PROGRAM`: where the time of anybody's training program goes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import typer

from mileage._errors import UsageError
from mileage._process import process_start_ns
from mileage._records import strict_json
from mileage.cli.program_words import ProgramArguments
from mileage.text import check_writable, write_text


def profile_program(wanted: ProgramArguments) -> None:
    """Run the program, report on standard error or into a file, and exit as the program did."""
    from mileage.cli.profile_tables import FIRST, more
    from mileage.recording.recorder import Ledger
    from mileage.watching import attempts, watch
    from mileage.watching.export import FORMATS, export
    from mileage.watching.terminal import lines, own_cost

    _check(wanted, tuple(FORMATS))
    planned = attempts.starts(wanted.program, wanted.try_arg or ()) if wanted.try_ or wanted.try_arg else ()
    ledger = Ledger(wanted.db) if wanted.ledger else None
    found = watch(wanted.program, ledger=ledger, name=wanted.name or Path(script(wanted.program)).stem,
                  limit_seconds=wanted.timeout)  # fmt: skip
    report = [found.verdict] if wanted.quiet else lines(found, None if wanted.full else FIRST)
    report += [] if wanted.quiet else ["", *own_cost(found, process_start_ns(), time.perf_counter_ns())]
    report += [] if wanted.quiet or wanted.full else ["", more(len(found.findings))]
    sys.stdout.flush()
    print("\n".join(["mileage:", *report]), file=sys.stderr)
    tried = None
    if planned and found.ended.code == 0:
        uses_jax = "jax" in found.layers
        planned = attempts.starts(wanted.program, wanted.try_arg or (), uses_jax=uses_jax)
        tried = attempts.attempt(planned, budget_seconds=wanted.budget, say=lambda text: _say(text, wanted.quiet))
        table = tried.table()
        print("\n".join(["", table.title, table.text(), table.note]), file=sys.stderr)
    if wanted.out is not None:
        kind = "json" if wanted.json_output else wanted.export or "html"
        text = export(found, kind)
        if tried is not None and kind == "json":
            text = strict_json(found.as_dict() | {"tried": tried.as_dict()}, indent=2) + "\n"
        elif tried is not None and kind == "md":
            text += f"\n## {tried.table().title}\n\n{tried.table().markdown()}\n"
        write_text(wanted.out, text, "--out")
        if not wanted.quiet:
            print(f"written to {wanted.out}", file=sys.stderr)
    raise typer.Exit(130 if tried is not None and tried.interrupted else found.ended.code)


def script(program: list[str]) -> str:
    """The first argument that is a file, or else the program."""
    return next((word for word in program[1:] if not word.startswith("-") and Path(word).is_file()), program[0])


def _check(wanted: ProgramArguments, formats: tuple[str, ...]) -> None:
    if not wanted.program[0]:
        raise UsageError("name the program to profile: mileage profile -- python train.py")
    if wanted.timeout is not None and not wanted.timeout > 0:
        raise UsageError(f"--timeout must be above 0 seconds, not {wanted.timeout:g}")
    if wanted.export is not None and wanted.export not in formats:
        raise UsageError(f"--export {wanted.export!r} is not known: use one of {', '.join(formats)}")
    if wanted.out is None and (wanted.export is not None or wanted.json_output):
        raise UsageError("standard output is the program's own: name a file for the report with --out")
    if wanted.out is not None:
        check_writable(wanted.out, "--out")  # before the program runs, not after


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        print(text, file=sys.stderr, flush=True)
