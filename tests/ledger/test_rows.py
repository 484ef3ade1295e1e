from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_rows import make_checkpoint, make_end, make_run

from mileage.errors import UsageError
from mileage.ledger.recorder import Ledger
from mileage.ledger.rows import check_json, check_run, check_run_id, check_types, new_run_id


def test_run_ids_begin_with_the_launch_time_and_differ() -> None:
    ids = {new_run_id(0.5) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(run_id.startswith("19700101-000000-") and check_run_id(run_id) == run_id for run_id in ids)


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "a\\b", ".", "a b", "-x", "x" * 65, "a\0", "a\n"])
def test_a_run_id_is_never_a_path(run_id: str) -> None:
    with pytest.raises(UsageError, match="run id"):
        check_run_id(run_id)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "must not be empty"),
        ({"name": "x" * 201}, "name is 201 characters long: shorten it to 200"),
        ({"name": "x" * 10_000_000}, "10,000,000 characters"),
        ({"name": "a\0b"}, "NUL"),
        ({"name": "\ud800"}, "surrogate"),
        ({"config": "x" * 10_000_000}, "config is 10,000,000 characters"),
        ({"command": "x" * 5000}, "command is 5,000"),
        ({"run_id": "../../etc"}, "run id"),
        ({"parent_run_id": "../../etc"}, "run id"),
        ({"instances": 0}, "instances must be at least 1"),
        ({"price_usd_per_hour": -1.0}, "price_usd_per_hour"),
        ({"price_usd_per_hour": float("nan")}, "price_usd_per_hour"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_one_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        check_run(make_run(**change))
    assert len(str(caught.value)) < 300


def test_names_that_are_only_strange_are_stored() -> None:
    for name in ("'; DROP TABLE x; --", "<b>", "\x1b[2J", "../..", "a" * 200, "名前"):
        assert check_run(make_run(name=name)).name == name


def test_config_must_be_plain_and_of_bounded_size() -> None:
    assert check_json("config", {"b": 1, "a": [None, 2.5]}) == '{"a":[null,2.5],"b":1}'
    with pytest.raises(UsageError, match="keep it under 1,000,000"):
        check_json("config", {"x": "y" * 2_000_000})
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(UsageError, match="plain JSON"):
        check_json("config", nested)


def test_rows_of_a_file_must_have_their_types() -> None:
    run = make_run()
    for row in (run, make_checkpoint(run, 1), make_end(run), make_checkpoint(run, 1, wall_seconds=3)):
        assert check_types(row) is row
    for change in ({"step": "many"}, {"step": True}, {"step": 2**63}, {"wall_seconds": None}, {"target_met": 1}):
        with pytest.raises(UsageError, match="checkpoint row"):
            check_types(make_checkpoint(run, 1, **change))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"instances": 10**30}, "instances of a run row is too large"),
        ({"batch_size": "many"}, "batch_size of a run row cannot be 'many'"),
        ({"batch_size": True}, "batch_size of a run row cannot be 'True'"),
        ({"step_budget": -1}, "step_budget of a run must be 0 or more, not -1"),
        ({"seed": 10**30}, "seed"),
    ],
)
def test_a_run_that_no_database_can_hold_is_refused_when_it_is_launched(
    given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=sentence):
        Ledger(tmp_path / "ledger.db").run("r", **given)
    assert not (tmp_path / "ledger.db").exists()


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    run = Ledger(tmp_path / "ledger.db").run("r", batch_size=np.int64(64), step_budget=np.int32(5))  # type: ignore[arg-type]
    assert (run.row.batch_size, run.row.step_budget) == (64, 5)
    run.end()
