"""Points that go on when their epoch's windows are over: which, when, and what of it is on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.analysis.table.analyse import rows
from scaling.errors import UsageError
from scaling.plan import config as configuration
from scaling.plan import defaults, plan, validation
from scaling.records.events import Window
from scaling.records.task import Inspect
from scaling.records.task import Run as RunCommand
from scaling.sweep import epoch
from tests.support.inline import Launch, enrol, host
from tests.support.inline_child import Told
from tests.support.turns import BLOCKS, LATER_TURNS, SIDE_BY_SIDE, cell, sweep

pytestmark = pytest.mark.usefixtures("canaries")


def soaks(launch: Launch) -> list[tuple[Told, RunCommand]]:
    found, begun = [], False
    for told in launch.told:
        command = told.command
        if isinstance(command, RunCommand):
            begun = command.measured or (begun and command.windows * command.steps > 1)
            if begun and not command.measured:
                found.append((told, command))
    return found


def who(told: Told) -> tuple[str, int]:
    return cell(told), told.task.rank


def test_the_widest_exchange_and_a_seat_of_its_plain_loop_go_on_in_the_first_round(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch, rounds=2)
    told = soaks(launch)
    assert {one.task.point.round for one, _ in told} == {0}
    assert {who(one) for one, _ in told} == {("exchange N=2", 0), ("exchange N=2", 1), ("each N=2", 0)}


def test_they_go_on_taking_turns(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch)
    once = [(cell(told), run.first, run.windows) for told, run in soaks(launch) if told.task.rank == 0]
    turns = [once[2 * block : 2 * block + 2] for block in range(LATER_TURNS)]
    for block, turn in enumerate(turns):
        assert sorted(turn) == [(name, 2 * block + 2, 2) for name in ("each N=2", "exchange N=2")]
    assert len(once) == 2 * LATER_TURNS
    orders = [[name for name, *_ in turn] for turn in turns]
    assert any(order != orders[0] for order in orders), "by chance"


def test_before_each_turn_the_canary_is_tried(tmp_path: Path) -> None:
    launch = Launch(2)
    found = sweep(tmp_path, launch)
    assert all(run.canary for _, run in soaks(launch))
    (exchange,) = found.of(size=2)
    later = exchange.ranks[0].later
    assert [one.canary_s is not None for one in later] == [True, False] * LATER_TURNS


def windows(*seconds: float, steps: int = 2) -> list[Window]:
    return [
        Window(index=0, measured=True, steps=steps, samples=1, start_s=0.0, end_s=one, end_unix_s=0.0)
        for one in seconds
    ]


def test_so_many_turns_last_about_so_long() -> None:
    """A turn of two windows has a step more; one window that something else slowed down says nothing of them."""
    assert epoch.soak_turns([windows(0.2, 0.2, 0.2)], 10.0) == 20
    assert epoch.soak_turns([windows(0.1, 0.9, 0.1), windows(0.3, 0.3, 0.3)], 10.0) == 20
    assert epoch.soak_turns([windows(10.0, steps=1)], 10.0) == defaults.FEWEST_TURNS


def test_whoever_does_not_go_on_is_stopped_meanwhile(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch)
    for told, _ in soaks(launch):
        ranks = 1 if cell(told) == "each N=2" else 2
        assert len(told.running) == ranks and {one.attempt for one in told.running} == {told.task.attempt}


def test_it_is_over_before_the_digest_is_taken(tmp_path: Path) -> None:
    launch = Launch(2)
    sweep(tmp_path, launch)
    of_exchange = [one.command for one in launch.told if cell(one) == "exchange N=2" and one.task.rank == 0]
    assert any(isinstance(one, Inspect) for one in of_exchange)
    kinds = [type(one).__name__ for one in of_exchange]
    assert kinds.index("Inspect") == len(kinds) - 2


@pytest.mark.parametrize(
    "fields",
    [{"soak_s": 0.0}, {"interleave": False}, {"kinds": ["exchange", "together"]}, {"strategy": ["fake:async"]}],
    ids=["not asked for", "nobody takes turns", "no plain loop alone", "asynchronous"],
)
def test_nobody_goes_on(tmp_path: Path, fields: dict[str, Any]) -> None:
    launch = Launch(2)
    found = sweep(tmp_path, launch, **fields)
    assert not [rank for record in found.records for rank in record.ranks if rank.later]


def test_ranks_that_share_a_core_claim_nothing_and_do_not_go_on(tmp_path: Path) -> None:
    """The widest that has a core for each does."""
    launch = Launch(2, hosts=[host(cores=1)] * 2)
    found = launch.sweep(tmp_path, **SIDE_BY_SIDE, world_sizes=[1, 2])
    assert [record.point.label for record in found.of(size=1) if record.ranks[0].later]
    assert not [record for record in found.of(size=2) if record.ranks[0].later]


def test_figures_are_those_without_it(tmp_path: Path) -> None:
    """Rates, efficiency, causes: of the measured windows, whose clock is another one after."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    having, lacking = sweep(tmp_path / "a"), sweep(tmp_path / "b", soak_s=0.0)
    one, other = (next(row for row in rows(of.records) if row.world_size == 2) for of in (having, lacking))
    assert one.lasting is not None and other.lasting is None
    for name in ("samples_per_s", "efficiency", "breakdown", "flags", "rounds"):
        assert getattr(one, name) == getattr(other, name)
    (exchange,), (plain,) = having.of(size=2), having.of("each", 2)
    windows = [[window.index for window in rank.later] for rank in (*exchange.ranks, *plain.ranks)]
    assert windows == [list(range(2, 2 * LATER_TURNS + 2))] * 3 + [[]]
    assert not any(window.measured for rank in exchange.ranks for window in rank.later)
    assert len(exchange.ranks[0].windows) == BLOCKS and len(exchange.ranks[0].warmup) == 3


def refused(**fields: Any) -> str:
    with pytest.raises(UsageError) as found:
        wanted = configuration.build({"strategy": ["fake:a"], "device": "cpu", **fields}, source="test")
        validation.validate(wanted)
        validation.check_given(wanted, fields)
        plan.make(wanted, [enrol(host())] * 2)
    return str(found.value)


@pytest.mark.parametrize("soak_s", [-1.0, float("inf"), float("nan")])
def test_nobody_goes_on_for_less_than_nothing_or_for_ever(soak_s: float) -> None:
    assert refused(soak_s=soak_s) == f"--soak-s {soak_s:g}: must be a number from 0"


def test_nobody_goes_on_for_as_long_as_a_point_may_take() -> None:
    assert "--point-timeout-s 50" in refused(soak_s=50.0, point_timeout_s=50.0)


def test_a_soak_of_nobody_is_refused() -> None:
    assert "--no-interleave" in refused(soak_s=5.0, interleave=False)
    assert "--epochs" in refused(soak_s=5.0, epochs=2, model="digits-cnn", strategy=["torch:gloo"])


def planned(**fields: Any) -> plan.Plan:
    wanted = configuration.build({"strategy": ["fake:a"], "device": "cpu", **fields}, source="test")
    return plan.make(wanted, [enrol(host())] * 2)


def test_by_default_points_that_take_turns_go_on_for_seconds_and_those_of_short_runs_for_less() -> None:
    usual, short = planned(), planned(rounds=1, windows=3, window_s=0.02)
    assert usual.soak_s == pytest.approx(defaults.SOAK_S, rel=0.1)
    assert 0 < short.soak_s < 1
    without = planned(soak_s=0.0)
    assert usual.estimate_s == pytest.approx(without.estimate_s + 2 * plan.SOAKED * usual.soak_s)


def test_as_many_go_on_as_there_are_strategies_and_their_plain_loop() -> None:
    one, three = ({"strategy": ["fake:a", "fake:b", "fake:c"][:count]} for count in (1, 3))
    added = [planned(**of, soak_s=5.0).estimate_s - planned(**of, soak_s=0.0).estimate_s for of in (one, three)]
    assert added == pytest.approx([2 * 5.0 * plan.SOAKED, 4 * 5.0 * plan.SOAKED])


def test_long_runs_have_no_longer_soaks() -> None:
    assert planned(rounds=60).soak_s == defaults.SOAK_S and planned(soak_s=20.0).soak_s == 20.0
