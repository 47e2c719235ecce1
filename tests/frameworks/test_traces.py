"""A real trace of each framework, and real steps without the exchange: two ranks, briefly."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling import frameworks
from scaling.records.events import Finished
from scaling.records.telemetry import TRACED
from scaling.sweep import attempt
from tests.support import kept_forks, ranks
from tests.support.inline import Launch

QUICK: dict[str, Any] = {
    "kinds": ["exchange"], "world_sizes": [2], "rounds": 1, "windows": 3, "window_s": 0.02, "batch_size": 4,
}  # fmt: skip


def need(name: str) -> None:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)


def names(path: Path) -> set[str]:
    """Of the events of a file, which may be a list or an object, as Chrome reads both."""
    read = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    events = read["traceEvents"] if isinstance(read, dict) else read
    assert all(event["ts"] >= 0 for event in events if event.get("ph", "M") in "BEX")
    return {event["name"] for event in events if "name" in event}


@pytest.mark.parametrize(
    ("name", "in_step", "in_exchange"),
    [
        ("torch:gloo", {TRACED, "aten::convolution"}, {"gloo:all_reduce"}),
        ("torch:horovod", {TRACED, "aten::convolution"}, set()),
        ("tensorflow:ring", {"ReadVariableOp"}, {"CollectiveReduceV2"}),
        ("jax:psum", set(), {"all-reduce"}),
        ("mxnet:horovod", {"Convolution"}, {"horovod_allreduce"}),
    ],
)
def test_five_steps_are_traced_on_each_rank(
    name: str, in_step: set[str], in_exchange: set[str], tmp_path: Path
) -> None:
    """The point's digests agree: they are taken before the steps without the exchange."""
    need(name)
    found = Launch(2, real=True, start=kept_forks.fork).sweep(tmp_path, strategy=[name], trace=True, **QUICK)
    (record,) = found.records
    assert record.outcome == Finished()
    assert [warning.text for warning in record.warnings if "trace" in warning.text] == []
    for rank in record.ranks:
        assert [window.steps for window in rank.traced] == [5]
        path = next(one for one in rank.traces if "horovod.json" not in one)
        told = names(found.folder / path)
        # MXNet names operators that it runs in one go by all of them.
        assert {one for one in in_step | in_exchange if not any(one in name for name in told)} == set()
    timelines = [one for rank in record.ranks for one in rank.traces if one.endswith(".horovod.json.gz")]
    assert len(timelines) == (1 if name.endswith(":horovod") else 0)
    for one in timelines:
        assert {"NEGOTIATE_ALLREDUCE", "GLOO_ALLREDUCE"} <= names(found.folder / one)


@pytest.mark.parametrize("name", ["torch:gloo", "torch:horovod", "mxnet:horovod"])
def test_a_step_without_the_exchange_is_each_ranks_own(name: str) -> None:
    """Nothing but the exchange is left out, and the next step has it again."""
    need(name)
    first, second = ranks.run(ranks.tasks(name, "exchange", 2), 2, unsynced=2)
    assert first.digest != second.digest
    first, second = ranks.run(ranks.tasks(name, "exchange", 2), 3)
    assert first.digest == second.digest


@pytest.mark.parametrize("name", ["torch:gloo", "torch:horovod"])
def test_the_exchange_alone_beside_its_own_compute(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is timed on GPUs; the digests that must agree are taken before."""
    need(name)
    monkeypatch.setattr(attempt, "OVERLAPPED", ("cpu",))
    found = Launch(2, real=True, start=kept_forks.fork).sweep(tmp_path, strategy=[name], **QUICK)
    (record,) = found.records
    assert record.outcome == Finished()
    for rank in record.ranks:
        assert [window.steps for window in rank.beside] == [window.steps for window in rank.unsynced]
        assert all(window.seconds > 0 and window.samples == 0 for window in rank.beside)
