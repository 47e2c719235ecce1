"""What points at a node, and what is said of it."""

from __future__ import annotations

import pytest

from scaling.analysis.stats import interval
from scaling.tools.bisect import words
from scaling.tools.bisect.promising import Promise
from scaling.tools.bisect.proof import Proof
from scaling.tools.bisect.search import Found
from scaling.tools.bisect.suspects import suspects, tail


def test_being_last_by_chance() -> None:
    """Binomial(4, 1/4): 1/256 for all windows, 13/256 for three or more."""
    assert tail(4, 4, 0.25) == pytest.approx(1 / 256)
    assert tail(3, 4, 0.25) == pytest.approx(13 / 256)
    assert tail(0, 4, 0.25) == pytest.approx(1.0)


def test_without_evidence_nobody_is_suspected() -> None:
    assert suspects(None, None, 0.03) == ()
    assert list(words.evidence(())) == [
        "nothing points at any node: ranks beside each other are alike, and so are paths"
    ]


def proved(gains: list[float], of_control: float = 0.003) -> Proof:
    return Proof(
        everyone=0.812, without=0.94, control=0.815, gain=interval(gains), of_control=interval([of_control] * 3)
    )


def test_a_proof_says_the_gain_with_its_interval_and_the_control() -> None:
    promised = Promise(efficiency=0.95, low=0.93, high=0.97)
    first, unexplained, *_ = words.proved(proved([0.12, 0.128, 0.136]), ["node03"], ["node05"], promised)
    assert first == "81.2 -> 94.0 % (+12.8 ± 2.0) without node03; without node05: 81.5 %"
    assert unexplained == "of the promise -1.0 points are unexplained, inside its 80 % interval"


def test_what_is_not_proved_is_said() -> None:
    assert "not proved" in list(words.proved(proved([-0.1, 0.128, 0.3]), ["a"], ["b"], None))[-1]
    assert "refuted: without a" in list(words.proved(proved([-0.11, -0.1, -0.12]), ["a"], ["b"], None))[-1]
    assert "one round" in list(words.proved(proved([0.128]), ["a"], ["b"], None))[-1]


def test_what_is_not_settled_is_said() -> None:
    found = Found(frozenset(), frozenset({1}), 0.6)
    assert words.outcome(found, [], ["node2"], 10, 4).startswith(
        "no node is slow beyond doubt, by 10 points in 4 waves"
    )
