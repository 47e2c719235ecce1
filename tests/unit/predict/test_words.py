"""The table, letter by letter."""

from __future__ import annotations

import json
from pathlib import Path

from scaling.tools.predict import __main__
from scaling.tools.predict.forecast import Forecast, Next
from tests.support.scripted_clusters import at, case

ROW = Forecast(
    at=at(64), samples_per_s=14_080.4, samples_per_s_low=13_000.0, samples_per_s_high=15_000.0, efficiency=0.86,
    low=0.79, high=0.92, contention=0.044, straggling=0.02, exposed=0.07, unexplained=0.006,
)  # fmt: skip
WIDE = Forecast(
    at=at(512), samples_per_s=90_000.0, samples_per_s_low=50_000.0, samples_per_s_high=120_000.0, efficiency=0.7,
    low=0.4, high=0.9, contention=0.0, straggling=0.0, exposed=0.3, unexplained=0.0, claimed=False,
)  # fmt: skip
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "predict.txt"


def test_every_row_says_what_it_is_and_has_its_interval() -> None:
    said = __main__.prediction_table(
        case({8: 0.88}), (ROW, WIDE), ("what if: nothing",), Next("N=32", 512, 0.075, 0.05)
    )
    assert said == GOLDEN.read_text()


def test_programs_get_the_same() -> None:
    plain = json.loads(__main__.prediction_json(case({8: 0.88}), (ROW, WIDE), (), None))
    assert [row["kind"] for row in plain["predicted"]] == ["PREDICTED", "PREDICTED"]
    assert plain["interval_percent"] == 80
    assert plain["predicted"][0]["cause"] == "the exchange"
    assert plain["measure_next"] is None
