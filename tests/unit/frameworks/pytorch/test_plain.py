"""What all torch strategies have in common on the agent's side, and the plain loop."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks import options
from scaling.frameworks.base import PASSES, Strategy, read_options
from scaling.frameworks.pytorch import FRAMEWORK, ddp, fsdp, plain, ps
from scaling.records.point import Kind
from tests.support.paper_tasks import one_task
from tests.support.points import make_point

STRATEGIES: tuple[Strategy, ...] = (plain.STRATEGY, ddp.STRATEGY, fsdp.STRATEGY, ps.STRATEGY)

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.names[0])


def point(**fields: Any) -> Any:
    return make_point(strategy="torch:plain", kind="solo", world_size=1, **fields)


def test_each_mode_is_the_strategy_that_lists_it() -> None:
    for mode in FRAMEWORK.strategies:
        assert f"torch:{mode}" in frameworks.load(f"torch:{mode}").names


@pytest.mark.parametrize("kind", ["solo", "together"])
def test_the_plain_loop_asks_for_nothing(kind: Kind) -> None:
    task = one_task(kind=kind, ports=())
    assert plain.STRATEGY.environ(task, {}) == ddp.STRATEGY.environ(task, {}) == {}
    assert plain.STRATEGY.helpers(task) == []
    assert plain.STRATEGY.traits("torch:plain") == PASSES


def test_its_options_are_those_of_every_strategy() -> None:
    assert read_options(plain.STRATEGY.options, {}) == {"accumulate": 1}
    for strategy in STRATEGIES:
        assert strategy.options.items() >= plain.STRATEGY.options.items()
        assert strategy.baseline == "torch:plain"


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@every_strategy
def test_without_torch(strategy: Strategy, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "find_spec", lambda _: spec)
    for name in strategy.names:
        assert strategy.missing(name) == "torch is not installed: ./launch/install torch"


@every_strategy
@pytest.mark.parametrize(
    ("parts", "reason"), [("1", None), ("2", None), ("3", "--option accumulate=3: does not divide")]
)
def test_micro_batches_are_of_equal_size(strategy: Strategy, parts: str, reason: str | None) -> None:
    found = strategy.refuse(one_task(options={"accumulate": parts}).point)
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "few", "1" + 20 * "0"])
def test_micro_batches_are_counted(text: str) -> None:
    with pytest.raises(UsageError, match=f"--option accumulate={text}: expected integer from 1 to 1099511627776"):
        options.accumulated(one_task(options={"accumulate": text}).point)


@every_strategy
def test_what_emulated_devices_cannot_do(strategy: Strategy) -> None:
    emulated: dict[str, Any] = {"device": "emulated", "profile": "p100", "model": "resnet50", "batch_size": 32}
    assert strategy.refuse(one_task(**emulated).point) is None
    assert (strategy.refuse(one_task(**emulated, precision="bf16").point) or "").startswith("--precision bf16: ")
