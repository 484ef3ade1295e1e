"""Races of tiny programs: every attempt once, whatever happens to the race."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import cache_from_source
from pathlib import Path

import psutil
import pytest

from mileage.errors import InterruptError, UsageError
from mileage.external.exam.server import AskedExams
from mileage.external.race import Race, RaceSpec, read_race, run_race
from mileage.external.race.arms import MARK
from mileage.external.race.journal import FILE, Journal, read_lines
from mileage.jobs.process import Program
from mileage.ledger.recorder import Ledger, RunRecorder
from mileage.ledger.runs import RecordedRun
from mileage.measure import Cause
from tiny_race import tiny_race


def raced(folder: Path, **how: object) -> Race:
    return run_race(RaceSpec.read(tiny_race(folder, **how)), folder / "race")  # type: ignore[arg-type]


def key(race: Race) -> list[tuple[int, str, int, str, int | None]]:
    """What does not depend on the clock: order, arm, seed, outcome and steps to the target of every attempt."""
    runs = {run.run_id: run for arm in race.arms for run in arm.runs}
    return [(a.order, a.arm, a.seed, str(a.outcome), runs[a.run_id].steps_to_target) for a in race.counted]


def everything(folder: Path) -> list[RecordedRun]:
    return Ledger(folder / "race" / "ledger.db").records()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Race]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, raced(folder, race="price = 36")


def test_every_arm_and_seed_once(whole: tuple[Path, Race]) -> None:
    folder, race = whole
    assert sorted((a.arm, a.seed) for a in race.attempts) == [(arm, s) for arm in ("one", "two") for s in range(3)]
    assert [a.order for a in race.attempts] == list(range(6))
    assert {a.round for a in race.attempts[:2]} == {0}, "arms meet within a round"
    assert race.missing == []
    by_arm = {arm.name: arm for arm in race.arms}
    assert [run.steps_to_target for run in by_arm["one"].runs] == [200, 201, 202]
    assert [run.steps_to_target for run in by_arm["two"].runs] == [100, 101, 102]
    assert by_arm["one"].about == {"framework": "tiny", "version": "1.0", "threads": 1, "packages": {"tiny": "1.0"}}
    for run in everything(folder):
        assert run.panel_id == RaceSpec.read(folder / "tiny.toml").panel.panel_id
        assert run.state == "reached"
        assert run.wall_seconds >= run.wall_to_target > 0.05
        assert run.cost_usd == pytest.approx(run.wall_seconds / 100)


def test_the_exam_is_on_the_clock_and_was_played(whole: tuple[Path, Race]) -> None:
    folder, race = whole
    from mileage.ledger import queries
    from mileage.ledger.store import Store

    run = next(arm for arm in race.arms if arm.name == "one").runs[0]
    with Store.reader(folder / "race" / "ledger.db") as store:
        (found,) = store.read(queries.complete_runs, run.run_id)
    first, second = found.evaluations
    assert list(first.evaluation.seeds) == list(RaceSpec.read(folder / "tiny.toml").panel.seeds)
    assert first.evaluation.mean_return < 20 < 475 < second.evaluation.mean_return
    assert found.metric("eval_seconds") > 0
    assert json.loads(found.checkpoints[0].claimed or "") == {"loss": 1.0}


def test_reports_say_who_tuned_and_how_it_ended(whole: tuple[Path, Race]) -> None:
    _, race = whole
    for text in (race.markdown(), race.html()):
        for part in ("tiny 1.0", "defaults", "3 of 3", "(A) against", "program.py"):
            assert part in text
    assert race.as_dict()["comparisons"]["two"]["runs_used"] == [3, 3]
    assert json.dumps(race.as_dict(), allow_nan=False)


def test_a_finished_race_is_not_run_again(whole: tuple[Path, Race]) -> None:
    folder, race = whole
    again = run_race(RaceSpec.read(folder / "tiny.toml"), folder / "race")
    assert again.attempts == race.attempts
    assert len(everything(folder)) == 6


def _marked(folder: Path) -> list[psutil.Process]:
    """Programs of the race in `folder`; others may be run by other tests at the same time."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if MARK in process.environ() and process.cwd() == str(folder) and "program.py" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.slow
def test_killed_three_times_it_ends_like_one_left_alone(whole: tuple[Path, Race], tmp_path: Path) -> None:
    spec = tiny_race(tmp_path, race="price = 36", pause=0.15)
    command = [sys.executable, "-m", "mileage", "race", str(spec), "--out", str(tmp_path / "race"), "--quiet"]
    rng, kills = random.Random(3), 0
    while kills < 3:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        begun = len(_events(tmp_path, "begin"))
        while process.poll() is None and len(_events(tmp_path, "begin")) == begun:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.4))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    race = read_race(tmp_path / "race")
    assert key(race) == key(whole[1])
    assert race.missing == []
    counted = {attempt.run_id for attempt in race.counted}
    for run in everything(tmp_path):
        assert run.voided == (run.run_id not in counted), "what does not count is void, and nothing else"
    assert len(race.attempts) == len(_events(tmp_path, "begin"))
    assert _marked(tmp_path) == []


def _events(folder: Path, event: str) -> list[object]:
    if not (folder / "race" / FILE).exists() or not (folder / "race" / FILE).stat().st_size:
        return []
    return [line for line in read_lines(folder / "race") if line["event"] == event]


def test_an_attempt_that_ended_before_the_journal_knew_is_counted_once(tmp_path: Path) -> None:
    raced(tmp_path, seeds=1)
    path = tmp_path / "race" / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    ends = [i for i, line in enumerate(lines) if json.loads(line)["event"] == "end"]
    path.write_bytes(b"".join(lines[: ends[-1]]) + lines[ends[-1]][:20])  # killed while it wrote the line
    race = run_race(RaceSpec.read(tmp_path / "tiny.toml"), tmp_path / "race")
    assert sorted((a.arm, a.seed) for a in race.attempts) == [("one", 0), ("two", 0)]
    assert len(everything(tmp_path)) == 2


def test_ctrl_c_ends_the_program_and_keeps_the_place(tmp_path: Path) -> None:
    spec = tiny_race(tmp_path, seeds=1, pause=600)
    command = [sys.executable, "-m", "mileage", "race", str(spec), "--out", str(tmp_path / "race"), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not _marked(tmp_path):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.strip() == f"mileage: interrupted: the same command goes on with the race in {tmp_path / 'race'}"
    race = read_race(tmp_path / "race")
    assert race.counted == ()
    assert len(race.missing) == 2
    assert [run.voided for run in everything(tmp_path)] == [True]
    assert _marked(tmp_path) == []


@pytest.mark.parametrize(
    ("owner", "name", "counted"),
    [(AskedExams, "begin", False), (Program, "_start", False), (Program, "run", False), (RunRecorder, "end", True)],
    ids=["the run is launched", "the program is started", "the program has ended", "the run has ended"],
)
def test_ctrl_c_while_no_program_is_watched_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, counted: bool
) -> None:
    inner = getattr(owner, name)

    def interrupted(*args: object, **more: object) -> object:
        monkeypatch.setattr(owner, name, inner)
        found = inner(*args, **more)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(InterruptError, match="the same command goes on"):
        raced(tmp_path, seeds=1)
    assert _marked(tmp_path) == []
    assert [run.voided for run in everything(tmp_path)] == [not counted]
    assert len(read_race(tmp_path / "race").counted) == counted
    again = run_race(RaceSpec.read(tmp_path / "tiny.toml"), tmp_path / "race")
    assert again.missing == []
    assert len(again.attempts) == len(everything(tmp_path)) == (2 if counted else 3)


def test_an_attempt_that_takes_too_long_has_failed(tmp_path: Path) -> None:
    race = raced(tmp_path, seeds=1, budget="attempt_seconds = 600", pause=0.02, second=9)
    by_arm = {attempt.arm: attempt for attempt in race.counted}
    assert str(by_arm["one"].outcome) == "ok"
    assert str(by_arm["two"].outcome) == "failed"  # it gave up by itself
    (tmp_path / "late").mkdir()
    late = raced(tmp_path / "late", seeds=1, budget="attempt_seconds = 0.5", pause=600)
    assert {str(attempt.outcome) for attempt in late.counted} == {"timeout"}
    assert Cause.TIMEOUTS in {caveat.cause for caveat in late.caveats}
    assert all(attempt.spent_seconds < 600 for attempt in late.attempts)


@pytest.mark.parametrize("budget", ["seconds = 0.8", "dollars = 0.008"])  # at 36 dollars an hour, a cent a second
def test_a_spent_budget_ends_the_attempt_under_way(tmp_path: Path, budget: str) -> None:
    race = raced(tmp_path, seeds=1, budget=budget, race="price = 36", pause=600)
    assert race.stopped == "budget"
    assert race.counted == ()
    (cut,) = race.attempts
    assert cut.spent_seconds < 600
    again = run_race(RaceSpec.read(tmp_path / "tiny.toml"), tmp_path / "race")
    assert len(again.attempts) == 1, "there is nothing left to spend"


def test_a_session_ends_between_attempts(tmp_path: Path) -> None:
    spec = RaceSpec.read(tiny_race(tmp_path, seeds=1))
    race = run_race(spec, tmp_path / "race", session_seconds=0.0)
    assert race.stopped == "session"
    assert race.attempts == ()
    assert run_race(spec, tmp_path / "race").missing == []


def test_another_race_has_another_directory(whole: tuple[Path, Race], tmp_path: Path) -> None:
    folder, _ = whole
    other = RaceSpec.read(tiny_race(tmp_path, seeds=3, pause=0.06))
    with pytest.raises(UsageError, match="holds another race"):
        run_race(other, folder / "race")


def test_one_race_at_a_time_in_a_directory(tmp_path: Path) -> None:
    with Journal(tmp_path / "race"), pytest.raises(UsageError, match="is in use"):
        raced(tmp_path)


def test_a_program_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    spec = tiny_race(tmp_path, seeds=1)
    spec.write_text(spec.read_text().replace('"{python}"', '"no-such-program"'))
    with pytest.raises(UsageError, match="no-such-program cannot be run"):
        run_race(RaceSpec.read(spec), tmp_path / "race")


def test_a_recipe_and_a_revision_race_too(tmp_path: Path) -> None:
    tiny_race(tmp_path)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "program.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "program.py").write_text("raise SystemExit(3)")
    (tmp_path / "mixed.toml").write_text("""
[race]
name = "mixed"
env = "CartPole-v1"
target = "mean_return>=20"
episodes = 4
seeds = 1

[[arm]]
name = "ours"
tuned_by = "us"
algorithm = "ppo"
threads = 1
steps = 4096
eval_every = 1024
settings = {n_envs = 4, hidden = [16, 16]}

[[arm]]
name = "theirs"
tuned_by = "its authors"
repository = "."
revision = "HEAD"
command = ["{python}", "program.py", "{seed}", "0.01", "1"]
""")
    race = run_race(RaceSpec.read(tmp_path / "mixed.toml"), tmp_path / "race")
    ours, theirs = race.arms
    assert ours.runs[0].reached
    assert ours.runs[0].config["hidden"] == (16, 16)
    assert ours.runs[0].panel_id == theirs.runs[0].panel_id
    assert theirs.runs[0].reached, "the revision ran, and not what is there now"
    (source,) = (tmp_path / "race" / "revisions").rglob("program.py")
    assert Path(cache_from_source(str(source))).is_file(), "an installed package does not compile modules in every run"
    assert set(race.comparisons) == {"theirs"}


def test_no_arm_is_compiled_by_python_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revision has bytecode: what it is compared with would look slower without."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    spec = tiny_race(tmp_path, seeds=1)
    (tmp_path / "helper.py").touch()
    text = (tmp_path / "program.py").read_text()
    (tmp_path / "program.py").write_text("import helper\n" + text)
    run_race(RaceSpec.read(spec), tmp_path / "race")
    assert Path(cache_from_source(str(tmp_path / "helper.py"))).is_file()


def test_environment_of_a_program_names_the_examiner_and_no_seed(tmp_path: Path) -> None:
    spec = tiny_race(tmp_path, seeds=1)
    text = (tmp_path / "program.py").read_text()
    (tmp_path / "program.py").write_text("import os; open('environment', 'w').write(repr(dict(os.environ)))\n" + text)
    race = run_race(RaceSpec.read(spec), tmp_path / "race")
    held_out = RaceSpec.read(spec).panel.seeds
    seen = (tmp_path / "environment").read_text()
    assert "MILEAGE_EXAM" in seen
    assert not any(str(seed) in seen for seed in held_out)
    assert race.missing == []
    assert os.environ.get("MILEAGE_EXAM") is None
