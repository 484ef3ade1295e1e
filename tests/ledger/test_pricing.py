"""What an hour costs when nobody types it: variables, price lists, and machines that say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from mileage.errors import UsageError
from mileage.ledger import catalogue, prices
from mileage.ledger.prices import freeze_price, launch_price
from mileage.measure.machine import fingerprint

HEADER = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region\n"


@pytest.fixture
def catalogue_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = fingerprint()
    folder = tmp_path / "v8"
    for cloud, rows in {
        "aws": "c9.large,,,2,4,0.09,0.03,us-east-1\nc9.large,,,2,4,0.11,,eu-west-1\nfree,,,2,4,,,us-east-1\n",
        "gcp": f"n9-same,,,{here.cores},{here.memory_gb},0.5,0.2,us-east1\nn9-other,,,96,384,5,2,us-east1\n",
    }.items():
        (folder / cloud).mkdir(parents=True)
        (folder / cloud / "vms.csv").write_text(HEADER + rows)
    monkeypatch.setenv(catalogue.ENVIRONMENT_VARIABLE, str(tmp_path))
    return folder


@pytest.fixture
def dmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tables of a firmware that a test writes, and nothing of the machine that it runs on."""
    folder = tmp_path / "dmi"
    folder.mkdir()
    monkeypatch.delenv(prices.NO_RECOGNITION, raising=False)
    recognised = prices.recognised
    monkeypatch.setattr(prices, "recognised", lambda: recognised(folder))
    return folder


def test_the_catalogue_has_regions_and_markets(catalogue_directory: Path) -> None:
    price = freeze_price(instance="aws/c9.large")
    assert (price.usd_per_hour, price.instance) == (0.09, "aws/c9.large")
    assert price.source == "SkyPilot catalogue, us-east-1, the cheapest of 2 offers"
    assert price.as_of
    assert freeze_price(instance="aws/c9.large@eu-west-1").usd_per_hour == 0.11
    assert freeze_price(instance="aws/c9.large", spot=True).usd_per_hour == 0.03
    with pytest.raises(UsageError, match=r"no spot price for 'aws/c9\.large' in eu-west-1"):
        freeze_price(instance="aws/c9.large@eu-west-1", spot=True)
    with pytest.raises(UsageError, match="no on_demand price for 'aws/free'"):
        freeze_price(instance="aws/free")


def test_the_price_book_comes_before_the_catalogue(catalogue_directory: Path) -> None:
    (catalogue_directory / "aws" / "vms.csv").write_text(HEADER + "g5.xlarge,A10G,1,4,16,7.0,2.0,us-east-1\n")
    assert freeze_price(instance="aws/g5.xlarge").usd_per_hour == 1.006
    assert freeze_price(instance="aws/g5.xlarge", spot=True).usd_per_hour == 2.0


@pytest.mark.parametrize("content", ["InstanceType,Region\nx,y\n", b"\xff\xfe\x00"])
def test_a_damaged_catalogue_is_named(catalogue_directory: Path, content: str | bytes) -> None:
    path = catalogue_directory / "aws" / "vms.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=r"aws/vms\.csv"):
        freeze_price(instance="aws/c9.large")


def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEVICE_PRICE_PER_HOUR", "3.5")
    assert launch_price().source == "environment variable DEVICE_PRICE_PER_HOUR"
    monkeypatch.setenv("MILEAGE_PRICE", "0.35+0.19")
    assert launch_price().usd_per_hour == pytest.approx(0.54)
    assert launch_price("2.2").usd_per_hour == 2.2
    monkeypatch.setenv("MILEAGE_PRICE", "cheap")
    with pytest.raises(UsageError, match=r"^MILEAGE_PRICE: price 'cheap' is not a number"):
        launch_price()


def test_an_instance_that_says_its_type_has_its_listed_price(dmi: Path) -> None:
    (dmi / "sys_vendor").write_text("Amazon EC2\n")
    (dmi / "product_name").write_text("g5.xlarge\n")
    price = launch_price()
    assert (price.usd_per_hour, price.instance) == (1.006, "aws/g5.xlarge")
    assert price.source.endswith("recognised by DMI: Amazon EC2, g5.xlarge")
    (dmi / "product_name").write_text("unheard.of\n")
    assert launch_price().source == "no price set"


def test_an_instance_that_says_only_its_cloud_is_found_by_its_size(dmi: Path, catalogue_directory: Path) -> None:
    (dmi / "product_name").write_text("Google Compute Engine\n")
    assert launch_price().instance == "gcp/n9-same"
    path = catalogue_directory / "gcp" / "vms.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[1].replace("n9-same", "n9-twin") + "\n")
    assert launch_price().usd_per_hour == 0.0  # two types fit: neither is certain


def test_a_partition_has_the_price_of_the_site_s_file(
    dmi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "site.toml"
    book.write_text('[instances."slurm/gpu"]\non_demand = { node = 1.25 }\nsource = "site"\nas_of = "2026-11-01"\n')
    monkeypatch.setenv("MILEAGE_PRICES", str(book))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "gpu")
    price = launch_price()
    assert (price.usd_per_hour, price.instance) == (1.25, "slurm/gpu")
    assert "Slurm partition gpu" in price.source


def test_a_machine_of_nobody_s_has_no_price(dmi: Path) -> None:
    assert launch_price().source == "no price set"


@pytest.mark.parametrize("price", ["22000", "0.00000001", 1e6])
def test_a_price_in_another_unit_is_refused(price: float | str) -> None:
    with pytest.raises(UsageError, match="not plausible for one instance"):
        freeze_price(price)
