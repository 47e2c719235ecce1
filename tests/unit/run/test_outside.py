"""Strategies from outside the package: what they raise costs their points alone, and what they lack is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.errors import SilentRanks, UsageError
from scaling.plan import plan
from scaling.plan.config import SweepConfig
from scaling.records.events import Failed, Finished
from scaling.records.host import HostInfo, Nic
from scaling.records.messages import SWEEP_DECODER, ToAgent, ToSweep
from scaling.report.formats import terminal
from scaling.run.enrolment import ask_of_outside
from scaling.transport.base import Hub, Mailbox
from tests.support import faulty
from tests.support.inline import Launch, Run, enrol, host

QUICK: dict[str, Any] = {"rounds": 1, "kinds": ["exchange"], "world_sizes": [2]}


def node(number: int) -> HostInfo:
    return host(
        f"node{number}",
        nics=(Nic(name="ib0", address=f"10.0.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),),
    )


def beside(tmp_path: Path, mode: str) -> tuple[Run, Failed]:
    """A sweep of a faulty strategy and of one that works, which must have been measured; how the other failed."""
    name = f"{faulty.MODULE}:{mode}"
    run = Launch(2).sweep(tmp_path, strategy=[name, "fake:a"], **QUICK)
    (other,) = run.of(size=2, strategy="fake:a")
    assert isinstance(other.outcome, Finished)
    (record,) = run.of(size=2, strategy=name)
    assert isinstance(record.outcome, Failed)
    assert len(run.records) == 2
    return run, record.outcome


@pytest.mark.parametrize("hook", ["environ", "helpers"])
def test_what_a_strategy_raises_costs_its_point_alone(tmp_path: Path, hook: str) -> None:
    run, failed = beside(tmp_path, hook)
    assert failed.cause == "error"
    assert f"strategy {faulty.MODULE}:{hook}: {hook}() raised KeyError: 'planted in {hook}'" in failed.message
    assert f'raise KeyError("planted in {hook}")' in failed.log_tail  # its traceback
    assert "failed: error" in terminal.render(run.header, run.records, color=False)


@pytest.mark.parametrize(
    ("mode", "cause", "told"),
    [
        ("number", "error", "environ() is of a wrong type: Expected `str`, got `int`"),
        ("leaving", "error", "environ() raised SystemExit: planted in environ"),
        ("helping", "error", "helpers() is of a wrong type: Expected `str`, got `int` - at `$[0].name`"),
        ("beyond", "error", "helpers() names a rank or server that the point does not have"),
        ("refuse", "refused", "refuse() raised KeyError: 'planted in refuse'"),
        ("refusing", "refused", "refuse() is of a wrong type: Expected `str | null`, got `int`"),
    ],
)
def test_a_wrong_answer_costs_its_point_alone(tmp_path: Path, mode: str, cause: str, told: str) -> None:
    _, failed = beside(tmp_path, mode)
    assert failed.cause == cause
    assert f"strategy {faulty.MODULE}:{mode}: {told}" in failed.message


def test_what_a_strategy_lacks_is_its_cells_cause(tmp_path: Path) -> None:
    run, failed = beside(tmp_path, "lacking")
    assert failed == Failed(cause="missing", message="no licence: buy one (on node1)")
    assert "no licence: buy one" in " ".join(terminal.render(run.header, run.records, color=False).split())


def test_a_package_that_only_another_rank_lacks_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty, "ANSWERS", [None, "no licence"])
    _, failed = beside(tmp_path, "sometimes")
    assert failed == Failed(cause="missing", message="no licence (on node1)")
    assert faulty.ANSWERS == []  # each rank was asked once


def test_the_host_that_lacks_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty, "ANSWERS", [None, "no licence"])
    launch = Launch(2, [node(1), node(2)])
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    names = ("fake:a", f"{faulty.MODULE}:sometimes")
    made = plan.make(SweepConfig(strategy=names, device="cpu"), ask_of_outside(mailbox, launch.enrolled, names))
    assert made.missing == {names[1]: "no licence (on node2)"}


def test_a_strategy_that_cannot_say_what_it_lacks_is_missing(tmp_path: Path) -> None:
    _, failed = beside(tmp_path, "missing")
    assert failed.cause == "missing"
    assert "missing() raised KeyError: 'planted in missing' (on node1)" in failed.message


def test_one_that_lacks_nothing_is_measured(tmp_path: Path) -> None:
    run = Launch(2).sweep(tmp_path, strategy=[f"{faulty.MODULE}:fine"], **QUICK)
    assert [type(record.outcome) for record in run.records] == [Finished]


def test_a_launch_with_nothing_but_what_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"faulty:lacking: no licence: buy one \(on node1\)"):
        Launch(2).sweep(tmp_path, strategy=[f"{faulty.MODULE}:lacking"], **QUICK)


def test_strategies_of_the_package_are_not_asked_again() -> None:
    enrolled = [enrol(host())]

    def fail() -> None:
        raise AssertionError("nobody is to be asked")

    mailbox = Mailbox[ToAgent, ToSweep](Hub(1).rank(0), SWEEP_DECODER, turn=fail, wait=fail)
    assert ask_of_outside(mailbox, enrolled, ["torch:gloo", "fake:a", "kvstore", "nowhere:x"]) == tuple(enrolled)


def test_a_rank_that_does_not_answer_is_named() -> None:
    mailbox = Mailbox[ToAgent, ToSweep](Hub(1).rank(0), SWEEP_DECODER, turn=lambda: None, wait=lambda: None)
    with pytest.raises(SilentRanks, match=r"node7: no answer about a\.b:c within 0\.01 s"):
        ask_of_outside(mailbox, [enrol(host("node7"))], ["a.b:c"], within_s=0.01)
