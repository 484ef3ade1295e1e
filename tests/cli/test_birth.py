"""A run leaves a trace before anything is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mileage
from mileage.cli import birth
from mileage.ledger import announce, liveness, spool
from mileage.ledger.rows import Run, field_types
from mileage.ledger.store import Store
from waiting import until


def _begin(tmp_path: Path, *arguments: str) -> birth.Birth:
    found = birth.born(["ppo", "CartPole-v1", "--db", str(tmp_path / "x.db"), *arguments])
    assert found is not None
    return found


def _row(tmp_path: Path) -> Run:
    content = spool.read(*spool.waiting(tmp_path / "x.db.spool"))
    assert content is not None
    assert content.run is not None
    return content.run


def test_the_first_row_is_a_whole_row_of_a_run_of_this_process(tmp_path: Path) -> None:
    begun = _begin(tmp_path, "--seed", "7", "--price", "0.35+0.19", "--name", 'a "name"\n')
    row = _row(tmp_path)
    begun.withdraw()
    assert spool.waiting(tmp_path / "x.db.spool") == []
    for name, allowed in field_types("run").items():
        assert type(getattr(row, name)) in allowed, name
    assert (row.algorithm, row.env_id, row.seed, row.name) == ("ppo", "CartPole-v1", 7, "a ?name??")
    assert row.price_usd_per_hour == pytest.approx(0.54)
    assert liveness.is_alive(row.host, row.pid, row.process_token)
    assert row.launched_by == liveness.user_name()
    assert row.mileage_version == mileage.__version__


def test_nothing_is_imported_for_it_and_no_secret_is_in_it(tmp_path: Path) -> None:
    code = (
        "import sys; from mileage.cli import birth; begun = birth.born(sys.argv[1:]); "
        "print(*({'typing', 're', 'json', 'threading', 'pathlib', 'dataclasses'} & set(sys.modules)))"
    )
    arguments = ["ppo", "CartPole-v1", "--db", str(tmp_path / "x.db"), "--api-key", "hunter22"]
    environment = {**os.environ, "PYTHONPATH": str(Path(mileage.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == []
    (file,) = spool.waiting(tmp_path / "x.db.spool")
    assert "hunter22" not in file.read_text()
    with Store(tmp_path / "x.db") as store:  # the process is gone: it was a run that crashed
        from mileage.ledger import queries

        (recorded,) = store.read(queries.records)
    assert (recorded.state, recorded.run.command) == ("crashed", "mileage train ppo CartPole-v1")


def test_it_says_that_it_lives_until_the_announcement_takes_its_place(tmp_path: Path) -> None:
    begun = _begin(tmp_path)
    (file,) = spool.waiting(tmp_path / "x.db.spool")
    first = file.stat().st_mtime
    until(lambda: file.stat().st_mtime > first)
    command = ["mileage", "train", "ppo", "CartPole-v1", "--lr", "3"]
    announce.announce(command, db=str(tmp_path / "x.db"), algorithm="ppo", env_id="CartPole-v1", begun=begun)
    assert (_row(tmp_path).run_id, _row(tmp_path).command) == (begun.run_id, "mileage train ppo CartPole-v1 --lr 3")
    announce.settle(None)
    assert spool.waiting(tmp_path / "x.db.spool") == []


@pytest.mark.parametrize(
    ("db", "why"),
    [("postgresql://u@h/db", "a server"), ("host=h password=hunter22", "a server"), ("notes.txt", "no database")],
)
def test_what_is_no_file_of_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, db: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("something else entirely")
    assert birth.born(["ppo", "CartPole-v1", "--db", db]) is None, why
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("argv", "arguments"),
    [
        (["mileage", "train", "ppo", "X"], ["ppo", "X"]),
        (["mileage", "--debug", "train", "ppo"], ["ppo"]),
        (["mileage", "ledger", "list"], None),
        (["mileage"], None),
    ],
)
def test_train_is_found_behind_options(argv: list[str], arguments: list[str] | None) -> None:
    assert birth.asked_to_train(argv) == arguments


def test_a_run_that_resumes_another_begins_too(tmp_path: Path) -> None:
    begun = birth.born(["--resume", "runs/x", "--db", str(tmp_path / "x.db")])
    assert begun is not None
    assert (_row(tmp_path).name, _row(tmp_path).seed) == ("resumed", None)
    begun.withdraw()
