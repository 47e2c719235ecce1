"""The last line: one row, words in fixed places, whatever became of the run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.analysis.table.analyse import rows
from scaling.report.headline import headline, last_line
from tests.support.report_scenes import SCENES, rendered
from tests.support.scripted_records import asynchronous, carried, failed, point, record, with_losses


@pytest.mark.parametrize(
    ("scene", "line"),
    [
        ("default", "scaling: fake:a N=2 596.5 images/s speedup 1.86 efficiency 0.932 flags -"),
        ("cluster", "scaling: torch:nccl N=16 3937.2 images/s speedup 12.31 efficiency 0.769 flags - over ib0"),
        ("networks", "scaling: fake:a N=4 426.5 images/s speedup 1.33 efficiency 0.333 flags VERIFIED over ib0"),
        ("nothing", "scaling: nothing measured"),
    ],
)
def test_the_last_line_is_that_of_the_headline(scene: str, line: str) -> None:
    assert rendered(scene).splitlines()[-1] == line


@pytest.mark.parametrize("scene", sorted(SCENES))
def test_words_keep_their_places(scene: str) -> None:
    words = rendered(scene).splitlines()[-1].split()
    if words[1:] != ["nothing", "measured"]:
        assert [words[index] for index in (0, 5, 7, 9)] == ["scaling:", "speedup", "efficiency", "flags"]
        assert words[2].startswith("N=") and words[4].endswith("/s")


def test_a_largest_world_size_that_failed_is_not_hidden() -> None:
    found = rows([record(point("solo"), 0.1), record(point(), 0.1), failed(point(world_size=2))])
    assert last_line(found) == "scaling: fake:a N=2 - images/s speedup - efficiency - flags FAILED"


def test_who_does_not_wait_or_took_another_network_is_the_headline_only_where_nobody_else_is() -> None:
    fast = asynchronous(record(point(world_size=2, strategy="fake:async"), 0.1))
    wrong = carried(record(point(world_size=2, interconnect="eth0"), 0.11, hosts=("a", "b")), "ib0")
    slow = record(point(world_size=2), 0.2)
    solo = record(point("solo"), 0.1)
    for records, name in (([fast, wrong, slow], "fake:a"), ([fast], "fake:async")):
        found = headline(rows([solo, *records]))
        assert found is not None and (found.strategy, found.interconnect) == (name, "auto")
    found = headline(rows([solo, wrong]))
    assert found is not None and found.flags == ("MISLABELLED",)


def test_nothing_is_claimed_of_ranks_that_learnt_less_than_crowded_ones() -> None:
    records = []
    for number in range(3):
        stale = asynchronous(record(point("exchange", 2, number, strategy="fake:b"), 0.101))
        fresh = replace(record(point("exchange", 2, number), 0.11), oversubscribed=True)
        records += [record(point("solo", 1, number), 0.1), with_losses(stale, 2.2, 2.1, 2.0 + 0.001 * number)]
        records += [with_losses(fresh, 2.0, 1.5, 1.0)]
    assert last_line(rows(records)) == "scaling: fake:b N=2 633.7 images/s speedup - efficiency - flags ASYNC"


def test_another_revision_that_was_faster_is_not_the_headline_of_the_launch() -> None:
    solo = record(point("solo"), 0.1)
    own, other = (
        record(point(world_size=2, strategy=name), s) for name, s in (("fake:a", 0.2), ("fake:a@c0de", 0.1))
    )
    assert last_line(rows([solo, own, other])).startswith("scaling: fake:a N=2 320.0 images/s")
    wrong = carried(record(point(world_size=2, interconnect="eth0"), 0.11, hosts=("a", "b")), "ib0")
    assert last_line(rows([solo, wrong, other])).startswith("scaling: fake:a@c0de N=2 640.0 images/s")


def test_a_pass_is_named_and_gives_way_to_a_whole_step() -> None:
    passes = [record(point(strategy="fake:plain", pass_="forward"), 0.01)]
    assert last_line(rows(passes)).endswith("3200.0 images/s speedup - efficiency - flags - pass forward")
    both = [*passes, record(point(strategy="fake:plain"), 0.1)]
    assert last_line(rows(both)).endswith("320.0 images/s speedup - efficiency - flags -")
