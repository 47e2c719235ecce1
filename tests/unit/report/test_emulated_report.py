"""Emulated devices in records and reports: raw there, undone here, stamped everywhere."""

from __future__ import annotations

import pytest

from scaling.analysis.table import analyse
from scaling.records.events import Ended
from scaling.records.telemetry import Telemetry
from scaling.sweep import outcome
from scaling.sweep.state import ChildState as RankState
from scaling.sweep.state import PointState
from scaling.sweep.view.plain import headline
from tests.support.emulated_records import EMULATED, STEP_S, emulated_run
from tests.support.paper_tasks import tasks
from tests.support.scripted_records import close, header, mean


def test_rates_are_those_of_the_cluster_that_is_emulated() -> None:
    _, records = emulated_run()
    one, two = analyse.rows(records)
    assert mean(one.samples_per_s) == pytest.approx(64 / STEP_S, rel=0.001)
    assert mean(two.samples_per_s) == pytest.approx(2 * 64 * 0.9 / STEP_S, rel=0.001)
    assert mean(two.efficiency) == close(0.9)
    assert two.breakdown is not None
    assert two.breakdown.exposed == close(0.1)
    assert two.machine_cpu_percent == close(31.0)
    (base,) = analyse.analyse(records).baselines
    assert mean(base.samples_per_s) == pytest.approx(64 / STEP_S, rel=0.001)


def test_records_keep_what_the_clock_showed() -> None:
    _, records = emulated_run(dilate=4.0)
    (solo,) = (one for one in records if one.point.kind == "solo" and one.point.round == 0)
    assert solo.ranks[0].windows[0].seconds / solo.ranks[0].windows[0].steps == close(4 * STEP_S)


def test_emulated_and_measured_runs_are_joined_only_when_asked() -> None:
    head, _ = emulated_run()
    other, _ = emulated_run(dilate=8.0)
    assert any("devices differ" in reason for reason in analyse.joinable([head, header()]))
    assert any("times x 8" in reason for reason in analyse.joinable([head, other]))
    assert analyse.joinable([head, head]) == ()


def test_controls_of_another_setting_or_of_real_devices_explain_nothing() -> None:
    _, records = emulated_run()
    exchange = [one for one in records if one.point.kind == "exchange"]
    _, others = emulated_run(dilate=8.0)
    controls = [one for one in others if one.point.kind != "exchange"]
    assert all(row.efficiency is None for row in analyse.rows([*exchange, *controls]))


def test_a_busy_machine_is_warned_of() -> None:
    of = tasks("torch:gloo", "exchange", 2, **EMULATED)
    for used, warned in ((79.0, False), (81.0, True), (None, False)):
        ended = Ended(telemetry=Telemetry(machine_cpu_percent=used))
        ranks = tuple(RankState(task=task, ended=ended) for task in of)
        state = PointState(point=of[0].point, ranks=ranks, expected=3, started_s=0.0, started_unix_s=0.0)
        found = outcome.record_of(state, ended_s=1.0).warnings
        assert (
            bool([one for one in found if one.kind == "busy-cpus" and "CPUs were over 80 % busy" in one.text])
            == warned
        )


def test_the_view_tells_the_devices() -> None:
    head, _ = emulated_run()
    assert "emulated:p100 EMULATED" in headline(head)
