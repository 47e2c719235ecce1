"""FSDP2 in the worker: which units a module is sharded into, and what is padded."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from scaling.errors import UsageError
from scaling.frameworks.pytorch import ddp_trainer, fsdp_trainer, group
from scaling.frameworks.pytorch.fsdp_trainer import units
from tests.support.paper_tasks import one_task


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


class Decoder(nn.Module):
    """An embedding, blocks in a list, a head; a parameter of its own; nothing is computed."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(3, 4))
        self.embedding = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(4, 5, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(), Block()))

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return (each for each in self.modules() if isinstance(each, Block))


def names(module: nn.Module) -> dict[str, list[str]]:
    """By each unit's name its parameters'."""
    modules = {id(each): name for name, each in module.named_modules()}
    parameters = {id(each): name for name, each in module.named_parameters()}
    return {modules[id(unit.module)]: [parameters[id(each)] for each in unit.parameters] for unit in units(module)}


def test_each_child_with_parameters_is_a_unit_and_the_module_has_the_rest() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2, bias=False))
    assert names(module) == {"0": ["0.weight", "0.bias"], "2": ["2.weight"], "": []}
    assert names(nn.Linear(2, 3)) == {"": ["weight", "bias"]}


def test_a_list_of_blocks_is_a_unit_for_each() -> None:
    found = names(Decoder())
    assert list(found) == ["embedding", "layers.0", "layers.1", "head", ""]
    assert (len(found["layers.1"]), found[""]) == (4, ["positions"])


def test_children_that_share_a_parameter_are_left_to_the_module() -> None:
    found = names(Decoder(tied=True))
    assert list(found) == ["layers.0", "layers.1", ""]
    assert found[""] == ["positions", "embedding.weight"]


def test_blocks_that_a_module_names_are_units_inside_its_children() -> None:
    found = names(Nested())
    assert list(found) == ["body.1.0", "body.1.1", "body", ""]
    assert found["body"] == ["body.0.weight", "body.0.bias"]
    assert all(parameters for name, parameters in found.items() if name)


@pytest.mark.parametrize(
    ("shape", "ranks", "elements"), [((10, 256), 4, 3 * 256), ((8,), 4, 2), ((3, 2, 2), 16, 4), ((), 2, 1)]
)
def test_rows_are_padded_to_the_ranks(shape: tuple[int, ...], ranks: int, elements: int) -> None:
    assert fsdp_trainer.padded_rows(torch.zeros(shape), ranks) == elements


@pytest.mark.parametrize(
    ("trainer", "has_one"),
    [(ddp_trainer.Distributed, True), (ddp_trainer.ShardedOptimizer, False), (fsdp_trainer.FullySharded, False)],
)
def test_a_step_without_exchange_exists_if_nothing_else_changes(trainer: type, has_one: bool) -> None:
    """FSDP gathers whatever is held back, and ZeRO's update is an exchange."""
    assert hasattr(trainer, "unsynced_step") == has_one


def test_batch_normalisation_is_refused_half_precision_before_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch itself fails in the first forward pass: expected scalar type BFloat16 but found Float."""
    task = one_task("torch:fsdp2", "exchange", precision="bf16", options={"param_dtype": "bf16"})
    normed = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    monkeypatch.setattr(fsdp_trainer.FullySharded, "build", lambda _: normed)
    monkeypatch.setattr(group, "join", lambda *_: pytest.fail("ranks have met"))
    with pytest.raises(UsageError, match="--option param_dtype=bf16: batch normalisation"):
        fsdp_trainer.FullySharded(task)


def test_parameters_are_gathered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[weakref.ref[torch.Tensor]] = []

    class Sharded:
        def full_tensor(self) -> torch.Tensor:
            assert not any(one() is not None for one in gathered), "two whole parameters in memory"
            whole = torch.ones(2)
            gathered.append(weakref.ref(whole))
            return whole

    monkeypatch.setattr(fsdp_trainer, "DTensor", Sharded)
    module = SimpleNamespace(named_parameters={"a": Sharded(), "b": Sharded()}.items)
    rank: Any = SimpleNamespace(_module=module)
    assert list(fsdp_trainer.FullySharded.weights(rank)) == ["a", "b"]
