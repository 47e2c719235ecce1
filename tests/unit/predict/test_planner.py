"""Which cluster is the cheapest, and when that cannot be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.tools.predict import asking, priors
from scaling.tools.predict.asking import case_of
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import outlook
from scaling.tools.predict.setting import Known, Observed
from tests.support.scripted_clusters import ONE, at, case

PRIORS = priors.read()
PRICES = """
currency = "USD"
[[price]]
name = "{first}"
match = {{ gpu = "Tesla V100*" }}
devices = 4
per_hour = {{ on_demand = {cost} }}
network = "ib:100"
[[price]]
name = "plain"
match = {{ gpu = "Tesla V100*" }}
devices = 4
per_hour = {{ on_demand = 10.0, spot = 3.0 }}
network = "tcp:10"
[[price]]
name = "other"
match = {{ gpu = "A100*" }}
devices = 8
per_hour = {{ on_demand = 1.0 }}
"""


def planned(tmp_path: Path, cost: float = 20.0, target: float = 4000.0, kind: str = "table") -> str:
    path = tmp_path / "FILE.toml"
    path.write_text(PRICES.format(first="fast", cost=cost))
    asked = Asked(target=target, prices=path, format="json" if kind == "json" else "table")
    return asking.planned(asked, case({4: 0.93, 8: 0.88}), PRIORS)


def cold(tmp_path: Path, target: float) -> str:
    path = tmp_path / "FILE.toml"
    path.write_text(PRICES.format(first="fast", cost=20.0))
    asked = Asked(
        cold=True, rate=343.0, model="resnet50", batch_size=64, devices_per_node=8, network="tcp:25",
        target=target, prices=path, device="Tesla V100", format="json", compress=2.0,
    )  # fmt: skip
    return asking.planned(asked, case_of(asked, None), PRIORS)


def test_the_cheapest_comes_first_and_another_device_not_at_all(tmp_path: Path) -> None:
    plans = json.loads(planned(tmp_path, kind="json"))["plans"]
    assert {plan["price"] for plan in plans} == {"fast", "plain"}
    assert [plan["hourly"] for plan in plans] == sorted(plan["hourly"] for plan in plans)
    assert all(plan["lower"] >= 4000 for plan in plans)
    assert all(plan["devices"] == 4 * plan["machines"] for plan in plans)


def test_a_machine_less_would_not_reach_the_target(tmp_path: Path) -> None:
    plan = json.loads(planned(tmp_path, kind="json"))["plans"][0]
    assert plan["lower"] * (plan["machines"] - 1) / plan["machines"] < 4000 * 1.02


def test_the_fewest_machines_are_counted_one_by_one(tmp_path: Path) -> None:
    """Beyond 16 machines counts were tried in steps of a sixteenth: six of a hundred too many were paid."""
    for target in (60_000.0, 61_000.0, 62_000.0):
        plan = json.loads(planned(tmp_path, target=target, kind="json"))["plans"][0]
        assert plan["lower"] * (plan["machines"] - 1) / plan["machines"] < 1.005 * target


def test_what_may_not_be_claimed_is_no_plan(tmp_path: Path) -> None:
    """Of machines joined by 10 Gb/s, so many reach it that the interval is wider than ± 15 points."""
    found = json.loads(cold(tmp_path, target=1e5))
    assert [plan["price"] for plan in found["plans"]] == ["fast"]
    assert "plain, batch 64: no number of machines that may be claimed reaches it" in found["notes"]


def test_without_a_run_each_price_has_its_own_network(tmp_path: Path) -> None:
    found = json.loads(cold(tmp_path, target=4e3))
    assert {plan["price"]: plan["network"] for plan in found["plans"]} == {"fast": "ib:100", "plain": "tcp:10"}
    assert any(note.startswith("what if: gradients / 2") for note in found["notes"])


def test_plans_say_where_the_model_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "FILE.toml"
    path.write_text(PRICES.format(first="fast", cost=20.0))
    unsure = Known(ONE, [Observed(at=at(size), value=value, noise=0.15) for size, value in ((4, 0.95), (8, 0.5))])
    odd = case({4: 0.95, 8: 0.5}, known=unsure)
    doubts = outlook(odd, PRIORS).doubts
    assert doubts
    said = asking.planned(Asked(target=1000.0, prices=path), odd, PRIORS)
    assert all(f"note: {one}" in said for one in doubts)


def test_prices_that_are_close_cannot_be_told_apart(tmp_path: Path) -> None:
    assert "not distinguishable" in planned(tmp_path, cost=10.1)
    assert "fast" not in planned(tmp_path, cost=300.0).partition("not distinguishable")[2]


def test_what_nobody_can_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reaches it by 80 %"):
        planned(tmp_path, target=1e9)
    path = tmp_path / "none.toml"
    path.write_text('currency = "EUR"\nprice = []\n')
    with pytest.raises(UsageError, match="no price matches Tesla V100"):
        asking.planned(Asked(target=1.0, prices=path), case({4: 0.9}), PRIORS)
