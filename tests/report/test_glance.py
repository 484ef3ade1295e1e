from __future__ import annotations

from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_phases, make_run
from typer.testing import CliRunner

import extras
from mileage.cli.app import app
from mileage.errors import UnknownNameError, UsageError
from mileage.ledger.runs import RecordedRun, Sighting
from mileage.ledger.store import Store
from mileage.measure import Arm
from mileage.report.arms import Selection
from mileage.report.compare import compare_arms
from mileage.report.seeds import SeedPanel, curve_lines, phase_lines, progress_line, seconds_left


def recorded(seed: int = 0, *, end: bool = True, name: str = "arm") -> RecordedRun:
    run = make_run(seed=seed, name=name)
    rows = tuple(make_checkpoint(run, seq) for seq in range(1, 6))
    phases = tuple(make_phases(run, 9, learn=45.0, eval=15.0))
    return RecordedRun(run, make_end(run) if end else None, rows, phases, last_seen=Sighting(60.0, 5000))


def test_a_run_at_a_glance() -> None:
    assert curve_lines(recorded()) == ["learning curve: ▁▃▅▆█ 100 → 500 (5 evaluations)"]
    assert phase_lines(recorded(), 8) == ["██████▓▓", "█ learn 75.0 %  ▓ eval 25.0 %"]
    assert curve_lines(RecordedRun(make_run())) == []


def test_time_left_is_what_the_step_budget_takes_at_this_pace() -> None:
    going_on = recorded(end=False)
    assert seconds_left(going_on) == pytest.approx(60.0 * (50_000 - 5_000) / 5_000)
    assert progress_line(going_on) == (
        "5,000 steps in 60.00 s, 111 steps/s, $0.06 so far, 10 % of the step budget, at most 9.0 min left"
    )
    assert seconds_left(recorded()) is None
    assert "so far" not in progress_line(recorded())


def test_watch_shows_the_newest_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILEAGE_DB", str(tmp_path / "l.db"))
    with Store(tmp_path / "l.db") as store:
        for name, end in (("done", True), ("going-on", False)):
            run = make_run(name=name)
            store.deliver([run, make_checkpoint(run, 1), *([make_end(run)] if end else [])])
    shown = CliRunner().invoke(app, ["watch", "--once"], catch_exceptions=False).output
    assert "going-on, seed 0" in shown
    assert "running" in shown
    named = CliRunner().invoke(app, ["watch", "done"], catch_exceptions=False).output
    assert "reached, target mean_return>=475.0" in named
    with pytest.raises(UsageError):
        CliRunner().invoke(app, ["watch", "--every", "0"], catch_exceptions=False)


@extras.NOTEBOOK
def test_objects_show_themselves_in_a_notebook() -> None:
    runs = [recorded(seed) for seed in range(3)]
    one = runs[0]
    assert "<svg" in one._repr_html_()
    frame = one.to_frame()
    assert frame["mean_return"].tolist() == [100.0, 200.0, 300.0, 400.0, 500.0]
    axes = one.plot(against="seconds")
    assert axes.lines[0].get_xdata().tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]
    with pytest.raises(UnknownNameError):
        one.plot(against="days")
    panel = SeedPanel.of(runs)
    assert "expected cost to target" in panel._repr_html_()
    assert panel.to_frame()["seed"].tolist() == [0, 1, 2]
    assert len(panel.plot().lines) == 6  # a curve and a target each
    other = [recorded(seed, name="other") for seed in range(3)]
    found = compare_arms(Arm("a", Selection(runs)), Arm("b", Selection(other)))
    assert "verdict: undecided" in found._repr_html_()
    assert found.to_frame().columns.tolist() == ["", "A", "B"]
    assert [label.get_text() for label in found.plot().get_yticklabels()] == ["a", "b"]


def test_words_of_others_do_nothing_in_a_notebook() -> None:
    evil = "<img src=x onerror=alert(1)>"
    assert "<img" not in recorded(name=evil)._repr_html_()
    run = make_run(algorithm=evil, env_id=evil, target=evil)
    assert "<img" not in RecordedRun(run, make_end(run))._repr_html_()
