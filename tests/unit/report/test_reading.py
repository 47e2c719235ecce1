"""How a report is to be read: what its lines say of the rows that it has."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.report import words
from scaling.report.document import document
from tests.support.scripted_records import header, point, record

LOWER_BOUND = "of a window, a lower bound, since no step is timed by itself"


def loss(framework: str, **changes: Any) -> str:
    records = []
    for number in range(2):
        of = {"number": number, "strategy": f"{framework}:plain", **changes}
        records += [
            record(point("solo", 1, **of), 0.1),
            record(point("together", 2, **of), 0.11, 0.13),
            record(point("exchange", 1, **{**of, "strategy": f"{framework}:a"}), 0.1),
            record(point("exchange", 2, **{**of, "strategy": f"{framework}:a"}), 0.15),
        ]
    made = document(header(), records)
    (said,) = [words.text(entry.phrase) for entry in made.how_to_read if entry.label == "loss"]
    assert "straggling, the slowest rank of a step against the mean" in said
    return said


@pytest.mark.parametrize(
    ("framework", "device"),
    [("mxnet", "cpu"), ("mxnet", "cuda"), ("tensorflow", "cuda"), ("torch", "emulated")],
)
def test_straggling_by_windows_is_said_to_be_a_lower_bound(framework: str, device: str) -> None:
    profile = {"profile": "p100"} if device == "emulated" else {}
    assert f"the mean ({framework}: {LOWER_BOUND}); " in loss(framework, device=device, **profile)


@pytest.mark.parametrize(("framework", "device"), [("torch", "cpu"), ("torch", "cuda"), ("tensorflow", "cpu")])
def test_straggling_by_steps_is_none(framework: str, device: str) -> None:
    assert "lower bound" not in loss(framework, device=device)


@pytest.mark.parametrize("canary_s", [0.0155, 0.031])
def test_slower_cores_are_explained_where_a_note_says_so(canary_s: float) -> None:
    records = [record(point(kind, 1, number=number), 0.1) for number in range(2) for kind in ("solo", "exchange")]
    (rank,) = records[-1].ranks
    canaries_s = (*[0.0155] * (len(rank.windows) - 1), canary_s)
    windows = tuple(replace(one, canary_s=seconds) for one, seconds in zip(rank.windows, canaries_s, strict=True))
    records[-1] = replace(records[-1], ranks=(replace(rank, windows=windows),))
    made = document(header(), records)
    assert ("slower cores" in [entry.label for entry in made.how_to_read]) is (canary_s > 0.02)
