"""Series over runs: which exchanges share a figure, what is drawn of each run, what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Contender
from scaling.report.figures.parts import Trends
from scaling.tools.history import __main__ as module
from scaling.tools.history.__main__ import figures
from scaling.tools.history.lines import RunLine, Sight, lettered, line
from tests.support.compared_runs import Run, without_noise
from tests.support.points import changed
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import close, mean


def lines(*runs: Run) -> list[RunLine]:
    return lettered([line(Path(f"run-{at}"), *run, all_exchanges=True) for at, run in enumerate(runs)])


def trends(*runs: Run) -> dict[str, Trends]:
    found, _ = figures(lines(*runs))
    return {one.title: one.body for one in found if isinstance(one.body, Trends)}


def sight(of: str, rate: float = 100.0, **changes: Any) -> Sight:
    contender = Contender(strategy=of, interconnect="auto", options={})
    return Sight(contender, "digits-cnn, batch 32", 2, rate, "images")._replace(**changes)


def seen(*sights: Sight) -> RunLine:
    (made,) = lines(without_noise())
    return replace(made, like="A", seen=sights)


@pytest.mark.parametrize(
    ("field", "value"),
    [("image_size", 448), ("sequence_length", 64), ("optimizer", "adam"), ("feed", "native"), ("feed_workers", 4),
     ("drop_caches", True), ("pass_", "forward")],
)  # fmt: skip
def test_runs_of_another_work_are_of_another_group(field: str, value: object) -> None:
    header, records = without_noise()
    other = [replace(one, point=changed(one.point, **{field: value})) for one in records]
    assert [one.like for one in lines((header, records), (header, other))] == ["A", "B"]


def test_a_series_has_the_rates_of_the_reports_run_after_run() -> None:
    runs = (without_noise(), without_noise(lost=0.05), without_noise(batch_size=64), without_noise())
    found = trends(*runs)
    assert list(found) == [f"A, N={n}: images/s of each run" for n in (4, 2, 1)]
    of_report = [
        mean(row.samples_per_s)
        for run in (runs[0], runs[1], runs[3])
        for row in rows(run[1])
        if (row.strategy, row.world_size) == ("fake:a", 4)
    ]
    (one,) = [trend for trend in found["A, N=4: images/s of each run"].curves if trend.label == "fake:a"]
    assert [dot.at for dot in one.dots] == [1, 2, 4]
    assert [dot.value for dot in one.dots] == [close(rate) for rate in of_report]


def test_a_series_of_text_is_of_tokens() -> None:
    text = {"model": "gpt2-tiny", "data": "synthetic-tokens", "unit": "tokens", "sequence_length": 64}
    header, records = without_noise()
    run = header, [replace(one, point=changed(one.point, **text)) for one in records]
    (told,) = [row for row in rows(run[1]) if (row.strategy, row.world_size) == ("fake:a", 4)]
    found = trends(run, run)["A, N=4: tokens/s of each run"]
    (one,) = [trend for trend in found.curves if trend.label == "fake:a"]
    assert [dot.value for dot in one.dots] == [close(64 * mean(told.samples_per_s))] * 2
    headline = lines(run)[0].headline
    assert headline and (headline.unit, headline.units_per_sample) == ("tokens", 64)


def test_the_newest_value_is_compared_with_the_median_before() -> None:
    found, _ = figures([seen(sight("a", 100)), seen(sight("a", 120)), seen(sight("a", 99))])
    assert "a 99 in run 3, -10.0 % from the median of the 2 before" in found[0].says
    assert found[0].table.lines[0] == ("3", "99")


def test_the_group_of_the_newest_run_comes_first_and_a_single_run_is_no_series() -> None:
    bigger = without_noise(batch_size=64)
    assert next(iter(trends(without_noise(), bigger, without_noise(), bigger))).startswith("B, N=4")
    assert next(iter(trends(bigger, without_noise(), without_noise()))).startswith("B, N=4")
    assert trends(without_noise(), bigger) == {}


def test_names_say_what_differs() -> None:
    """Options and the work, where not all of a figure share them."""
    fp16 = Contender(strategy="a", interconnect="ib0", options={"wire": "fp16", "x": "1"})
    plain = Contender(strategy="a", interconnect="ib0", options={"wire": "fp32", "x": "1"}, servers=2)
    once = seen(sight("a", contender=fp16), sight("a", contender=plain, work="vit, batch 8"))
    found, _ = figures([once, once])
    assert isinstance(found[0].body, Trends)
    assert [trend.label for trend in found[0].body.curves] == [
        "a over ib0 (wire=fp16), digits-cnn, batch 32",
        "a over ib0 (wire=fp32), 2 servers shared, vit, batch 8",
    ]


def test_marks_go_with_their_run_and_are_stamped() -> None:
    found, _ = figures([seen(sight("a")), seen(sight("a", flags=("MISLABELLED",)))])
    assert isinstance(found[0].body, Trends)
    assert [dot.mark for dot in found[0].body.curves[0].dots] == ["", "MISLABELLED"]
    assert found[0].stamps == ("MISLABELLED",) and found[0].table.lines[0] == ("2", "100 MISLABELLED")


@pytest.mark.parametrize(
    ("limits", "runs", "shown", "left_out", "remark"),
    [
        ({}, [range(18), range(2, 18)], 1, "2 exchanges that were measured least", ""),
        ({"MOST_RUNS": 2}, [range(1)] * 3, 1, "runs before the last 2", ""),
        ({"MOST_DOTS": 4}, ["both"] * 2, 2, "", ""),
        ({"MOST_RUNS": 2, "MOST_DOTS": 4}, ["both"] * 3, 2, "runs before the last 2", ""),
        ({"MOST_DOTS": 3}, ["both"] * 2, 1, "", "1 of 2 figures, those of the oldest groups, are left out"),
    ],
)
def test_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch,
    limits: dict[str, int],
    runs: list[Any],
    shown: int,
    left_out: str,
    remark: str,
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(module, name, limit)
    both = (sight("a"), sight("a", world_size=4))
    drawn = [seen(*(both if run == "both" else (sight(f"s{at:02}") for at in run))) for run in runs]
    found, said = figures(drawn)
    assert (len(found), found[0].left_out, said) == (shown, left_out, remark)
    assert isinstance(found[0].body, Trends)
    if not limits:
        assert [trend.label for trend in found[0].body.curves] == [f"s{at:02}" for at in range(2, 18)]


@pytest.mark.parametrize("name", SCENES)
def test_every_scene_twice_is_a_series(name: str) -> None:
    run = SCENES[name]()
    measured = {row.world_size for row in rows(run[1]) if row.samples_per_s}
    sizes = {int(title.partition("N=")[2].partition(":")[0]) for title in trends(run, run)}
    assert sizes == measured
