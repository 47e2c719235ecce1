"""What figures show: numbers of points and marks, computed by hand; drawings are not looked at."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from scaling.records.run import RankRecord
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Bars, Curves, Figure, Heat, shortened
from scaling.report.flags import FigureName
from scaling.report.material import Material
from tests.support.report_scenes import SCENES, cluster_run
from tests.support.scripted_records import asynchronous, failed, header, host, point, record


@cache
def material(scene: str) -> Material:
    return Material(*SCENES[scene]())


def figures(scene: str, name: str) -> list[Figure]:
    return list(FIGURES[name](material(scene)))


def curves(scene: str, name: str) -> Curves:
    (figure,) = figures(scene, name)
    assert isinstance(figure.body, Curves)
    return figure.body


def test_names_of_figures_are_those_of_the_flag() -> None:
    assert (*FIGURES, "screen") == get_args(FigureName)


# ---------------------------------------------------------------- curves


def test_a_run_whose_every_row_failed_has_no_curves() -> None:
    made = Material(header(), [failed(point("exchange", 2), "error")])
    assert not list(FIGURES["speedup"](made)) and not list(FIGURES["efficiency"](made))


def test_a_place_that_is_no_claim_is_no_number_in_words() -> None:
    (figure,) = FIGURES["speedup"](material("cluster"))
    marked = [line for line in figure.table.lines if line[-1] == "OVERSUBSCRIBED"]
    assert [line[1:3] for line in marked] == [("16", "-")]
    assert "torch:gloo over ib0 3.22 at N=4;" in figure.says
    assert "torch:nccl over ib0 12.3 at N=16" in figure.says


def test_a_speedup_of_ranks_that_learnt_less_is_no_number_in_words() -> None:
    """It is N times the efficiency that is not comparable."""
    (figure,) = FIGURES["speedup"](material("frameworks"))
    told = {line[0]: line[2] for line in figure.table.lines if line[1] == "4"}
    assert told["mxnet:dist_async"] == "-" and told["mxnet:dist_sync"] == "3.33 ± 0.03"
    assert "dist_async" not in figure.says and "mxnet:dist_sync 3.33 at N=4" in figure.says


def test_a_mislabelled_row_is_marked_also_without_any_baseline() -> None:
    made, records = SCENES["networks"]()
    without = Material(made, [one for one in records if one.point.kind == "exchange"])
    (figure,) = FIGURES["speedup"](without)
    assert isinstance(figure.body, Curves)
    assert (figure.body.upright, figure.body.ideal) == ("images/s", None)
    assert figure.stamps == ("MISLABELLED",)
    assert {dot.mark for curve in figure.body.curves for dot in curve.dots} == {"MISLABELLED", ""}
    assert list(FIGURES["efficiency"](without)) == []


def test_rows_that_may_not_be_compared_are_in_figures_of_their_own() -> None:
    records = [record(point(kind, batch_size=size), 0.1) for kind in ("solo", "exchange") for size in (32, 64)]
    found = list(FIGURES["efficiency"](Material(header(), records)))
    assert [figure.title for figure in found] == ["Efficiency: 32 per device", "Efficiency: 64 per device"]


def test_one_device_has_no_figure_of_speedup_and_one_round_none_of_rounds() -> None:
    alone = Material(header(), [record(point(kind), 0.1) for kind in ("solo", "exchange")])
    assert not list(FIGURES["speedup"](alone)) and list(FIGURES["efficiency"](alone))
    assert not figures("one_round", "rounds") and figures("one_round", "speedup")


def test_no_figure_has_rates_of_two_units() -> None:
    text: dict[str, Any] = {
        "model": "gpt2-tiny",
        "data": "synthetic-tokens",
        "unit": "tokens",
        "sequence_length": 64,
    }
    records = [record(point(world_size=2, **work), 0.1) for work in ({}, text)]
    found = list(FIGURES["speedup"](Material(header(), records)))
    assert [figure.body.upright for figure in found if isinstance(figure.body, Curves)] == ["images/s", "tokens/s"]


def test_of_many_curves_the_highest_are_drawn_and_all_are_in_the_table() -> None:
    records = [record(point("solo"), 0.1)]
    records += [record(point(world_size=2, strategy=f"fake:s{at:02}"), 0.1 + at / 1000) for at in range(20)]
    (figure,) = FIGURES["speedup"](Material(header(), records))
    assert isinstance(figure.body, Curves)
    assert [curve.label for curve in figure.body.curves] == [f"fake:s{at:02}" for at in range(16)]
    assert len(figure.table.lines) == 20 and figure.left_out.startswith("4 of 20 strategies")


# ---------------------------------------------------------------- bars


@pytest.mark.parametrize("scene", sorted(set(SCENES) - {"nothing"}))
def test_the_parts_of_a_bar_are_what_its_efficiency_lacks(scene: str) -> None:
    for figure in figures(scene, "loss"):
        assert isinstance(figure.body, Bars)
        for bar, row in zip(figure.body.bars, Material(*SCENES[scene]()).rows, strict=True):
            if bar.parts:
                assert len(bar.parts) == len(figure.body.names) and row.efficiency
                lost = sum(part for part in bar.parts if part is not None)
                assert lost == pytest.approx(100 * (1 - row.efficiency.mean), abs=1e-6)
            else:
                assert bar.says


# ---------------------------------------------------------------- ranks, devices, time


def test_a_slow_rank_is_a_line_in_together_and_none_in_the_exchange() -> None:
    together, exchange = figures("cluster", "ranks")
    assert isinstance(together.body, Heat) and isinstance(exchange.body, Heat)
    assert together.body.lines == tuple(f"rank {rank}" for rank in range(16))
    assert {len(line) for line in together.body.cells} == {9} and together.body.breaks == (3, 6)
    assert together.body.cells[15] == pytest.approx([104 / 102] * 9)
    assert together.body.cells[0] == pytest.approx([1.0] * 9)
    assert all(line == pytest.approx([1.0] * 9) for line in exchange.body.cells)
    assert "rank 15 on node4, 1.020 times the median" in together.says


def test_windows_without_steps_have_no_figure_of_ranks() -> None:
    made, records = cluster_run()
    records = [replace(one, ranks=tuple(map(_without_steps, one.ranks))) for one in records]
    assert list(FIGURES["ranks"](Material(made, records))) == []


def _without_steps(rank: RankRecord) -> RankRecord:
    return replace(rank, windows=tuple(replace(window, steps=0) for window in rank.windows))


def test_of_many_ranks_hosts_and_the_slowest_are_shown() -> None:
    names = [f"node{index}" for index in range(16)]
    times = [0.1] * 127 + [0.12]
    records = [
        record(point("solo"), 0.1),
        record(point(world_size=128), 0.13, hosts=names),
        record(point("together", 128), *times, hosts=names),
    ]
    together, _ = FIGURES["ranks"](Material(header([host(name) for name in names]), records))
    assert isinstance(together.body, Heat)
    assert len(together.body.lines) == 16 + 16 and together.body.lines[16] == "rank 127"
    assert together.body.cells[together.body.lines.index("node15")] == pytest.approx([1.2] * 3)
    assert "of 128 ranks all but the worst of each host" in together.left_out


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_every_figure_says_in_words_and_in_numbers_what_it_shows(scene: str) -> None:
    for name in FIGURES:
        for figure in figures(scene, name):
            assert figure.title and figure.says and figure.table.lines
            assert {len(line) for line in figure.table.lines} <= {len(figure.table.headings), 3}


def test_asynchronous_rows_are_dotted_by_their_mark() -> None:
    records = [record(point("solo"), 0.1), asynchronous(record(point(world_size=2), 0.1))]
    (figure,) = FIGURES["speedup"](Material(header(), records))
    assert isinstance(figure.body, Curves)
    assert figure.body.curves[0].dots[0].mark == "ASYNC" and figure.stamps == ()


# ---------------------------------------------------------------- names


def test_names_are_cut_in_the_middle_and_stay_different() -> None:
    names = ("torch:nccl over ib0", "tensorflow:ring over a-long-one 1", "tensorflow:ring over another-one 1")
    cut = shortened(names, 15)
    assert cut[0] == "torch:n…ver ib0" and max(map(len, cut)) <= 15
    assert len(set(cut)) == 3
    assert shortened(("a" * 40, "a" * 20 + "b" * 20, "a" * 40), 9)[0::2] == ("aaaa…aaaa",) * 2
