"""What figures show: numbers of points and marks, computed by hand; drawings are not looked at."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from scaling.records.run import RankRecord
from scaling.report.figures import FIGURES
from scaling.report.figures.parts import Bars, Cards, Curves, Figure, Heat, Lanes, Spreads, Strips, shortened
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


def test_a_speedup_is_drawn_with_its_interval_and_its_marks() -> None:
    body = curves("cluster", "speedup")
    by_label = {curve.label: curve.dots for curve in body.curves}
    assert list(by_label) == ["torch:nccl over eth0", "torch:gloo over ib0", "torch:nccl over ib0"]
    last = by_label["torch:nccl over ib0"][-1]
    assert (last.world_size, last.mark) == (16, "")
    assert last.value == pytest.approx(12.31, abs=0.005)
    assert last.low is not None and last.high is not None and last.low < last.value < last.high
    assert (body.ideal, body.is_percent) == (1.0, False)


def test_the_node_boundary_lies_between_the_last_of_one_node_and_the_first_of_several() -> None:
    assert curves("cluster", "efficiency").boundary == pytest.approx((4 * 8) ** 0.5)
    assert curves("default", "efficiency").boundary is None


def test_oversubscribed_rows_stand_at_their_rate_and_failed_ones_on_the_axis() -> None:
    """No speedup is claimed, so the place is samples/s over those of one device: 3578 / 319.9."""
    body = curves("cluster", "speedup")
    (marked,) = [dot for curve in body.curves for dot in curve.dots if dot.mark == "OVERSUBSCRIBED"]
    assert (marked.world_size, marked.low) == (16, None)
    assert marked.value == pytest.approx(11.18, abs=0.01)
    assert [(cross.world_size, cross.label) for cross in body.crosses] == [(8, "torch:gloo over ib0")]
    assert not any(dot.mark for curve in curves("cluster", "efficiency").curves for dot in curve.dots)


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


def test_the_table_of_losses_has_the_parentheses_of_the_table_of_rows() -> None:
    (figure,) = figures("one_round", "loss")
    shown = [text for line in figure.table.lines for text in line if text.startswith("(")]
    assert shown and all(text.endswith(")") for text in shown)
    (figure,) = figures("networks", "loss")
    assert not [text for line in figure.table.lines for text in line if text.startswith("(")]


def test_a_cause_that_is_not_told_is_absent_and_not_zero() -> None:
    """An asynchronous row has no straggling."""
    (figure,) = figures("frameworks", "loss")
    assert isinstance(figure.body, Bars)
    at = figure.body.names.index("straggling")
    told = {bar.label: bar.parts[at] for bar in figure.body.bars if bar.parts}
    assert told["mxnet:dist_async N=4"] is None and told["mxnet:dist_sync N=4"] is not None
    says = {bar.label: bar.says for bar in figure.body.bars}
    assert (says["mxnet:dist_async N=4"], says["mxnet:dist_sync N=4"]) == ("not comparable", "")


def test_every_round_is_a_dot() -> None:
    (figure,) = figures("default", "rounds")
    assert isinstance(figure.body, Spreads)
    assert [len(one.values) for one in figure.body.spreads] == [3, 3]
    assert all(sum(one.values) == pytest.approx(0) for one in figure.body.spreads)


def test_cards_show_what_went_astray_and_what_had_to_be_sent() -> None:
    (figure,) = figures("networks", "cards")
    assert isinstance(figure.body, Cards)
    astray = [one for one in figure.body.carried if one.mark == "MISLABELLED"]
    assert [(one.card, one.wanted, one.sent > 0, one.least is not None) for one in astray] == [
        ("eth0", True, False, True),
        ("ib0", False, True, False),
    ]
    right = [one for one in figure.body.carried if not one.mark]
    assert all(one.least and one.sent / one.least == pytest.approx(1.02, abs=0.01) for one in right)
    assert figures("default", "cards") == []


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


def test_gpus_have_strips_of_what_they_tell() -> None:
    (figure,) = figures("gpus", "devices")
    assert isinstance(figure.body, Strips)
    assert [strip.title for strip in figure.body.strips] == [
        "power, W", "SM clock, MHz", "temperature, °C", "busy, %",
    ]  # fmt: skip
    clock = figure.body.strips[1].readings
    # One of four GPUs is slow.
    assert (min(one.low for one in clock), max(one.high for one in clock)) == (990.0, 1410.0)
    assert [one.mean for one in clock[:1]] == pytest.approx([(3 * 1395 + 990 + 4 * 1410) / 8])


def test_the_timeline_has_a_lane_per_round_and_its_failures() -> None:
    (figure,) = figures("cluster", "run")
    assert isinstance(figure.body, Lanes)
    assert [lane.label for lane in figure.body.lanes] == ["round 1", "round 2", "round 3"]
    assert [len(lane.failures) for lane in figure.body.lanes] == [1, 2, 1]
    (figure,) = figures("nothing", "run")
    assert isinstance(figure.body, Lanes)
    (stretch,) = figure.body.lanes[0].stretches["solo"]
    assert stretch == pytest.approx((0.0, 3.0))


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
