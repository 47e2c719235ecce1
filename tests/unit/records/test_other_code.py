"""Strategies of another revision: their names, what is asked of them, and what their workers are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan import config, plan
from scaling.records import other_code
from scaling.records.point import EXCHANGING
from scaling.run import flags, revisions
from tests.support.forked import task_of
from tests.support.inline import enrol, host

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_names() -> None:
    name = other_code.of_revision("torch:gloo", COMMIT)
    assert name == "torch:gloo@0123456789"
    assert (other_code.own(name), other_code.revision(name)) == ("torch:gloo", "0123456789")
    assert other_code.of_revision("torch:gloo", "") == "torch:gloo"
    assert (other_code.own("torch:gloo"), other_code.revision("torch:gloo")) == ("torch:gloo", "")


@pytest.mark.parametrize("name", ["torch:ps-async", "tensorflow:ring", "mxnet:dist_sync", "fake:a-async"])
def test_a_strategy_answers_as_under_its_own_name(name: str) -> None:
    own, other = frameworks.load(name), frameworks.load(f"{name}@0123456789")
    assert other.traits(f"{name}@0123456789") == own.traits(name)
    assert other.devices(f"{name}@0123456789") == own.devices(name)
    assert (other.baseline, other.options, other.trainer_module) == (own.baseline, own.options, own.trainer_module)
    assert frameworks.missing(f"{name}@0123456789", "cpu") == frameworks.missing(name, "cpu")


def test_a_worker_is_told_of_no_revision(tmp_path: Path) -> None:
    own = task_of(tmp_path)
    other = replace(own, code="/there", point=replace(own.point, strategy="fake:a@0123456789"))
    assert other_code.told(other) == own
    assert other_code.told(own) is own


def test_each_exchange_is_planned_twice_and_plain_loops_once() -> None:
    wanted = config.build({"strategy": ["fake:a"], "device": "cpu", "against": COMMIT}, source="test")
    made = plan.make(wanted, [enrol(host())] * 2)
    names = {cell.strategy for cell in made.cells if cell.kind in EXCHANGING}
    assert names == {"fake:a", "fake:a@0123456789"}
    assert {cell.strategy for cell in made.cells if cell.kind not in EXCHANGING} == {"fake:plain"}
    again = plan.make(made.config, [enrol(host())] * 2)
    assert [cell.cell for cell in again.cells] == [cell.cell for cell in made.cells]
    with_code = replace(made, other_code="/there")
    assert {cell.strategy: with_code.code(cell) for cell in made.cells} == {
        "fake:plain": "", "fake:a": "", "fake:a@0123456789": "/there",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"epochs": 2}, "leave out --epochs"),
        ({"pass": ["forward"]}, "leave out --pass"),
    ],
)
def test_what_is_no_exchange_is_not_measured_against_a_revision(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        revisions.settled(config.build({"against": "HEAD", **fields}, source="test"))


def test_a_revision_is_named_by_its_flag_alone() -> None:
    wanted = config.build({"strategy": ["fake:a@0123456789"], "device": "cpu"}, source="test")
    with pytest.raises(UsageError, match="--against REV"):
        plan.make(wanted, [enrol(host())])
    asked = flags.parse(("--against", "no-such-folder"))
    assert (asked.given, asked.against) == ({"against": "no-such-folder"}, None)
