"""Which cluster is the cheapest, and when that cannot be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.predict import planner, priors
from scaling.predict.flags import Asked
from tests.support.scripted_clusters import case

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
    return planner.planned(asked, case({4: 0.93, 8: 0.88}), PRIORS)


def test_the_cheapest_comes_first_and_another_device_not_at_all(tmp_path: Path) -> None:
    plans = json.loads(planned(tmp_path, kind="json"))["plans"]
    assert {plan["price"] for plan in plans} == {"fast", "plain"}
    assert [plan["hourly"] for plan in plans] == sorted(plan["hourly"] for plan in plans)
    assert all(plan["lower"] >= 4000 for plan in plans)
    assert all(plan["devices"] == 4 * plan["machines"] for plan in plans)


def test_a_machine_less_would_not_reach_the_target(tmp_path: Path) -> None:
    plan = json.loads(planned(tmp_path, kind="json"))["plans"][0]
    assert plan["lower"] * (plan["machines"] - 1) / plan["machines"] < 4000 * 1.02


def test_prices_that_are_close_cannot_be_told_apart(tmp_path: Path) -> None:
    assert "not distinguishable" in planned(tmp_path, cost=10.1)
    assert "fast" not in planned(tmp_path, cost=300.0).partition("not distinguishable")[2]


def test_what_nobody_can_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="reaches it by 80 %"):
        planned(tmp_path, target=1e9)
    path = tmp_path / "none.toml"
    path.write_text('currency = "EUR"\nprice = []\n')
    with pytest.raises(UsageError, match="no price matches Tesla V100"):
        planner.planned(Asked(target=1.0, prices=path), case({4: 0.9}), PRIORS)
