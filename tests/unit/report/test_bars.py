"""Bars beside efficiencies: their lengths, and that no table gets wider than its terminal for them."""

from __future__ import annotations

import re

import pytest

from scaling.report.formats.terminal import BAR_WIDTHS, bar
from tests.support.report_scenes import SCENES, rendered

BARS = re.compile(r"(\d+\.\d) % ± +\d+\.\d +([▏▎▍▌▋▊▉█]+)")


@pytest.mark.parametrize(
    ("percent", "said"),
    [
        (0, ""),
        (-3, ""),
        (100, "████"),
        (105.3, "████"),
        (50, "██"),
        (25, "█"),
        (96.9, "███▉"),
        (3.2, "▏"),
        (1, ""),
    ],
)
def test_a_bar_is_its_share_to_an_eighth_of_a_character(percent: float, said: str) -> None:
    assert bar(percent, 4) == said


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_bars_of_a_table_have_one_scale(scene: str) -> None:
    """And are exactly as long as their percentages say."""
    for table in rendered(scene).split("\n\n"):
        found = BARS.findall(table)
        assert any(all(bar(float(percent), width) == text for percent, text in found) for width in BAR_WIDTHS)


def test_usual_tables_have_them_and_words_have_none() -> None:
    assert len(BARS.findall(rendered("default"))) == 2
    (line,) = [
        line for line in rendered("cluster").splitlines() if line.strip().startswith("16") and "OVERS" in line
    ]
    assert "█" not in line
