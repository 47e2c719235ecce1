"""Tables that are wider than a terminal: their names give way, and no number does."""

from __future__ import annotations

import pytest

from scaling.analysis.table.catalogue import CAUSES
from scaling.analysis.table.entries import Column
from scaling.report.formats.terminal import WIDTH, fitted

NAMES = ("mxnet:dist_async", "tensorflow:ring")
LOSSES = ("contention", "straggling", "exchange_cpu", "servers", "waiting", "unexplained")


def table(within: str) -> tuple[list[Column], list[tuple[str, ...]]]:
    columns = [
        Column(key="name", short=("", ""), is_text=True),
        Column(key="rate", title="images/s"),
        Column(key="within", title="within its framework", is_text=True),
        Column(key="efficiency", title="efficiency"),
        *(column for column in CAUSES if column.key in LOSSES),
    ]
    losses = ("(12.3)", "(-5.8)", "(-27.9)", "(11.8)", "(-10.5)", "-0.2")
    return columns, [(name, "1,989.8", within, "not comparable", *losses) for name in NAMES]


@pytest.mark.parametrize("within", ["-", "leading, -11.1 ± 21.4 %"])
def test_names_give_way_to_numbers(within: str) -> None:
    """The last column, the rest, was cut off where a comparison has both servers and exchange's CPU."""
    layout = fitted(*table(within))
    assert layout.end <= WIDTH
    assert all(width >= len(cell) for width, cell in zip(layout.widths[1:], table(within)[1][0][1:], strict=True))
