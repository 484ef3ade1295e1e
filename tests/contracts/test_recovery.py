"""What ended runs and dead processes left behind is delivered, once, by whoever opens the ledger; on both databases."""

from __future__ import annotations

import time
from threading import Thread

import pytest
import sqlalchemy as sa
from sample_rows import make_checkpoint, make_dead_run, make_end, make_phases, make_run

from mileage.ledger import liveness, queries, spool
from mileage.ledger.database import writing
from mileage.ledger.store import Store
from mileage.ledger.writer import Writer
from waiting import MINUTES


def test_a_run_whose_process_is_gone_is_closed_as_crashed_with_its_cost(db: str) -> None:
    run = make_dead_run(price_usd_per_hour=3600.0, instances=2)
    with Store(db) as store:
        checkpoints = [make_checkpoint(run, 1, target_met=True), make_checkpoint(run, 2)]
        store.deliver([run, *checkpoints, *make_phases(run, 3, init=1.0, compile=2.0, eval=4.0)])
        store.beat(run.run_id, 33.0)
    with Store(db) as store:
        (record,) = store.read(queries.records)
        end = record.end
        assert (end.state, end.closed_by, end.wall_seconds) == ("crashed", "opener", 33.0)
        assert (end.billable_seconds, end.cost_usd) == (66.0, 66.0)
        assert (end.env_steps, end.checkpoints, end.eval_seconds, end.train_seconds) == (2000, 2, 4.0, 29.0)
        assert (end.init_seconds, end.compile_seconds) == (1.0, 2.0)
        # What it reached before it died was reached.
        assert (end.steps_to_target, end.wall_to_target, end.target_seq) == (1000, 10.0, 1)
        assert store.recover() == []
        assert store.read(queries.ends, run.run_id) == [end]


def test_a_living_run_is_left_alone_and_its_own_end_counts(db: str) -> None:
    alive, dead = make_run(), make_dead_run()
    with Store(db) as store:
        store.deliver([alive, dead, make_checkpoint(dead, 1, target_met=True)])
    with Store(db) as store:
        states = {record.run.run_id: record.state for record in store.read(queries.records)}
        assert states == {alive.run_id: "running", dead.run_id: "crashed"}
        # A machine that was cut off from the server comes back and says how it really ended.
        own = make_end(dead, state="failed", success_rate=None, wall_to_target=None)
        store.deliver([own])
        ends = {record.run.run_id: record.end for record in store.read(queries.records)}
        assert ends[dead.run_id] == own
        assert [end.state for end in store.read(queries.ends, dead.run_id)] == ["failed", "crashed"]


def test_a_run_on_another_host_is_closed_only_when_its_heartbeat_is_stale(db: str) -> None:
    now = time.time()
    fresh = make_run(host="elsewhere", launched_at=now - 5000)
    stale = make_run(host="elsewhere", launched_at=now - 5000)
    silent = make_run(host="elsewhere", launched_at=now - 5000)
    with Store(db) as store:
        store.deliver([fresh, stale, silent])
        store.beat(fresh.run_id, 4999.0)
        store.beat(stale.run_id, 4000.0)
        with writing(store.engine) as connection:
            connection.execute(
                sa.text("UPDATE ledger_heartbeat SET beat_at = :old WHERE run_id = :run_id"),
                {"old": now - 1000, "run_id": stale.run_id},
            )
        assert sorted(store.recover()) == sorted([stale.run_id, silent.run_id])
        (end,) = store.read(queries.ends, stale.run_id)
        assert end.wall_seconds == 4000.0


def test_rows_left_in_a_spool_file_are_delivered_once_and_the_file_goes(db: str) -> None:
    run = make_dead_run(started_at=time.time() - 100.0)
    checkpoints = [make_checkpoint(run, seq) for seq in (1, 2)]
    with Store(db) as store:
        left = spool.Spool(store.spool_dir, run.run_id)
        left.append([run, *checkpoints])
        with left.path.open("ab") as file:
            file.write(b'["checkpoint",["torn')
        left.close(remove=False)
        assert store.recover() == [run.run_id]
        assert store.read(queries.checkpoints, run.run_id) == checkpoints
        (end,) = store.read(queries.ends, run.run_id)
        assert end.state == "crashed"
        assert 99.9 < end.wall_seconds < time.time() - run.started_at + 0.1
        assert list(store.spool_dir.iterdir()) == []


def test_a_spool_file_of_a_living_run_is_left_alone_until_it_is_complete(db: str) -> None:
    run = make_run()
    with Store(db) as store:
        left = spool.Spool(store.spool_dir, run.run_id)
        left.append([run])
        assert store.recover() == []
        assert store.read(queries.records) == []
        left.append([make_end(run)])
        store.recover()
        assert [record.state for record in store.read(queries.records)] == ["reached"]
        left.close(remove=True)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_what_a_crashed_run_is_billed_for_survives_a_step_of_the_clock(
    db: str, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_dead_run(started_at=time.time() - 5.0)
    writer = Writer(run, db, load_after=1000.0)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + step)  # as an administrator sets it
    time.sleep(0.3)
    writer.append([make_checkpoint(run, 1, wall_seconds=5.2)])
    writer._closing.set()
    for thread in writer._threads:
        thread.join()
    writer._spool.close(remove=False)  # the process is gone without a word
    with Store(db) as store:
        (recorded,) = store.read(queries.records)
    assert recorded.state == "crashed"
    assert recorded.wall_seconds == pytest.approx(5.3, abs=MINUTES)  # not an hour


def test_a_run_of_another_container_under_this_name_goes_on_as_long_as_it_beats(db: str) -> None:
    boot, start, _ = liveness.own_token().split(":")
    run = make_run(process_token=f"{boot}:{start}:4026500000")
    with Store(db) as store:
        left = spool.Spool(store.spool_dir, run.run_id)
        left.append([run, make_checkpoint(run, 1)])
        left.close(remove=False)
        assert store.recover() == []
        store.deliver([run])
        store.beat(run.run_id, 10.0)
        assert store.recover() == []
        assert [record.state for record in store.read(queries.records)] == ["running"]


def test_whoever_is_about_to_end_leaves_the_files_of_others_to_the_next_one(db: str) -> None:
    with Store(db) as store:
        runs = [make_run(run_id=f"20260101-00000{i}-00000000") for i in range(3)]
        for run in runs:
            left = spool.Spool(store.spool_dir, run.run_id)
            left.append([run, make_checkpoint(run, 1), make_end(run)])
            left.close(remove=False)
        asked = iter([False, True])
        store.recover(lambda: next(asked))
        assert [record.run_id for record in store.read(queries.records)] == [runs[0].run_id]
        assert len(list(store.spool_dir.iterdir())) == 2
        store.recover()
        assert len(store.read(queries.records)) == 3


def test_a_spool_that_another_is_delivering_is_left_to_it(db: str) -> None:
    run = make_dead_run()
    with Store(db) as store:
        left = spool.Spool(store.spool_dir, run.run_id)
        left.append([run, make_end(run)])
        left.close(remove=False)
        with spool.claimed(left.path) as mine:
            assert mine
            assert store.recover() == []
            assert store.read(queries.records) == []
        store.recover()
        assert [record.state for record in store.read(queries.records)] == ["reached"]


def test_whoever_opens_a_ledger_waits_for_rows_that_another_is_delivering(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mileage.ledger.store.OTHERS_SECONDS", 60.0)
    run = make_dead_run()
    with Store(db) as store:
        left = spool.Spool(store.spool_dir, run.run_id)
        left.append([run, make_end(run)])
        left.close(remove=False)
    with spool.claimed(left.path):
        opening = Thread(target=lambda: Store(db).close())
        opening.start()
        opening.join(0.2)
        assert opening.is_alive()
    opening.join(60.0)
    with Store(db, recover=False) as store:
        assert [record.state for record in store.read(queries.records)] == ["reached"]
