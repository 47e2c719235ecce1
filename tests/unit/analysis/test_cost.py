"""What training costs: the studies' own figures, whole machines, intervals turned over, the knee."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import cost, prices
from scaling.analysis.table.analyse import rows
from scaling.analysis.table.cost import Base, Bill, Pricing, bill, knee, paid, relative, why_not
from scaling.analysis.table.prices import Match, Price, Prices
from scaling.analysis.table.rows import Row
from scaling.records.host import Gpu
from scaling.workloads import data
from tests.support.compared_runs import without_noise
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import close, header, host, mean

V100 = Price(
    name="p3.2xlarge", match=Match(cpu="Test CPU*"), devices=1, per_hour={"on_demand": 3.06, "spot": 0.92}
)
DAY_S = 86400.0


def pricing(*found: Price, **changes: Any) -> Pricing:
    return Pricing(Prices(currency="USD", price=found or (V100,)), **changes)


def row(n: int, **changes: Any) -> Row:
    """Of `fake:a` on N devices: 100 samples/s per device, efficiency 0.8."""
    (found,) = [one for one in rows(without_noise()[1]) if (one.strategy, one.world_size) == ("fake:a", n)]
    rate = Estimate(mean=100.0 * n, low=80.0 * n, high=125.0 * n, n=3, df=2)
    return replace(
        found, samples_per_s=rate, efficiency=Estimate(mean=0.8, low=0.64, high=1.0, n=3, df=2), **changes
    )


def billed(of: Row, asked: Pricing, **of_header: Any) -> Bill:
    found = bill(of, header(**of_header), asked)
    assert isinstance(found, Bill), found
    return found


@pytest.mark.parametrize(("minutes", "per_hour", "dollars"), [(12.8, 3.06, 0.65), (51.6, 0.90, 0.77)])
def test_the_studies_own_bills(minutes: float, per_hour: float, dollars: float) -> None:
    """Domino's comparison of cloud GPUs (2018): a training's minutes times the price of its instance."""
    assert round(paid(minutes * 60, per_hour), 2) == dollars


def test_a_million_samples() -> None:
    """1e6 / 100 per second = 10,000 s of one instance; the interval is that of the rate, turned over."""
    found = billed(row(1), pricing()).per_million
    assert {how: one.mean for how, one in found.items()} == {
        "on_demand": close(10_000 / 3600 * 3.06), "spot": close(10_000 / 3600 * 0.92)
    }  # fmt: skip
    one = found["on_demand"]
    assert (one.low, one.high) == (close(8_000 / 3600 * 3.06), close(12_500 / 3600 * 3.06))


@pytest.mark.parametrize(
    ("n", "devices", "nodes", "machines"),
    [(1, 8, 1, 1), (4, 8, 1, 1), (4, 4, 1, 1), (4, 3, 1, 2), (4, 1, 1, 4), (4, 8, 2, 2)],
)
def test_machines_are_paid_whole(n: int, devices: int, nodes: int, machines: int) -> None:
    found = billed(row(n, nodes=nodes), pricing(replace(V100, devices=devices)))
    assert (found.machines, found.devices_paid) == (machines, machines * devices)
    assert found.per_million["on_demand"].mean == close(machines * 3.06 / 3600 * 1e6 / (100 * n))


def test_servers_that_have_nodes_of_their_own_are_paid() -> None:
    servers = [one for one in rows(SCENES["servers"]()[1]) if one.world_size == 2 and one.servers == 2]
    by_place = {one.server_hosts: billed(one, pricing(replace(V100, devices=2))).machines for one in servers}
    assert by_place == {"shared": 1, "dedicated": 2}


def test_relative_cost_is_one_over_efficiency_where_a_machine_has_one_device() -> None:
    found = billed(row(4), pricing()).relative
    assert found and (found.mean, found.low, found.high) == (close(1.25), close(1.0), close(1 / 0.64))
    assert relative(row(4)) == found


def test_samples_that_taught_less_have_no_relative_cost_to_any_row() -> None:
    one, four = row(1), row(4)
    ratio = Estimate(mean=0.3, low=None, high=None, n=1)
    asked = Pricing(None, base=Base("own N=1", one, {(four.curve, 4): ratio}))
    assert billed(four, asked).relative is not None
    stale = replace(four, learnt_less=True)
    assert billed(stale, asked).relative is None
    assert why_not(stale) == "its samples taught less" and why_not(four) == ""


def test_relative_cost_on_machines_of_eight() -> None:
    """Four devices of eight: one machine does 3.2 times what it does with one device."""
    assert mean(billed(row(4), pricing(replace(V100, devices=8))).relative) == close(1 / 3.2)


def test_an_epoch_is_what_is_trained_on() -> None:
    published = {name: one.splits["train"] for name, one in data.CATALOGUE.items() if "train" in one.splits}
    assert published == cost.EPOCHS


def test_an_epoch() -> None:
    assert billed(row(1), pricing()).per_epoch["spot"].mean == close(1437 / 100 / 3600 * 0.92)
    assert billed(row(1), pricing(epoch_samples=1000)).per_epoch["spot"].mean == close(10 / 3600 * 0.92)
    of_unknown = row(1)
    of_unknown = replace(of_unknown, workload=replace(of_unknown.workload, data="synthetic"))
    assert billed(of_unknown, pricing()).per_epoch == {}


@pytest.mark.parametrize(
    ("flag", "said"), [("FAILED", "failed"), ("OVERSUBSCRIBED", "share cores"), ("MISLABELLED", "another network")]
)
def test_what_is_not_what_it_says_has_no_price(flag: str, said: str) -> None:
    found = bill(row(2, flags=(flag,)), header(), pricing())
    assert isinstance(found, str) and said in found


def test_the_relative_cost_of_another_network_is_not_told() -> None:
    assert relative(row(2, flags=("MISLABELLED",))) is None


# ---------------------------------------------------------------- whose price it is


GPU = Gpu(index=0, name="Tesla V100-SXM2-16GB", uuid="u", memory_bytes=1)


@pytest.mark.parametrize(
    ("match", "name"),
    [
        ({"gpu": "Tesla V100*"}, "gpu"),
        ({"host": "node*"}, "host"),
        ({"cpu": "Test*"}, "cpu"),
        ({"gpu": "A100*"}, None),
        ({"emulated": "p100"}, None),
        ({}, None),
    ],
)
def test_the_first_price_that_matches_holds(match: dict[str, str], name: str | None) -> None:
    never = replace(V100, name="never", match=Match(gpu="H100"))
    found = bill(
        row(2), header([host(gpus=(GPU,))]), pricing(never, replace(V100, name="gpu", match=Match(**match)))
    )
    assert isinstance(found, str) == (name is None)
    if name is None:
        assert found == "no price matches these machines"


def test_hosts_of_several_prices_have_none() -> None:
    two = (replace(V100, match=Match(host="node1")), replace(V100, match=Match(host="node2")))
    assert isinstance(bill(row(2), header([host("node1"), host("node2")]), pricing(*two)), str)


def test_an_emulated_row_has_the_price_of_the_emulated_device_and_says_so() -> None:
    made = row(2)
    made = replace(made, hardware=replace(made.hardware, device="emulated", profile="p100"))
    assert isinstance(bill(made, header(), pricing()), str)
    assert billed(made, pricing(replace(V100, match=Match(emulated="p100")))).emulated


@pytest.mark.parametrize(("seen", "told"), [("2026-07-01", ""), ("2018-02-01", "2018-02-01"), ("", "")])
def test_old_prices_are_told_by_the_runs_own_date(seen: str, told: str) -> None:
    assert billed(row(1), pricing(replace(V100, seen=seen))).price_is_old == told


# ---------------------------------------------------------------- the knee


def curve(*rates: float) -> list[Row]:
    made = (Estimate(mean=rate, low=None, high=None, n=1) for rate in rates)
    return [replace(row(1), world_size=2**at, samples_per_s=rate) for at, rate in enumerate(made)]


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ((100, 200, 400), 4),  # as cheap as the first
        ((100, 190, 340), 4),  # added samples: 2/150 against a mean of 4/340: 1.13
        ((100, 180, 240), 2),  # 2/60 against 4/240: 2
        ((100, 101, 400), 1),
        ((100, 90), 1),
        ((100,), None),
        ((), None),
    ],
)
def test_the_knee(rates: tuple[float, ...], found: int | None) -> None:
    assert knee(curve(*rates), header(), pricing()) == found


def test_a_larger_knee_takes_more() -> None:
    assert knee(curve(100, 180, 240), header(), pricing(knee=2.5)) == 4


def test_devices_that_are_paid_anyway_cost_nothing_more() -> None:
    assert knee(curve(100, 120, 130), header(), pricing(replace(V100, devices=4))) == 4


# ---------------------------------------------------------------- the file


def test_the_example_of_the_description_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        'currency = "USD"\n[[price]]\nname = "p3.2xlarge"\nprovider = "AWS"\nregion = "eu-west-1"\n'
        'match = { gpu = "Tesla V100-SXM2-16GB" }\ndevices = 1\nper_hour = { on_demand = 3.06, spot = 0.92 }\n'
        'minimum_s = 60\nseen = 2018-02-01\nsource = "Domino"\n'
    )
    (price,) = prices.read(path).price
    assert (price.per_hour, price.seen) == ({"on_demand": 3.06, "spot": 0.92}, "2018-02-01")
