"""A report of selected runs: loaded, put together, written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from mileage.errors import MileageError, UsageError
from mileage.ledger import queries
from mileage.ledger.rows import Episode
from mileage.ledger.runs import RecordedRun
from mileage.ledger.store import Store
from mileage.report.arms import Exam, exams
from mileage.report.document import Section, Words
from mileage.report.extras import builds, comparisons, findings
from mileage.report.markup import Html, digest, file_page, join, tag
from mileage.report.replay import replays
from mileage.report.sections import exam_sections, rules
from mileage.tables import markdown, plain, written_to

# --- Runs from the ledger with what a page shows of them, and no more ---
MOST_RUNS = 2_000
"""More runs than this are no report anybody reads."""


def select(store: Store, selections: Iterable[str]) -> list[RecordedRun]:
    """The runs that the selections name, in their order, each once."""
    found: dict[str, RecordedRun] = {}
    for text in selections:
        found.update((run.run_id, run) for run in store.read(queries.select_records, text))
    if len(found) > MOST_RUNS:
        raise UsageError(f"a report takes at most {MOST_RUNS:,} runs, not {len(found):,}: select fewer")
    return list(found.values())


def loaded(store: Store, runs: Sequence[RecordedRun], *, episodes: bool = True) -> list[RecordedRun]:
    """The same runs with checkpoints, phases, and the episodes that their success was judged by."""
    return store.read(_loaded, runs, episodes)


def _loaded(connection: sa.Connection, runs: Sequence[RecordedRun], episodes: bool) -> list[RecordedRun]:
    found = queries.with_phases(connection, queries.with_parents(connection, runs))
    ids = [run.run_id for run in found]
    checkpoints = queries.rows_by_run(connection, "checkpoint", ids, "run_id", "seq")
    profiles = queries.rows_by_run(connection, "profile", ids, "seq")
    kpis = queries.rows_by_run(connection, "kpi", ids, "seq")
    samples = queries.rows_by_run(connection, "sample", list(kpis), "order")
    played = _judged(connection, found) if episodes else {}
    filled = [
        replace(
            run,
            checkpoints=tuple(checkpoints.get(run.run_id, ())),
            profiles=tuple(profiles.get(run.run_id, ())),
            kpis=tuple(kpis.get(run.run_id, ())),
            samples=tuple(samples.get(run.run_id, ())),
            episodes=tuple(played.get(run.run_id, ())),
        )
        for run in found
    ]
    if len(filled) == 1:
        history = queries.phase_history(connection, filled[0].run_id)
        return [replace(filled[0], phase_history=tuple(history))]
    return filled


def _judged(connection: sa.Connection, runs: Sequence[RecordedRun]) -> dict[str, list[Episode]]:
    """The episodes of the first checkpoint that met the target, otherwise of the last that has some."""
    met = {run.run_id: run.end.target_seq for run in runs if run.end is not None and run.end.target_seq is not None}
    others = [run.run_id for run in runs if run.run_id not in met]
    return queries.judged_episodes(connection, met | queries.last_examined(connection, others))


FORMATS = (".html", ".md", ".pdf", ".png")
_WIDTH = 1200  # of a picture of the page, in pixels
_MEASURE = "document.documentElement.dataset.height = document.documentElement.scrollHeight"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_QUIET = (
    "--headless",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
)


@dataclass(frozen=True)
class Report:
    """A report: what it is of, and its sections."""

    title: str
    exams: tuple[Exam, ...]
    sections: tuple[Section, ...]
    made_at: float

    @property
    def _lead(self) -> str:
        runs = sum(len(exam.runs) for exam in self.exams)
        day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.made_at))
        several = (
            f" They sat {len(self.exams)} different exams, which are shown apart and never in one picture."
            if len(self.exams) > 1
            else ""
        )
        return f"{runs} run{'' if runs == 1 else 's'}, {day}.{several}"

    def html(self) -> Html:
        """As one page that opens from disk."""
        parts = [section.html() for section in self.sections]
        return file_page(self.title, tag("h1", self.title), tag("p", self._lead, class_="lead"), join(parts))

    def markdown(self) -> str:
        """As Markdown."""
        return "\n\n".join((f"# {markdown(self.title)}", self._lead, *(s.markdown() for s in self.sections))) + "\n"

    def write(self, path: Path) -> None:
        """Write it in the format that the file's name ends with."""
        kind = path.suffix.lower()
        if kind not in FORMATS:
            raise UsageError(f"--out {path} must end with one of {', '.join(FORMATS)}")
        if kind in (".pdf", ".png"):
            _printed(self.html(), path)
            return
        _written(path, self.html() if kind == ".html" else self.markdown())


def report_on(store: Store, selections: Sequence[str], *, replay: bool = True, now: float | None = None) -> Report:
    """The report on the runs that `selections` name."""
    return report_of(loaded(store, select(store, selections)), replay=replay, now=now)


def report_of(runs: Sequence[RecordedRun], *, replay: bool = True, now: float | None = None) -> Report:
    """The report on runs that were read with their checkpoints, phases and episodes."""
    found = tuple(exams(runs))
    sections: list[Section] = []
    for exam in found:
        trained = Exam(tuple(arm for arm in exam.arms if not all(run.kpis for run in arm.runs)))
        if trained.arms:
            sections += exam_sections(trained)
            more = (comparisons(trained), replays(trained) if replay else None, rules(trained))
            sections += [section for section in more if section is not None]
    sections += [section for section in (builds(runs), findings(runs)) if section is not None]
    if len(found) > 1:
        said = "Runs that sat different exams are not compared: " + "; ".join(exam.title for exam in found) + "."
        sections.insert(0, Section("Different exams", (Words(said, "refusal"),)))
    return Report(_title(found), found, tuple(sections), time.time() if now is None else now)


def _title(found: Sequence[Exam]) -> str:
    names = list(dict.fromkeys(arm.label for exam in found for arm in exam.arms))
    shown = " and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"
    return plain(shown, 120)


def _written(path: Path, content: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        with written_to(path, "--out"):
            part.write_text(content, encoding="utf-8")
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _printed(page: str, path: Path) -> None:
    """Have a browser print the page, without a network."""
    browser = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise MileageError(f"{path.suffix} needs Chromium, which is not installed: write .html and print that")
    with tempfile.TemporaryDirectory(prefix="mileage-report-") as directory:
        source, made = Path(directory, "report.html"), Path(directory, f"made{path.suffix}")
        source.write_text(page, encoding="utf-8")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        command = [browser, *_QUIET, *sandbox, f"--user-data-dir={directory}/profile", source.as_uri()]
        if path.suffix.lower() == ".pdf":
            _browsed([*command, f"--print-to-pdf={made}", "--no-pdf-header-footer"])
        else:
            measured = Path(directory, "measured.html")
            allowed = page.replace("script-src '", f"script-src '{digest(_MEASURE)}' '", 1)
            measured.write_text(f"{allowed}<script>{_MEASURE}</script>", encoding="utf-8")
            shown = _browsed([*command[:-1], f"--window-size={_WIDTH},800", "--dump-dom", measured.as_uri()])
            height = re.search(r'data-height="(\d+)"', shown)
            _browsed([*command, f"--screenshot={made}", f"--window-size={_WIDTH},{height[1] if height else 20_000}"])
        if not made.is_file():
            raise MileageError(f"{browser} could not print the report: write .html instead")
        with written_to(path, "--out"):
            shutil.copyfile(made, path)


def _browsed(command: Sequence[str]) -> str:
    """What a browser prints."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False, text=True)
    except subprocess.TimeoutExpired:
        raise MileageError(f"{command[0]} took more than two minutes for the report: write .html instead") from None
    if done.returncode:
        raise MileageError(f"{command[0]} could not print the report: write .html instead")
    return done.stdout
