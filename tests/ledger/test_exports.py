from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
from pathlib import Path

import pytest
from sample_rows import make_checkpoint, make_end, make_phases, make_profile, make_run

from mileage.errors import UsageError
from mileage.ledger import exporting, queries, trackers
from mileage.ledger.exporting import stream_rows
from mileage.ledger.panels import Panel
from mileage.ledger.queries import RunStream
from mileage.ledger.runs import RecordedRun, episode_rows
from mileage.ledger.store import Store
from mileage.ledger.targets import Evaluation
from mileage.records import Record


@pytest.fixture
def recorded() -> RecordedRun:
    panel = Panel.default("CartPole-v1", 3, success="return>=475")
    run = make_run(panel=panel.to_json(), panel_id=panel.panel_id, started_at=1000.0, launched_at=1000.0)
    checkpoints = tuple(make_checkpoint(run, seq, success_rate=float(seq == 5)) for seq in range(1, 6))
    played = [Evaluation.of(panel.seeds, [100.0 * seq] * 3, [10] * 3, [seq == 5] * 3) for seq in range(1, 6)]
    return RecordedRun(
        run,
        make_end(run),
        checkpoints,
        tuple(make_phases(run, 9, rollout=40.0, learn=10.0, eval=10.0)),
        tuple(row for seq, each in enumerate(played, 1) for row in episode_rows(run.run_id, seq, each)),
        (make_profile(run, 10),),
    )


def rows_of(recorded: RecordedRun) -> list[object]:
    return [
        recorded.run,
        *recorded.checkpoints,
        *recorded.phase_rows,
        *recorded.episodes,
        *recorded.profiles,
        recorded.end,
    ]


def test_json_goes_out_and_comes_back_the_same_and_only_once(recorded: RecordedRun, tmp_path: Path) -> None:
    document = json.loads(exporting.dumps([recorded]))
    assert exporting.is_ours(document)
    assert document["runs"][0]["run"]["config"] == {"lr": 0.1}
    rows = exporting.loads(document)
    assert sorted(map(repr, rows)) == sorted(map(repr, rows_of(recorded)))
    with Store(tmp_path / "mileage.db") as store:
        for _ in range(2):
            store.deliver(rows)
        (again,) = store.read(queries.complete_runs, None)
    assert again.checkpoints == recorded.checkpoints
    assert sorted(again.phase_rows) == sorted(recorded.phase_rows)
    assert (again.run, again.end, again.episodes, again.profiles) == (
        recorded.run,
        recorded.end,
        recorded.episodes,
        recorded.profiles,
    )


def test_what_an_earlier_version_did_not_know_is_absent(recorded: RecordedRun) -> None:
    document = json.loads(exporting.dumps([recorded]))
    del document["runs"][0]["samples"], document["runs"][0]["kpis"]
    del document["runs"][0]["end"]["peak_gpu_gb"]
    assert sorted(map(repr, exporting.loads(document))) == sorted(map(repr, rows_of(recorded)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: d.update(format_version=99), "format version 99"),
        (lambda d: d.pop("runs"), "not a ledger export"),
        (lambda d: d["runs"][0]["run"].pop("name"), "has no 'name'"),
        (lambda d: d["runs"][0]["run"].update(run_id="../../x"), "run id"),
        (lambda d: d["runs"][0]["checkpoints"][0].update(step="many"), "step of a checkpoint row"),
        (lambda d: d["runs"][0]["checkpoints"][0].update(run_id="other"), "belong to another run"),
        (lambda d: d["runs"].append(3), "not a ledger export"),
    ],
)
def test_a_damaged_export_is_refused(recorded: RecordedRun, damage: object, message: str) -> None:
    document = json.loads(exporting.dumps([recorded]))
    damage(document)  # type: ignore[operator]
    with pytest.raises(UsageError, match=message):
        exporting.loads(document)


def table_rows(runs: list[RecordedRun], table: str) -> list[Record]:
    return list(stream_rows(map(RunStream.of, runs), table))


def csv_text(runs: list[RecordedRun], table: str = "runs") -> str:
    return "".join(exporting.csv_chunks(map(RunStream.of, runs), table))


def write_parquet(runs: list[RecordedRun], path: Path, table: str = "runs") -> None:
    exporting.write_parquet_streams(map(RunStream.of, runs), path, table)


def test_csv_has_one_line_per_row_and_no_formula(recorded: RecordedRun) -> None:
    evil = RecordedRun(recorded.run._replace(name='=HYPERLINK("x")', run_id="evil"), None)
    (first, second) = csv.DictReader(io.StringIO(csv_text([recorded, evil])))
    assert (first["state"], first["cost_usd"], first["wall_to_target"]) == ("reached", "0.06", "50.0")
    assert (second["state"], second["cost_usd"], second["name"]) == ("running", "", '\'=HYPERLINK("x")')
    lines = list(csv.DictReader(io.StringIO(csv_text([recorded], "checkpoints"))))
    assert [line["step"] for line in lines] == ["1000", "2000", "3000", "4000", "5000"]
    assert [line["phase"] for line in table_rows([recorded], "phases")] == ["rollout", "learn", "eval"]
    assert [line["seed"] for line in table_rows([recorded], "episodes")] == [*Panel.default("CartPole-v1", 3).seeds] * 5
    with pytest.raises(UsageError, match="table 'profiles' is not known"):
        table_rows([recorded], "profiles")


def test_parquet_holds_the_same_table(recorded: RecordedRun, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    write_parquet([recorded], tmp_path / "c.parquet", "checkpoints")
    assert parquet.read_table(tmp_path / "c.parquet").to_pylist() == table_rows([recorded], "checkpoints")


def test_markdown_shows_a_run_and_does_nothing_else(recorded: RecordedRun) -> None:
    evil = RecordedRun(recorded.run._replace(name="a|b\n<script>\x1b[31m", price_usd_per_hour=0.0), recorded.end)
    lines = exporting.markdown_text([recorded, evil]).splitlines()
    cells = [cell.strip() for cell in lines[2].strip("|").split(" | ")]
    assert cells[5:8] == ["reached", "5,000", "60"]
    assert cells[12:15] == ["50", "0.06", "0.05"]
    assert "a\\|b &lt;script&gt;�[31m" in lines[3]
    assert "no price set" in lines[3]
    assert len(lines) == 4


def test_mllog_lines_pass_the_common_rules_of_mlperf(recorded: RecordedRun, tmp_path: Path) -> None:
    checker_module = pytest.importorskip(
        "mlperf_logging.compliance_checker.mlp_compliance", reason="mlperf_logging is not installed"
    )
    path = tmp_path / "run.log"
    path.write_text("".join(line + "\n" for line in exporting.lines(recorded)))
    checker = checker_module.make_checker("training", "4.0.0", quiet=False, werror=True)
    logging.disable(logging.CRITICAL)
    try:
        checker.check_file(str(path), "training_4.0.0/common.yaml")
    finally:
        logging.disable(logging.NOTSET)
    # Everything passes but the benchmark's name: a run is no submission, and does not pretend to be one.
    messages = [*checker.overwritable.values(), *checker.not_overwritable, *checker.warnings.values()]
    assert messages == ["Required EXACTLY_ONE occurrence of 'submission_benchmark' but found 0"]


def test_mllog_lines_carry_the_run(recorded: RecordedRun) -> None:
    records = [json.loads(line.removeprefix(":::MLLOG ")) for line in exporting.lines(recorded)]
    assert all(record["namespace"] == "mileage" for record in records)
    times = [record["time_ms"] for record in records]
    assert times == sorted(times)
    assert times[0] == 1_000_000
    by_key = {record["key"]: record for record in records}
    assert by_key["seed"]["value"] == 0
    assert by_key["eval_samples"]["value"] == 3
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    assert by_key["run_stop"]["time_ms"] == 1_060_000
    assert by_key["mileage_cost_usd"]["value"] == 0.06
    accuracy = [record["value"] for record in records if record["key"] == "eval_accuracy"]
    assert accuracy == [100.0, 200.0, 300.0, 400.0, 500.0]


def test_tensorboard_reads_back_what_was_written(recorded: RecordedRun, tmp_path: Path) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        loader = pytest.importorskip(
            "tensorboard.backend.event_processing.event_file_loader", reason="tensorboard is not installed"
        )
    trackers.write([recorded], tmp_path)
    (file,) = (tmp_path / recorded.run.run_id).iterdir()
    events = [event for event in loader.RawEventFileLoader(str(file)).Load()]  # noqa: C416
    from tensorboard.compat.proto.event_pb2 import Event

    parsed = [Event.FromString(event) for event in events]
    scalars = [(e.step, v.tag, v.simple_value) for e in parsed for v in e.summary.value]
    assert [(step, value) for step, tag, value in scalars if tag == "eval/mean_return"] == [
        (1000 * seq, 100.0 * seq) for seq in range(1, 6)
    ]
    assert not any(tag == "memory/peak_gpu_gb" for _, tag, _ in scalars)


def test_no_line_of_a_cell_is_taken_for_a_formula() -> None:
    from mileage.tables import from_spreadsheet_cell, spreadsheet_cell

    for evil in ("x\r=1+1", "x\n@sum", "x\x0b+1", "\r\n=1", "x\u2028-1", "＝1", "x\r'=1", "'\r=1"):
        cell = spreadsheet_cell(evil)
        lines = cell.splitlines()
        assert not any(line.startswith(("=", "+", "-", "@", "＝")) for line in lines), cell
        assert from_spreadsheet_cell(cell) == evil


def test_parquet_columns_have_their_types_where_every_value_is_absent(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    run = make_run(seed=None, git_revision=None)
    write_parquet([RecordedRun(run, None)], tmp_path / "r.parquet")
    write_parquet([], tmp_path / "none.parquet", "episodes")
    kinds = {field.name: str(field.type) for field in parquet.read_schema(tmp_path / "r.parquet")}
    assert (kinds["seed"], kinds["git_revision"], kinds["cost_usd"], kinds["voided"]) == (
        "int64", "string", "double", "bool",
    )  # fmt: skip
    assert {str(field.type) for field in parquet.read_schema(tmp_path / "none.parquet")} == {
        "string", "int64", "double", "bool",
    }  # fmt: skip


def test_an_export_holds_few_rows_at_a_time(recorded: RecordedRun, tmp_path: Path) -> None:
    from mileage.ledger.queries import streams

    with Store(tmp_path / "mileage.db") as store:
        store.deliver([recorded.run, recorded.end, *(make_checkpoint(recorded.run, seq) for seq in range(1, 5001))])  # type: ignore[list-item]
        with store.engine.connect() as connection:
            (stream,) = streams(connection, None)
            rows = stream.rows("checkpoint")
            assert next(rows).seq == 1
            assert sum(1 for _ in rows) == 4999
            assert sum(1 for _ in exporting.csv_chunks([stream], "checkpoints")) == 5001
            assert sum(1 for _ in exporting.chunks([stream])) > 5000
