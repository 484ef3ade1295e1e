from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from mileage.errors import UnknownNameError, UsageError
from mileage.ledger.prices import freeze_price, price_book, shipped_book


@pytest.fixture(autouse=True)
def own_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[instances."lab/box"]\non_demand = { host = 0.25, gpu = 1.5 }\nspot = { host = 0.1, gpu = 0.5 }\n'
        '[instances."aws/g5.xlarge"]\non_demand = { instance = 9.0 }\nsource = "our contract"\n'
    )
    monkeypatch.setenv("MILEAGE_PRICES", str(path))
    return path


def test_an_explicit_price_wins_and_is_dated() -> None:
    price = freeze_price("2.20", "aws/g5.xlarge", now=0.0)
    assert price.usd_per_hour == 2.20
    assert (price.instance, price.source, price.as_of, price.market) == (
        "aws/g5.xlarge",
        "given at launch",
        "1970-01-01",
        "on_demand",
    )
    assert freeze_price(2.2).usd_per_hour == 2.2


def test_gpu_and_host_billed_apart_are_summed() -> None:
    assert freeze_price("0.35+0.19").usd_per_hour == pytest.approx(0.54)
    price = freeze_price(instance="gcp/n1-standard-4+t4")
    assert dict(price.parts) == {"host": 0.19, "gpu": 0.35}
    assert price.usd_per_hour == pytest.approx(0.54)


def test_no_price_is_zero_and_says_so() -> None:
    price = freeze_price()
    assert (price.usd_per_hour, price.source) == (0.0, "no price set")
    assert freeze_price(0).usd_per_hour == 0.0


def test_the_users_book_overrides_and_adds() -> None:
    assert freeze_price(instance="aws/g5.xlarge").usd_per_hour == 9.0
    assert freeze_price(instance="lab/box").usd_per_hour == 1.75
    spot = freeze_price(instance="lab/box", spot=True)
    assert (spot.usd_per_hour, spot.market) == (0.6, "spot")
    assert set(shipped_book()) < set(price_book())


def test_the_frozen_price_is_stored_in_full() -> None:
    stored = json.loads(freeze_price(instance="gcp/n1-standard-4+t4", now=5.0).to_json())
    assert stored["parts"] == {"host": 0.19, "gpu": 0.35}
    assert stored["frozen_at"] == 5.0
    assert stored["currency"] == "USD"
    assert stored["as_of"] == "2025-01-01"
    assert "Google Cloud" in stored["source"]


def test_every_shipped_price_is_dated_sourced_and_positive() -> None:
    assert len(shipped_book()) >= 10
    for name, entry in shipped_book().items():
        assert datetime.date.fromisoformat(entry["as_of"]).year >= 2025, name
        assert entry["source"], name
        assert entry["region"], name
        assert all(amount > 0 for amount in entry["on_demand"].values()), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"price": "cheap"}, "not a number of dollars an hour"),
        ({"price": -1.0}, "0 or more"),
        ({"price": float("nan")}, "0 or more"),
        ({"price": "inf"}, "0 or more"),
        ({"instance": "aws/g6.xlarge", "spot": True}, "no spot price"),
    ],
)
def test_refusals(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        freeze_price(**arguments)  # type: ignore[arg-type]


def test_an_unknown_instance_suggests_a_known_one() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'aws/g5\.xlarge'"):
        freeze_price(instance="aws/g5.xlarg")


@pytest.mark.parametrize("content", ["not toml [", "instances = 3", "[instances]\nx = 3"])
def test_a_broken_book_is_named(own_book: Path, content: str) -> None:
    own_book.write_text(content)
    with pytest.raises(UsageError, match=r"prices\.toml"):
        freeze_price(instance="x")


def test_a_book_that_is_named_must_exist(own_book: Path) -> None:
    own_book.unlink()
    with pytest.raises(UsageError, match="does not exist: correct MILEAGE_PRICES"):
        freeze_price(instance="x")
