"""One suite over both databases, with a real PostgreSQL server."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from sample_rows import (
    make_checkpoint,
    make_dead_run,
    make_end,
    make_episode,
    make_kpi,
    make_note,
    make_phases,
    make_profile,
    make_run,
    make_sample,
)

import extras
from mileage.coderl.arms import SampleKind, TimedBuild
from mileage.coderl.store import KpiStore
from mileage.errors import LedgerError, SchemaError, UsageError
from mileage.ledger import database, queries, schema
from mileage.ledger.address import database_url
from mileage.ledger.database import connect, migrate, open_engine, schema_version, writing
from mileage.ledger.maintenance import back_up
from mileage.ledger.queries import Selector
from mileage.ledger.rows import ROW_TYPES
from mileage.ledger.runs import RecordedRun
from mileage.ledger.spool import Spool
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer
from waiting import until


def test_every_kind_of_row_comes_back_as_it_was_written(store: Store) -> None:
    run = make_run()
    checkpoints = [make_checkpoint(run, seq) for seq in (1, 2, 11)]
    phases = make_phases(run, 3, rollout=1.5, learn=0.25)
    episodes = [make_episode(run, 2, i) for i in range(3)]
    profile, end = make_profile(run, 4), make_end(run)
    samples, kpi = [make_sample(run, order) for order in range(2)], make_kpi(run, 1)
    assert store.deliver([run, *checkpoints, *phases, *episodes, profile, *samples, kpi, end]) == []
    assert store.read(queries.run, run.run_id) == run
    assert store.read(queries.checkpoints, run.run_id) == checkpoints
    assert sorted(store.read(queries.latest_phases, run.run_id)) == sorted(phases)
    assert store.read(queries.episodes, run.run_id) == episodes
    assert store.read(queries.episodes, run.run_id, 9) == []
    assert store.read(queries.profiles, run.run_id) == [profile]
    assert store.read(queries.samples, run.run_id) == samples
    assert store.read(queries.kpis, run.run_id) == [kpi]
    assert store.read(queries.ends, run.run_id) == [end]
    assert store.read(queries.records) == [RecordedRun(run, end)]


def test_delivering_again_changes_nothing(store: Store) -> None:
    run = make_run()
    rows = [run, make_checkpoint(run, 1), make_end(run)]
    store.deliver(rows)
    store.deliver([*rows, make_checkpoint(run, 1, step=999_999), make_end(run, state="failed")])
    assert store.read(queries.checkpoints, run.run_id) == [rows[1]]
    assert store.read(queries.ends, run.run_id) == [rows[2]]


@pytest.mark.parametrize("kind", list(ROW_TYPES))
@pytest.mark.parametrize("verb", ["UPDATE {} SET run_id = 'x'", "DELETE FROM {}"])
def test_the_database_refuses_to_change_or_delete_a_row(store: Store, kind: str, verb: str) -> None:
    run = make_run()
    rows = [run, make_checkpoint(run, 1), *make_phases(run, 2, learn=1.0), make_episode(run, 1, 0)]
    more = [make_profile(run, 3), make_sample(run, 0), make_kpi(run, 1), make_note(run), make_end(run)]
    store.deliver([*rows, *more])
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), writing(store.engine) as connection:
        connection.execute(sa.text(verb.format(schema.TABLE_NAMES[kind])))


@pytest.mark.parametrize("kind", list(ROW_TYPES))
def test_the_database_refuses_what_replaces_or_empties_without_a_deletion(store: Store, kind: str) -> None:
    run = make_run()
    rows = [run, make_checkpoint(run, 1), *make_phases(run, 2, learn=1.0), make_episode(run, 1, 0)]
    rows += [make_profile(run, 3), make_sample(run, 0), make_kpi(run, 1), make_note(run), make_end(run)]
    store.deliver(rows)
    table = schema.TABLE_NAMES[kind]
    again = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"
    statement = again if store.engine.dialect.name == "sqlite" else f"TRUNCATE {table}"
    with pytest.raises(sa.exc.DBAPIError, match="append-only"), writing(store.engine) as connection:
        connection.execute(sa.text(statement))
    assert store.deliver(rows) == []  # delivering again is no such thing


def test_only_the_newest_phase_totals_are_read(store: Store) -> None:
    first, second = make_run(), make_run()
    store.deliver([first, second, *make_phases(first, 1, learn=1.0, eval=1.0), *make_phases(first, 7, learn=3.0)])
    store.deliver(make_phases(second, 2, rollout=2.0))
    found = store.read(queries.phases_of, [first.run_id, second.run_id])
    assert {run_id: [(p.phase, p.seconds) for p in phases] for run_id, phases in found.items()} == {
        first.run_id: [("learn", 3.0)],
        second.run_id: [("rollout", 2.0)],
    }


def test_runs_are_listed_in_launch_order_whatever_the_order_of_delivery(store: Store) -> None:
    runs = [make_run(launched_at=1000.0 + i) for i in (3, 1, 2)]
    for run in runs:
        store.deliver([run, make_end(run)])
    listed = [record.run.launched_at for record in store.read(queries.records)]
    assert listed == [1003.0, 1002.0, 1001.0]
    assert [r.run.launched_at for r in store.read(queries.records, newest_first=False, limit=2)] == [1001.0, 1002.0]


def test_a_refused_row_is_named_and_does_not_hold_up_the_others(store: Store) -> None:
    run = make_run()
    bad = make_checkpoint(run, 2, step=2**70)
    good = [run, make_checkpoint(run, 1), make_checkpoint(run, 3)]
    refused = store.deliver([*good[:2], bad, good[2]])
    assert [row for row, _ in refused] == [bad]
    assert store.read(queries.checkpoints, run.run_id) == good[1:]


# Dead runs


# Selection


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "x'; DROP TABLE ledger_run; --",
        '" OR 1=1 --',
        "%",
        "a_b%c\\",
        "<script>alert(1)</script>",
        "\x1b[31mred\x1b[0m",
        "../../etc/passwd",
        "[bold]markup[/bold]",
        "名前 \u202e evil",
        "x" * 200,
    ],
)
def test_hostile_names_are_data_to_store_and_to_find(store: Store, name: str) -> None:
    other, run = make_run(name="other"), make_run(name=name, config='{"evil":"\\u0000"}')
    store.deliver([other, make_end(other), run, make_end(run)])
    found = store.read(queries.records, Selector(name=name))
    assert [record.run for record in found] == [run]
    assert len(store.read(queries.records, Selector(fields=(("name", name),)))) == 1
    assert len(store.read(queries.records)) == 2


def test_selection_by_id_by_name_and_by_fields(store: Store) -> None:
    a = make_run(run_id="20260101-a", name="fast", seed=1, launched_at=1.0)
    b = make_run(run_id="20260101-b", name="fast", seed=2, launched_at=2.0)
    c = make_dead_run(run_id="20270101-c", name="slow arm, old", seed=1, launched_at=3.0)
    store.deliver([a, b, c, make_end(a), make_end(b, state="not_reached"), make_end(c, state="failed")])

    def select(text: str) -> list[str]:
        return [record.run.run_id[-1] for record in store.read(queries.select_records, text)]

    assert select("20260101") == ["a", "b"]
    assert select("20260101-b") == ["b"]
    assert select("20260101-a,20270101") == ["a", "c"]
    assert select("fast") == ["a", "b"]
    assert select("slow arm, old") == ["c"]
    assert select("seed=1") == ["a", "c"]
    assert select("name=fast,state=not_reached") == ["b"]
    assert store.read(queries.only_record, "20270101").run == c
    with pytest.raises(UsageError, match="matches 2 runs"):
        store.read(queries.only_record, "fast")
    with pytest.raises(UsageError, match="no run matches"):
        store.read(queries.select_records, "nothing")
    with pytest.raises(UsageError, match="did you mean 'seed'"):
        store.read(queries.select_records, "sed=1")
    with pytest.raises(UsageError, match="whole number"):
        store.read(queries.select_records, "seed=one")


# Schema


def test_the_tables_after_all_migrations_are_the_declared_ones(store: Store) -> None:
    inspector = sa.inspect(store.engine)
    for table in schema.metadata.tables.values():
        columns = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
        assert columns == {column.name: column.nullable for column in table.columns}
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key]


def test_an_older_schema_is_brought_forward_with_its_rows(db: str) -> None:
    engine = connect(database_url(db))
    migrate(engine, "0001")
    assert schema_version(engine) == "0001"
    run = make_run()
    with writing(engine) as connection:
        connection.execute(sa.insert(schema.run), [run._asdict()])
    engine.dispose()
    with Store(db) as store:
        assert schema_version(store.engine) == schema.HEAD
        assert store.read(queries.run, run.run_id) == run


def test_a_newer_schema_says_which_version_is_needed(db: str) -> None:
    with Store(db) as store, writing(store.engine) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0099'"))
        connection.execute(
            sa.insert(schema.history), {"version": "0099", "mileage_version": "9.9.0", "applied_at": 1.0}
        )
    with pytest.raises(SchemaError, match=r"schema 0099, which needs mileage 9\.9\.0 or newer"):
        Store(db)


def test_head_is_the_newest_script() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_current_head() == schema.HEAD


# Build benchmarks

EXISTING_QUERY = """
SELECT project, baseline_cold_secs, slicer_cold_secs, speedup,
       slicer_throughput_per_hr, ts
FROM rl_kpi ORDER BY ts DESC LIMIT 10;
"""
"""As other tools' documentation has it."""


def test_existing_queries_on_build_kpis_run_unchanged(store: Store) -> None:
    run, dead = make_run(algorithm="rl-bench", env_id="nushell", config='{"revision":"abc"}'), make_dead_run()
    store.deliver([run, make_sample(run, 0), make_kpi(run, 1)._replace(project="nushell"), dead])
    with store.engine.connect() as connection:
        found = connection.exec_driver_sql(EXISTING_QUERY).fetchall()
        runs = connection.exec_driver_sql("SELECT run_id, project, revision, status FROM rl_run").fetchall()
    assert [tuple(row) for row in found] == [("nushell", 1.5, 1.5, 1.5, 1.5, "2026-04-01T00:00:00Z")]
    assert [tuple(row) for row in runs] == [(run.run_id, "nushell", "abc", "running")]
    store.deliver([make_end(run, state="not_reached", ended_at=0.0)])
    with store.engine.connect() as connection:
        ended = connection.exec_driver_sql("SELECT status, ended_at FROM rl_run").fetchall()
    assert [tuple(row) for row in ended] == [("finished", "1970-01-01T00:00:00Z")]


def test_a_benchmark_is_recorded_sample_by_sample(db: str) -> None:
    with KpiStore(db, price_usd_per_hour=1.0) as benchmark, Store(db) as reader:
        run_id = benchmark.start_run("p", "rev", {"runs": 2})
        for order in range(2):
            benchmark.add_sample(run_id, TimedBuild("baseline", 1.5, 2.5, kind=SampleKind.COLD, order=order))
            assert [row.order for row in reader.read(queries.samples, run_id)] == list(range(order + 1))
        assert [record.state for record in reader.read(queries.records)] == ["running"]
        benchmark.finish_run(run_id, None)
        assert [record.state for record in reader.read(queries.records)] == ["failed"]


def _open_and_count(db: str, spool_dir: str) -> None:
    os.environ["MILEAGE_SPOOL"] = spool_dir
    with Store(db) as store:
        assert schema_version(store.engine) == schema.HEAD


def test_several_processes_open_a_new_ledger_at_once(db: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_open_and_count, args=(db, str(tmp_path / "spool"))) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 6


# A run in progress


def test_a_writer_gives_signs_of_life_and_closes_what_others_left_behind(db: str) -> None:
    dead, run = make_dead_run(), make_run(started_at=time.time() - 50.0)
    with Store(db) as store:
        store.deliver([dead])
        writer = Writer(run, db, load_after=0.0)
        until(lambda: store.read(queries.last_beat, run.run_id) is not None)
        beat = store.read(queries.last_beat, run.run_id)
        assert beat is not None
        assert run.started_at + 50.0 < beat[0] < time.time()
        assert 49.9 < beat[1] < beat[0] - run.started_at + 0.1
        assert [record.state for record in store.read(queries.records)] == ["running", "crashed"]
        writer.append([make_end(run)])
        assert writer.close()
        assert [record.state for record in store.read(queries.records)] == ["reached", "crashed"]


# Many writers


def _write_rows(db: str, number: int, rows: int, spool_dir: str) -> None:
    os.environ["MILEAGE_SPOOL"] = spool_dir
    run = make_run(name=f"writer {number}")
    writer = Writer(run, db, load_after=0.0)
    for seq in range(1, rows + 1):
        writer.append([make_checkpoint(run, seq)])
        if seq % 50 == 0:
            time.sleep(0.001)
    writer.append([make_end(run)])
    if not writer.close(timeout=300.0):
        raise SystemExit(1)


def _load(db: str, processes: int, rows: int, capfd: pytest.CaptureFixture[str], spool_dir: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_write_rows, args=(db, number, rows, str(spool_dir))) for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    with Store(db) as store:
        records = store.read(queries.records)
        assert sorted(record.run.name for record in records) == sorted(f"writer {i}" for i in range(processes))
        for record in records:
            found = store.read(queries.checkpoints, record.run.run_id)
            assert [checkpoint.seq for checkpoint in found] == list(range(1, rows + 1))
    captured = capfd.readouterr()
    assert captured.err == ""
    assert captured.out == ""


def test_several_processes_write_at_once_and_nothing_is_lost(
    db: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _load(db, 4, 250, capfd, tmp_path / "spool")


@pytest.mark.slow
def test_sixteen_processes_write_a_thousand_rows_each(
    db: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _load(db, 16, 1000, capfd, tmp_path / "spool")


# Opening what cannot be opened


@extras.POSTGRES
def test_a_missing_server_is_one_sentence_without_the_password() -> None:
    with pytest.raises(LedgerError) as caught:
        Store("postgresql://me:secret@127.0.0.1:1/nothing")
    assert "cannot be opened" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_writer_that_hangs_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mileage.db"
    Store(path).close()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 0.05)
    hanging = sqlite3.connect(path, isolation_level=None)
    hanging.execute("BEGIN IMMEDIATE")
    with Store(path) as store, pytest.raises(LedgerError, match="another process has kept it busy for 0 s: try again"):
        store.deliver([make_run()])
    hanging.close()


def test_a_file_that_is_no_database_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "mileage.db"
    path.write_text("certainly not a database, and long enough to be one" * 100)
    with pytest.raises(LedgerError, match="cannot be opened: file is not a database"):
        Store(path)


def test_a_missing_file_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger at"):
        Store(tmp_path / "mileage.db", create=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["with space.db", "per%cent.db", "quest?ion=1.db", "ha#sh.db", "ünïcode.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    run = make_run()
    with Store(tmp_path / name) as store:
        store.deliver([run])
        assert store.read(queries.run, run.run_id) == run
    assert (tmp_path / name).is_file()


def test_sqlite_runs_in_wal_mode_and_checks_out(tmp_path: Path) -> None:
    with Store(tmp_path / "mileage.db") as store:
        store.deliver([make_run()])
    with sqlite3.connect(tmp_path / "mileage.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_rows_stay_in_their_spool_file_while_the_ledgers_file_is_damaged(tmp_path: Path) -> None:
    """A file that something was copied over is not noticed by reading the rows of one run, whose pages are whole."""
    path, run = tmp_path / "l.db", make_dead_run()
    with Store(path) as store:
        other = make_run(run_id="other")
        store.deliver([other, *(make_episode(other, 1, i) for i in range(5000))])
    whole = path.read_bytes()
    spool = Spool(Path(f"{path}.spool"), run.run_id)
    spool.append([run, make_end(run)])
    with path.open("r+b") as file:
        file.seek(len(whole) // 2)
        file.write(os.urandom(65536))
    with pytest.raises(LedgerError, match=r"damaged|malformed"):
        Store(path)
    assert spool.path.exists()
    for journal in tmp_path.glob("l.db-*"):
        journal.unlink()
    path.write_bytes(whole)
    with Store(path) as store:
        assert store.read(queries.run, run.run_id) == run
    assert not spool.path.exists()


def test_importing_the_ledger_loads_no_database_library() -> None:
    code = (
        "import sys, mileage.ledger, mileage.ledger.writer, mileage.ledger.prices, mileage.ledger.recorder\n"
        "heavy = {'sqlalchemy', 'alembic', 'psycopg', 'pyarrow', 'tensorboard', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


def test_an_engine_opens_a_current_schema_without_alembic(tmp_path: Path) -> None:
    open_engine(tmp_path / "mileage.db").dispose()
    code = (
        "import sys\nfrom mileage.ledger.store import Store\n"
        f"Store({str(tmp_path / 'mileage.db')!r}).close()\nassert 'alembic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


# Billing and liveness


def test_a_ledger_is_backed_up_whatever_it_is(db: str, tmp_path: Path) -> None:
    run = make_run()
    with Store(db) as store:
        store.deliver([run, make_end(run)])
        assert back_up(store.engine, store.url, tmp_path / "copy") > 0
        magic = (tmp_path / "copy").read_bytes()[:5]
        assert magic == (b"SQLit" if store.engine.dialect.name == "sqlite" else b"PGDMP")


def test_a_migration_is_preceded_by_a_backup(db: str, tmp_path: Path) -> None:
    url = database_url(db)
    engine = connect(url)
    migrate(engine, "0003")
    engine.dispose()
    Store(db).close()
    found = [path for place in (tmp_path, tmp_path / "spool") for path in place.rglob("*schema-0003.backup")]
    assert len(set(found)) == 1
