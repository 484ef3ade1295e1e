"""A bill with FOCUS columns beside runs of the ledger."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.ledger.recorder import Ledger
from mileage.ledger.runs import RecordedRun
from mileage.report.cost import Charge, read_bill, reconcile

HEADER = "BilledCost,BillingCurrency,ChargePeriodStart,ChargePeriodEnd,ResourceId,ResourceName,Tags\n"


def run_on(host: str, start: float, seconds: float, price: float = 3.6) -> RecordedRun:
    """A run with a frozen price, put at a time and on a host of the test's choice."""
    with Ledger(enabled=False).run("arm", price_usd_per_hour=price, resources=False) as recorder:
        pass
    assert recorder.result is not None
    found = recorder.result
    assert found.end is not None
    run = found.run._replace(host=host, started_at=start)
    spent = {"wall_seconds": seconds, "billable_seconds": seconds, "cost_usd": seconds / 3600.0 * price}
    end = found.end._replace(**spent, init_seconds=0.0, compile_seconds=0.0, eval_seconds=0.0)
    return dataclasses.replace(found, run=run, end=end)


def charge(start: float, end: float, billed: float, *names: str) -> Charge:
    return Charge(start, end, billed, names[0], frozenset(names))


def test_runs_share_the_time_in_which_any_of_them_ran_and_the_rest_is_idle() -> None:
    """An hour at 4 dollars: alone for 900 s, together for 900 s, alone for 900 s, idle for 900 s."""
    first, second = run_on("box", 0.0, 1800.0), run_on("box", 900.0, 1800.0)
    found = reconcile([first, second], [charge(0.0, 3600.0, 4.0, "i-1", "box"), charge(0.0, 3600.0, 9.0, "other")])
    assert [each.billed_usd for each in found.runs] == pytest.approx([1.5, 1.5])
    assert [each.listed_usd for each in found.runs] == pytest.approx([1.8, 1.8])
    assert (found.billed_usd, found.idle_usd, found.foreign_usd) == pytest.approx((4.0, 1.0, 9.0))
    assert "25" in found.table().note


def test_a_run_over_two_charges_gets_its_part_of_each() -> None:
    run = run_on("box", 3000.0, 1200.0)
    found = reconcile([run], [charge(0.0, 3600.0, 3.6, "box"), charge(3600.0, 7200.0, 7.2, "box")])
    assert found.runs[0].billed_usd == pytest.approx(0.6 + 1.2)


def test_hosts_are_known_by_name_tag_run_id_or_what_the_user_says() -> None:
    run = run_on("box", 0.0, 3600.0)
    for names, said in ((("i-1", "box"), {}), (("i-1", run.run_id), {}), (("i-1",), {"box": "i-1"})):
        found = reconcile([run], [charge(0.0, 3600.0, 2.0, *names)], said)
        assert found.runs[0].billed_usd == pytest.approx(2.0)
    assert reconcile([run], [charge(0.0, 3600.0, 2.0, "i-1")]).runs[0].billed_usd is None


def test_a_run_without_a_price_has_no_listed_dollars() -> None:
    found = reconcile([run_on("box", 0.0, 3600.0, price=0.0)], [])
    assert (found.runs[0].listed_usd, found.runs[0].billed_usd) == (None, None)
    assert {"no price set", "not on the bill"} <= set(found.table().rows[0])


def test_a_focus_file_is_read(tmp_path: Path) -> None:
    tags = json.dumps({"Name": "box", "team": "rl"}).replace('"', '""')
    bill = tmp_path / "bill.csv"
    bill.write_text(
        HEADER
        + f'2.5,USD,2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,i-1,,"{tags}"\n'
        + "1.0,USD,2026-11-01T00:00:00Z,2026-12-01T00:00:00Z,,,\n"
    )
    (found,) = read_bill(bill)
    assert found.names == {"i-1", "box", "rl"}
    assert (found.end - found.start, found.billed) == (3600.0, 2.5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a,b\n1,2\n", "BilledCost is missing"),
        (HEADER + "1,EUR,2026-11-01,2026-11-02,i,,\n", "the bill is in EUR"),
        (HEADER + "x,USD,2026-11-01,2026-11-02,i,,\n", "line 2: cost and period"),
        (HEADER + "1,USD,2026-11-02,2026-11-01,i,,\n", "must end after it starts"),
        (HEADER + "inf,USD,2026-11-01,2026-11-02,i,,\n", "must be finite"),
    ],
)
def test_what_is_no_bill_is_refused_in_a_sentence(tmp_path: Path, content: str, said: str) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(content)
    with pytest.raises(UsageError, match=said):
        read_bill(bill)
