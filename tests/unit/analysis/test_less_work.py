"""An exchange that computes less than the plain loop, whatever samples it says that it has trained on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.incremental import Analyser
from scaling.records.run import PointRecord
from tests.support.planted import Plan, run
from tests.support.scripted_records import by_size, point, record

PLAN = Plan(size=2, rounds=3, wire_s=0.02)


def exchanging(part: float, *, updates_all: bool = True) -> list[PointRecord]:
    return [
        replace(_running(one, part), updates_all=updates_all) if one.point.kind == "exchange" else one
        for one in run(PLAN)
    ]


def _running(made: PointRecord, part: float) -> PointRecord:
    ranks = []
    for rank in made.ranks:
        cpu = rank.telemetry.cpu
        assert cpu is not None
        threads = tuple(replace(one, run_s=one.run_s * part) for one in cpu.threads)
        ranks.append(replace(rank, telemetry=replace(rank.telemetry, cpu=replace(cpu, threads=threads))))
    return replace(made, ranks=tuple(ranks))


@pytest.mark.parametrize(("part", "is_less"), [(1.0, False), (0.9, False), (0.55, True)])
def test_less_cpu_time_than_the_plain_loop_is_an_audit(part: float, is_less: bool) -> None:
    row = by_size(exchanging(part))[2]
    assert ("AUDIT" in row.flags) is is_less
    assert (row.efficiency is None) is is_less
    said = "audit: the CPU time of a step is at most 5"
    assert any(note.startswith(said) for note in row.footnotes) is is_less


def test_ranks_that_update_a_part_of_the_parameters_may_compute_less() -> None:
    assert "AUDIT" not in by_size(exchanging(0.55, updates_all=False))[2].flags


def test_a_running_sweep_says_it_whatever_comes_first() -> None:
    """The control that tells it may end after the exchange was compared."""
    made = exchanging(0.55)
    for order in (made, made[::-1]):
        analyser = Analyser()
        for one in order:
            analyser.add(one)
            analyser.rows()
        assert analyser.rows() == rows(order)


@pytest.mark.parametrize(("step_s", "is_less"), [(0.09, False), (0.06, True)])
def test_elsewhere_the_time_of_a_step_tells_it(step_s: float, is_less: bool) -> None:
    made: Iterable[PointRecord] = (
        replace(record(point(kind, size, number, device="cuda"), seconds), updates_all=True)
        for number in range(2)
        for kind, size, seconds in (("solo", 1, 0.1), ("exchange", 2, step_s))
    )
    assert ("AUDIT" in by_size(made)[2].flags) is is_less
