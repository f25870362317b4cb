"""REST v2's catalog, and billing by the hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulator.control.catalog import CATALOG
from emulator.control.problem import Problem
from emulator.control.usage import HourCost, Usage
from tests.emulator.control_kit import controlled

HOUR = 3600.0


async def test_prices_are_those_of_the_pools_per_hour(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        gpus = {gpu["id"]: gpu for gpu in (await rest.get("/catalog/gpus"))["gpus"]}
        assert gpus["NVIDIA GeForce RTX 4090"]["price"]["serverless"] == pytest.approx(0.00031 * 3600)
        assert gpus["NVIDIA L4"]["pool"] == "AMPERE_24"
        assert "serverless" not in gpus["AMD Instinct MI300X OAM"]["price"]
        assert "availability" not in gpus["NVIDIA L4"]
        assert (await rest.get("/catalog/gpus/NVIDIA%20L4")) == gpus["NVIDIA L4"]
        await rest.get("/catalog/gpus/none", 404)
        cpu = await rest.get("/catalog/cpus/cpu3g")
        assert cpu["ramGbPerVcpu"] == 4


async def test_availability_needs_a_product_and_is_filtered_by_country(tmp_path: Path) -> None:
    async with controlled(tmp_path, stock={"ADA_24": "NONE", "NVIDIA L4": "LOW"}) as (emulator, rest):
        await rest.get("/catalog/gpus?include=AVAILABILITY", 400)
        await rest.get("/catalog/gpus?product=SERVERLESS", 400)
        await rest.get("/catalog/gpus?include=AVAILABILITY&product=TPU", 422)
        await rest.get("/catalog/gpus?include=AVAILABILITY&product=SERVERLESS&countryCodes=ro", 422)
        asked = "/catalog/gpus?include=AVAILABILITY&product=POD,SERVERLESS&countryCodes=RO,NO"
        gpus = {gpu["id"]: gpu for gpu in (await rest.get(asked))["gpus"]}
        assert "NVIDIA GeForce RTX 4090" not in gpus
        assert gpus["NVIDIA L4"]["availability"] == "LOW"
        assert [center["id"] for center in gpus["NVIDIA L4"]["dataCenters"]] == ["EU-RO-1", "EUR-NO-1"]
        one = await rest.get("/catalog/gpus/NVIDIA%20GeForce%20RTX%204090?include=AVAILABILITY&product=SERVERLESS")
        assert one["availability"] == "NONE"
        assert "dataCenters" not in one
        emulator.account.set_stock("ADA_24", "HIGH")
        one = await rest.get("/catalog/gpus/NVIDIA%20GeForce%20RTX%204090?include=AVAILABILITY&product=SERVERLESS")
        assert one["availability"] == "HIGH"


async def test_data_centers_are_filtered(tmp_path: Path) -> None:
    async with controlled(tmp_path) as (_, rest):
        asked = "/catalog/datacenters?regions=EUROPE&networkVolumeTypes=STANDARD&include=GPU_AVAILABILITY"
        found = (await rest.get(asked))["dataCenters"]
        assert [center["id"] for center in found] == ["EU-CZ-1", "EU-RO-1", "EUR-IS-1", "EUR-NO-1"]
        assert found[0]["gpuAvailability"]
        await rest.get("/catalog/datacenters?regions=MOON", 422)
        assert (await rest.get("/catalog/datacenters/US-KS-2"))["networkVolumeTypes"] == ["STANDARD", "HIGH_PERFORMANCE"]


def test_every_pool_has_a_price_and_a_member() -> None:
    for pool, price in CATALOG.pool_usd_per_s.items():
        assert price > 0
        assert CATALOG.members(pool)
    assert len({center.id for center in CATALOG.data_centers}) == len(CATALOG.data_centers)


def test_a_cost_is_spread_over_the_hours_in_which_it_arose() -> None:
    usage = Usage()
    rows = usage.spent("e", "GPU", 1.5 * HOUR, 4 * HOUR, 5.0)
    assert {row.hour: row.gpu for row in rows} == pytest.approx({1: 1.0, 2: 2.0, 3: 2.0})
    usage.spent("e", "GPU", 3.5 * HOUR, 3.5 * HOUR, 1.0)
    usage.spent("c", "CPU", 3 * HOUR, 3.1 * HOUR, 0.25)
    answer = usage.serverless({"bucketSize": "hour", "lastN": "2"}, 4.5 * HOUR)
    assert [(record["serverlessId"], record["gpuAmount"], record["cpuAmount"]) for record in answer["records"]] == [
        ("c", 0.0, 0.25),
        ("e", pytest.approx(3.0), 0.0),
    ]
    assert answer["metadata"]["query"] == {
        "startTime": "1970-01-01T03:00:00Z",
        "endTime": "1970-01-01T05:00:00Z",
        "bucketSize": "hour",
        "serverlessId": None,
    }
    assert answer["metadata"]["totals"]["totalAmount"] == pytest.approx(3.25)


def test_the_window_is_widened_to_whole_buckets() -> None:
    usage = Usage([HourCost("e", 24 * 40 + 5, gpu=1.0)])  # 10 February 1970, 05:00
    query = {"startTime": "1970-02-10T04:00:00Z", "endTime": "1970-02-10T06:00:00+00:00", "serverlessId": "e"}
    answer = usage.serverless(query, 0.0)
    (record,) = answer["records"]
    assert (record["startTime"], record["endTime"]) == ("1970-02-10T00:00:00Z", "1970-02-11T00:00:00Z")
    for size, start, end in (
        ("week", "1970-02-09T00:00:00Z", "1970-02-16T00:00:00Z"),
        ("month", "1970-02-01T00:00:00Z", "1970-03-01T00:00:00Z"),
        ("year", "1970-01-01T00:00:00Z", "1971-01-01T00:00:00Z"),
    ):
        (record,) = usage.serverless({**query, "bucketSize": size}, 0.0)["records"]
        assert (record["startTime"], record["endTime"]) == (start, end)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"bucketSize": "minute"}, 422),
        ({"lastN": "0"}, 422),
        ({"lastN": "2", "startTime": "2026-01-01T00:00:00Z"}, 400),
        ({"startTime": "yesterday"}, 422),
        ({"startTime": "2026-01-01T00:00:00"}, 422),
        ({"startTime": "2026-01-02T00:00:00Z", "endTime": "2026-01-01T00:00:00Z"}, 400),
    ],
)
def test_a_window_that_cannot_be_is_refused(query: dict[str, str], status: int) -> None:
    with pytest.raises(Problem) as caught:
        Usage().serverless(query, 1_700_000_000.0)
    assert caught.value.status == status
