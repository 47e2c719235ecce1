"""All windows of a point by itself are measured again where something else has disturbed them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.plan.plan import Plan
from scaling.quiet import agent
from scaling.records.events import Finished
from scaling.records.host import Gpu
from scaling.sweep import turns as quiet
from tests.support.inline import Launch, host
from tests.support.turns import BLOCKS, STEADY_S, disturbed, indices, quiet_probes, slow

pytestmark = pytest.mark.usefixtures("canaries")


# Points by themselves, the windows of each in one go: ranks of a round have one canary each.
ALONE: dict[str, Any] = {
    "interleave": False, "kinds": ["exchange", "together"], "world_sizes": [2], "rounds": 6, "windows": BLOCKS,
    "window_s": 0.02,
}  # fmt: skip
CANARIES = 2 * 2 * 6


def test_all_windows_of_a_point_by_itself_are_measured_again(tmp_path: Path, canaries: list[float]) -> None:
    slow(canaries, after=CANARIES - 1, times=[2 * STEADY_S])
    found = Launch(2).sweep(tmp_path, **ALONE)
    again = disturbed(found)
    assert len({label for label, _, _ in again}) == 1
    assert [index for _, index, _ in again] == 2 * list(range(BLOCKS))
    assert [seconds for _, index, seconds in again if index == 0] == [STEADY_S, 2 * STEADY_S]
    for record in found.records:
        assert record.epoch is None
        assert indices(record) == [list(range(BLOCKS))] * 2
        assert {tuple(one.canary_s for one in rank.windows) for rank in record.ranks} == {(STEADY_S, None, None)}
        assert {rank.uncounted_steps(None) for rank in record.ranks} == {2 if record.ranks[0].disturbed else 1}


def test_points_by_themselves_keep_to_the_budget_of_all_of_them(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each canary slower than the one before: what one spends beyond its part, the next ones lack."""
    quiet_probes(monkeypatch)
    monkeypatch.setattr(Plan, "seconds", lambda *_: 0.4)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    found = Launch(2).sweep(tmp_path, **ALONE)
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert all(indices(record) == [list(range(BLOCKS))] * 2 for record in found.records)
    runs = sum(len(record.ranks[0].disturbed) for record in found.records) / BLOCKS
    assert 1 <= runs <= len(found.records) * quiet.BUDGET * 0.4 / quiet.PATIENCE_S + 1


def test_no_point_by_itself_runs_into_its_limit_for_being_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_probes(monkeypatch)
    monkeypatch.setattr(quiet, "BUDGET", 1000.0)
    canaries.extend(STEADY_S * 1.5**number for number in range(1500))
    found = Launch(2).sweep(tmp_path, **{**ALONE, "rounds": 3, "point_timeout_s": 20.0})
    assert all(isinstance(record.outcome, Finished) for record in found.records)
    assert len(found.records[-1].ranks[0].disturbed) > BLOCKS


def test_on_gpus_no_canary_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "measure", lambda cpus: pytest.fail("tried"))
    gpus = tuple(Gpu(index=each, name="GPU", uuid=f"GPU-{each}", memory_bytes=1 << 36) for each in range(2))
    found = Launch(2, [host(cores=2, gpus=gpus)] * 2).sweep(tmp_path, device="cuda", **{**ALONE, "rounds": 1})
    assert all(window.canary_s is None for r in found.records for rank in r.ranks for window in rank.windows)
