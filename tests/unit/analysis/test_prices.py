"""A user's file of prices: read whole, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.analysis.table import prices
from scaling.errors import UsageError

GOOD = """
currency = "USD"
[[price]]
name = "p3.2xlarge"
provider = "AWS"
match = { gpu = "Tesla V100-SXM2-16GB" }
devices = 1
per_hour = { on_demand = 3.06, spot = 0.92 }
minimum_s = 60
seen = 2018-02-01
source = "seeds/000 (Domino)"
"""


def read(tmp_path: Path, text: str) -> prices.Prices:
    path = tmp_path / "FILE.toml"
    path.write_text(text)
    return prices.read(path)


def test_a_file_as_it_should_be(tmp_path: Path) -> None:
    (price,) = read(tmp_path, GOOD).price
    assert (price.hourly, price.seen, price.devices) == (3.06, "2018-02-01", 1)
    assert price.match.holds(gpu="Tesla V100-SXM2-16GB", cpu="any")
    assert not price.match.holds(gpu="Tesla P100")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("on_demand = 3.06", "on_demand = -1", "p3.2xlarge: on_demand = -1: a price is 0 or more"),
        ("on_demand = 3.06", "on_demand = nan", "on_demand = nan: a price is 0 or more"),
        ("devices = 1", "devices = 0", "devices = 0; 1 or more"),
        ("devices = 1", "device = 1", "unknown field `device`"),
        ("{ on_demand = 3.06, spot = 0.92 }", "{}", "per_hour is empty"),
        ("gpu =", "gpus =", "unknown field `gpus`"),
        ('{ gpu = "Tesla V100-SXM2-16GB" }', "{}", "p3.2xlarge: match is empty and means no machine"),
        ("minimum_s = 60", "minimum_s = -60", "p3.2xlarge: minimum_s = -60; 0 or more"),
        ("seen = 2018-02-01", 'seen = "last year"', "p3.2xlarge: seen = last year: a day, like 2018-02-01"),
        ("seen = 2018-02-01", "seen = 2018-02-01T12:00:00", "seen = 2018-02-01T12:00:00: a day"),
        ('currency = "USD"', 'currency = " "', 'currency is empty; currency = "USD"'),
        ('currency = "USD"', "", "missing required field `currency`"),
        ("[[price]]", "[[price", "FILE.toml: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, GOOD.replace(old, new))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_match_without_patterns_means_nobody() -> None:
    assert not prices.Match().holds(gpu="any")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        prices.read(tmp_path / "none")
