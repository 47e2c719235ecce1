"""What another revision changed, planted: paired by round, whatever else was measured beside."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

import pytest
from msgspec.structs import replace

from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.analyse import Change, changes
from scaling.records.run import PointRecord
from scaling.report.document import document
from scaling.report.formats import terminal
from tests.support.scripted_records import close, header, point, record

OTHER = "@1a2b3c4d5e"
# Every round is slower than the one before, for all alike: only pairs by round can tell 5 %.
DRIFTS = (1.0, 1.21, 1.4, 1.63)


def launch(lost: float, *, rival: str = "fake:b") -> Iterator[PointRecord]:
    """Both revisions of fake:a on 2 devices, and another strategy that is faster than either."""
    for number, drift in enumerate(DRIFTS):
        wobble = exp(0.001 * (-1) ** number)
        yield record(point("solo", 1, number), 0.1 * drift)
        yield record(point(world_size=2, number=number, strategy="fake:a"), 0.11 * drift * wobble / (1 - lost))
        yield record(point(world_size=2, number=number, strategy=f"fake:a{OTHER}"), 0.11 * drift)
        yield record(point(world_size=2, number=number, strategy=rival), 0.105 * drift)


@pytest.mark.parametrize(
    ("lost", "verdict"), [(0.05, "slower"), (-0.05, "faster"), (0.0, "same"), (0.019, "cannot tell")]
)
def test_a_change_is_the_launchs_own_against_the_other(lost: float, verdict: str) -> None:
    (found,) = changes(launch(lost))
    assert (found.point.strategy, found.point.world_size, found.revision) == ("fake:a", 2, OTHER[1:])
    assert found.gain is not None and found.gain.mean == close(-lost)
    assert found.verdict == verdict


def test_one_revision_alone_changes_nothing() -> None:
    alone = [one for one in launch(0.05) if OTHER not in one.point.strategy]
    assert changes(alone) == ()
    assert "against" not in [entry.label for entry in document(header(), alone).facts]


def test_a_cell_that_one_side_lacks_and_one_round_tell_nothing() -> None:
    (lone,) = changes(one for one in launch(0.05) if one.point.strategy != "fake:a")
    assert (lone.point.strategy, lone.gain, lone.verdict) == ("fake:a", None, "cannot tell")
    (found,) = changes(one for one in launch(0.05) if one.point.round == 0)
    assert found.verdict == "cannot tell"


def test_ranks_that_share_cores_are_compared_with_nothing_and_it_is_said() -> None:
    shared = [replace(one, oversubscribed=one.point.world_size > 1) for one in launch(0.5)]
    (found,) = changes(shared)
    assert (found.point.world_size, found.gain) == (2, None)
    text = " ".join(terminal.draw(document(header(), shared), color=False).split())
    assert f"against {OTHER}: workers" in text and "change fake:a batch 32 N=2 cannot tell" in text


def test_no_verdict_without_an_interval() -> None:
    for gain in (None, Estimate(mean=-0.5, low=None, high=None, n=1)):
        assert Change(point(), OTHER, gain).verdict == "cannot tell"


def test_the_report_says_it_and_whose_the_baseline_is() -> None:
    text = " ".join(terminal.draw(document(header(), list(launch(0.05))), color=False).split())
    assert f"against {OTHER}: workers of that revision of scaling; all else" in text
    assert "change fake:a batch 32 N=2 -5.0 % ± " in text
    assert text.partition("change fake:a batch 32 N=2 -5.0 % ± ")[2].split()[1] == "slower"
