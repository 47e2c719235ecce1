"""A slow feed through a whole sweep, on a virtual clock: what was planted is found, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.analysis.table import analyse
from scaling.analysis.table.cell_rows import Analyser
from scaling.analysis.table.rows import Row
from scaling.report.formats import terminal
from tests.support.inline import Launch, Run
from tests.support.scripted_records import loss_of

STEP_S, SLEPT_S = 0.05, 0.01
KINDS = ["exchange", "solo", "together", "comm", "feed", "held"]
NOISY = ["noise=0.01", "round_noise=0.005"]


def swept(folder: Path, *options: str, **fields: Any) -> Run:
    script = [f"step_s={STEP_S}", f"feed_s={SLEPT_S}", *NOISY, *options]
    asked: dict[str, Any] = {
        "strategy": ["fake:a"],
        "world_sizes": [1, 4],
        "kinds": KINDS,
        "rounds": 2,
        "windows": 4,
    }
    return Launch(4).sweep(folder, option=script, **{**asked, **fields})


def rows(found: Run) -> dict[int, Row]:
    return {row.world_size: row for row in analyse.rows(found.records)}


@pytest.mark.parametrize("interleave", [False, True])
def test_a_feed_slowed_by_a_known_sleep_is_data_wait_within_a_tenth(tmp_path: Path, interleave: bool) -> None:
    """Each batch comes 10 ms late on one device, 30 ms on four; the devices themselves slow each other by 10 %."""
    found = swept(tmp_path, "feed_contention=2", "contention=0.1", interleave=interleave)
    kinds = {(one.point.kind, one.point.world_size) for one in found.records}
    assert {("held", 1), ("held", 4), ("feed", 1), ("feed", 4)} < kinds
    assert not [one for one in found.records if one.point.kind == "held" and one.point.strategy != "fake:plain"]
    row, step_s = rows(found)[4], 1.1 * STEP_S + 3 * SLEPT_S
    assert row.data_wait is not None
    assert row.data_wait.of_step == pytest.approx(3 * SLEPT_S / step_s, rel=0.1)
    assert row.data_wait.of_alone == pytest.approx(SLEPT_S / (STEP_S + SLEPT_S), rel=0.1)
    assert row.data_wait.feed_samples_per_s == pytest.approx(4 * 32 / (3 * SLEPT_S), rel=0.1)
    assert loss_of(row).data_wait == pytest.approx(2 * SLEPT_S / step_s, rel=0.1)
    assert loss_of(row).contention == pytest.approx(0.1 * STEP_S / step_s, abs=0.02)


def test_the_report_names_it(tmp_path: Path) -> None:
    found = swept(tmp_path, "feed_contention=2", rounds=2, windows=3)
    said = " ".join(terminal.render(found.header, found.records, color=False).split())
    assert "of one device's alone; feeds alone" in said
    assert "data wait" in said and "time of plain loops beyond the same loops on one batch" in said


def test_the_table_of_a_running_sweep_is_that_of_its_end(tmp_path: Path) -> None:
    found = swept(tmp_path, rounds=2, windows=3)
    growing = Analyser()
    for count, record in enumerate(found.records, 1):
        growing.add(record)
        assert growing.rows() == analyse.rows(found.records[:count])
