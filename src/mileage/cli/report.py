"""`mileage report`: a selection of runs as one page, a document or figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mileage.cli import options
from mileage.errors import UsageError
from mileage.records import strict_json

Out = Annotated[Path, Option("--out", "-o", help="File to write: .html, .md, .pdf or .png.")]


def report(
    selections: Annotated[
        list[str], Argument(help="Run ids or their beginnings, names, or field=value with commas; any number.")
    ],
    out: Out = Path("report.html"),
    figures: Annotated[
        Path | None, Option(help="Directory for the same charts as PDF, SVG and PNG (needs the figures extra).")
    ] = None,
    replay: Annotated[bool, Option("--replay/--no-replay", help="Play held-out episodes again and show them.")] = True,
    open_: Annotated[bool, Option("--open", help="Open what was written in a browser.")] = False,
    db: options.Database = None,
    json_output: Annotated[bool, Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write everything about some runs into one file that opens from disk."""
    from mileage.cli.ledger import open_ledger
    from mileage.report.report import FORMATS, report_on

    if out.suffix.lower() not in FORMATS:
        raise UsageError(f"--out {out} must end with one of {', '.join(FORMATS)}")
    with open_ledger(db) as store:
        made = report_on(store, selections, replay=replay)
    made.write(out)
    files = [str(out)]
    if figures is not None:
        from mileage.report.plot import write_figures

        files += [str(path) for path in write_figures(made.exams, figures)]
    if json_output:
        print(strict_json({"runs": sum(len(exam.runs) for exam in made.exams), "files": files}))
    else:
        print(f"wrote {', '.join(files[:4])}{f' and {len(files) - 4} more' if len(files) > 4 else ''}")
    if open_:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
