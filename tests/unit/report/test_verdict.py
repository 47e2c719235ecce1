"""The sentence at the head of a page, where an efficiency must not be claimed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scaling.records.run import PointRecord
from scaling.report.material import Material
from scaling.report.verdict import Verdict, verdict
from tests.support.scripted_records import asynchronous, header, point, record, sweep, with_losses


def said(records: Sequence[PointRecord]) -> Verdict:
    return verdict(Material(header(), records))


def test_asynchronous_ranks_that_learnt_less_have_no_efficiency_there_either() -> None:
    made = []
    for number in range(3):
        stale = asynchronous(record(point("exchange", 2, number, strategy="fake:b"), 0.101))
        fresh = replace(record(point("exchange", 2, number), 0.11), oversubscribed=True)
        made += [
            record(point("solo", 1, number), 0.1),
            with_losses(stale, 2.2, 2.1, 2.0 + 0.001 * number),
            with_losses(fresh, 2.0, 1.5, 1.0),
        ]
    found = said(made)
    assert found.sentence.endswith(
        "images/s ± 0.0. Nothing is claimed of its efficiency: its samples taught less than those of synchronous "
        "ranks (ASYNC)."
    )
    assert not [tile for tile in found.tiles if "efficiency" in tile.says or "speedup" in tile.says]


def test_one_round_names_no_cause_and_gives_no_advice() -> None:
    """Its loss of a tenth has no interval; over two rounds the same is told."""
    made = [one for number in range(2) for one in sweep(number, 0.1, {2: 0.112 + 0.0001 * number})]
    one, two = said([each for each in made if each.point.round == 0]), said(made)
    assert "Lost: " in two.sentence and two.advice and "largest loss" in " ".join(tile.says for tile in two.tiles)
    assert one.sentence.endswith(" of the ideal.") and not one.advice
    assert "largest loss" not in " ".join(tile.says for tile in one.tiles)


def test_a_plain_loop_by_itself_lacks_no_plain_loop() -> None:
    found = said([record(point("exchange", 1, number, strategy="torch:plain"), 0.1) for number in range(2)])
    assert found.sentence.endswith("Nothing is claimed of its efficiency: it is the plain loop itself.")
