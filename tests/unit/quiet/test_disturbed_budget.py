"""What windows that something else has disturbed may cost until they are measured undisturbed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from scaling.plan.plan import Plan
from scaling.records.events import Finished
from scaling.records.run import PointRecord
from scaling.sweep import turns as quiet
from tests.support.inline import Run
from tests.support.turns import ONE_CELL, STEADY_S, disturbed, indices, quiet_probes, slow, sweep

pytestmark = pytest.mark.usefixtures("canaries")


# Of an epoch: so long were all its points planned to take, of which a part is for windows that are disturbed.
PLANNED_S = 3.5


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "seconds", lambda *_: PLANNED_S)


def walls_s(run: Run) -> list[float]:
    rounds: defaultdict[int, list[float]] = defaultdict(list)
    for record in run.records:
        rounds[record.point.round].append(record.wall_s)
    return [max(found) for _, found in sorted(rounds.items())]


def ever_slower() -> Iterator[float]:
    return (STEADY_S * 1.1**number for number in range(1, 7000))


@pytest.fixture
def quiet_s(tmp_path: Path) -> list[float]:
    return walls_s(sweep(tmp_path / "quiet", rounds=4, **ONE_CELL))


# Parts of what rounds were planned to take that each of three spends if all are disturbed for good.
SPENT = (2.0, 1.0, 0.0)
# The last turn may go on when the budget is over, and its patience and the agents' turns take a while.
SPILL_S = quiet.PATIENCE_S + 0.5


def spent(walls_s: Iterable[float], quiet_s: Iterable[float], seconds: Iterable[float]) -> list[bool]:
    rounds = zip(walls_s, quiet_s, seconds, strict=False)
    return [abs(wall_s - one_s - more_s) < SPILL_S for wall_s, one_s, more_s in rounds]


@pytest.mark.usefixtures("planned")
def test_a_lasting_disturbance_is_repeated_within_the_budget(
    tmp_path: Path, canaries: list[float], quiet_s: list[float]
) -> None:
    """Who comes first may spend what all have, up to twice what it was planned to take, and all ends. Nothing is
    measured again beside what is still there."""
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=3, **ONE_CELL)
    assert sum(SPENT) == 3 * quiet.BUDGET
    assert spent(walls_s(found), quiet_s, [part * PLANNED_S for part in SPENT]) == [True] * 3
    assert all(map(is_complete, found.records))
    assert disturbed(found) == []


@pytest.mark.usefixtures("planned")
def test_the_quietest_of_many_tries_counts_where_the_last_is_disturbed_too(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each canary is slower than the one before."""
    quiet_probes(monkeypatch)
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=1, **ONE_CELL)
    assert all(map(is_complete, found.records))
    assert len(disturbed(found)) > 12
    for rank in (rank for record in found.records for rank in record.ranks):
        kept = {window.index: window for window in rank.windows}
        assert all(kept[other.index].start_s < other.start_s for other in rank.disturbed)


def is_complete(record: PointRecord) -> bool:
    return isinstance(record.outcome, Finished) and indices(record) == [list(range(12))] * len(record.ranks)


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(("rounds", "part"), [(1, 1.0), (2, 2.0), (4, 2.0)])
def test_the_last_epoch_may_spend_the_unused_budget(
    tmp_path: Path, canaries: list[float], quiet_s: list[float], rounds: int, part: float
) -> None:
    canaries_of_round = 12 * 5  # an exchange has one of each rank
    slow(canaries, after=canaries_of_round * (rounds - 1), times=ever_slower())
    found = walls_s(sweep(tmp_path, rounds=rounds, **ONE_CELL))
    assert spent(found, quiet_s, [*repeat(0.0, rounds - 1), part * PLANNED_S]) == [True] * rounds


@pytest.mark.usefixtures("planned")
def test_a_resumed_run_has_the_budget_of_what_is_lacking(
    tmp_path: Path, canaries: list[float], quiet_s: list[float]
) -> None:
    first = sweep(tmp_path, rounds=3, **ONE_CELL)
    assert disturbed(first) == []
    file = first.folder / "run.jsonl"
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if b'"round":1' not in line]
    assert len(kept) == 1 + 2 * len(first.records) * 2 / 3
    file.write_bytes(b"".join(kept))
    canaries.extend(ever_slower())
    found = sweep(tmp_path, rounds=3, resume=first.folder, **ONE_CELL)
    assert spent(walls_s(found)[1:2], quiet_s[1:], [quiet.BUDGET * PLANNED_S]) == [True]


def test_without_a_budget_nothing_is_measured_again(
    tmp_path: Path, canaries: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quiet, "BUDGET", 0.0)
    canaries.extend(STEADY_S * 1.1**number for number in range(4000))
    assert disturbed(sweep(tmp_path, **ONE_CELL)) == []
