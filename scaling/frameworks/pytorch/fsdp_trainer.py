"""PyTorch's fully_shard (FSDP2) in the worker: the shared loop with its model sharded, or its collectives alone.

With `--precision bf16` autocast computes as in the plain loop, from parameters that are gathered in fp32; the
option `param_dtype=bf16` is FSDP's own way (MixedPrecisionPolicy), which halves what is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from scaling.errors import UsageError
from scaling.frameworks.base import Trainer
from scaling.frameworks.options import accumulated
from scaling.frameworks.pytorch import fsdp, process_group
from scaling.frameworks.pytorch.exchange import Exchange
from scaling.frameworks.pytorch.loop import TorchRank, Training
from scaling.frameworks.pytorch.process_group import join, patience
from scaling.records.task import Task

# ---------------------------------------------------------------- fsdp units
#
# Into which units a module is sharded: what is gathered, and reduced, as one. Worker's side.


class Unit(NamedTuple):
    """A module, and those of its parameters that no unit inside it has."""

    module: nn.Module
    parameters: list[nn.Parameter]


def units(module: nn.Module) -> list[Unit]:
    """Each child with parameters, and the module with what is left; inner ones first, as fully_shard asks.

    Containers that compute nothing (ModuleList) stand for what they hold. A module with an attribute `blocks`
    names repeated modules that lie deeper: each of them is a unit of its own too. Children that share a parameter
    (a tied embedding) cannot be gathered apart: they are left to the module.
    """
    inner = dict.fromkeys([*getattr(module, "blocks", ()), *_computing(module.children())])
    owned = {each: _own(each, inner) for each in inner}
    owners = Counter(parameter for parameters in owned.values() for parameter in parameters)
    found = [
        Unit(each, parameters)
        for each, parameters in owned.items()
        if parameters and all(owners[parameter] == 1 for parameter in parameters)
    ]
    taken = {parameter for unit in found for parameter in unit.parameters}
    return [*found, Unit(module, [each for each in module.parameters() if each not in taken])]


def _computing(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    for each in modules:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)):
            yield from _computing(each.children())
        else:
            yield each


def _own(module: nn.Module, units: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Without those of units inside it."""
    inside = {id(each) for each in module.modules()} - {id(module)}
    theirs = {id(one) for each in units if id(each) in inside for one in each.parameters()}
    return [each for each in module.parameters() if id(each) not in theirs]


# ---------------------------------------------------------------- fsdp trainer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def connect(task: Task) -> Trainer:
    """Raises what torch raises; ImportError when the model needs a package that is not installed."""
    return ShardExchange(task) if task.point.kind == "comm" else FullySharded(task)


class FullySharded(Training):
    """The shared loop with its model in units of which each rank keeps its rows."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """Join the process group and shard; all ranks have drawn the same weights."""
        options = fsdp.options_of(self.task.point)
        policy = _policy(options["param_dtype"])
        if policy.param_dtype is not None and any(isinstance(each, _BatchNorm) for each in module.modules()):
            raise UsageError(
                "--option param_dtype=bf16: batch normalisation keeps its means in fp32; leave it out"
            )
        mesh = join_groups(self).mesh(self)
        for unit in units(module):
            fully_shard(unit.module, mesh=mesh, reshard_after_forward=options["reshard"], mp_policy=policy)
        return module

    @contextmanager
    def hold(self) -> Iterator[None]:
        """FSDP's own way to accumulate: parameters are gathered for each micro-batch all the same."""
        assert isinstance(self._module, FSDPModule)
        self._module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._module.set_requires_gradient_sync(True)

    def weights(self) -> dict[str, NDArray[Any]]:
        """Gathered from all ranks, one after the other: every rank must ask."""
        named = self._module.named_parameters()
        return {name: _whole(each).detach().cpu().numpy().copy() for name, each in named}

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """By an all-reduce."""
        return process_group.mean_over_ranks(values)

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()


class Groups(NamedTuple):
    """Whom a rank shares parameters with, and who has the same rows; None where nobody does."""

    sharing: ProcessGroup
    repeating: ProcessGroup | None

    def mesh(self, rank: TorchRank) -> DeviceMesh:
        """As fully_shard takes it: repeating by sharing."""
        if self.repeating is None:
            return DeviceMesh.from_group(self.sharing, rank.device.type)
        size, ranks = self.sharing.size(), range(rank.task.point.world_size)
        return DeviceMesh.from_group(
            [self.repeating, self.sharing],
            rank.device.type,
            mesh=torch.tensor([list(each) for each in fsdp.shard_groups(ranks, size)]),
            mesh_dim_names=("repeating", "sharing"),
        )


class Buffers(NamedTuple):
    """What one unit exchanges: a rank's rows and the whole of its parameters, and the same of its gradients."""

    rows: Tensor
    whole: Tensor
    gradients: Tensor
    reduced: Tensor


class ShardExchange(Exchange):
    """The collectives of one step and nothing else, in FSDP's order.

    On NCCL they are queued and the host goes on; over Gloo FSDP waits for each, and so does this.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._groups = join_groups(self)
        options = fsdp.options_of(task.point)
        module = self.build()
        self.describe(module)
        *inner, whole = units(module)
        # A module is entered before its children.
        self._units = [
            self._buffers(unit, DTYPES[options["param_dtype"]]) for unit in (whole, *inner) if unit.parameters
        ]
        self._gathers_again = options["reshard"]
        self._held = accumulated(task.point) - 1

    def send(self) -> None:
        """Gather each unit; backward gather it again if it was resharded, and reduce its gradients.

        Before a unit's gradients are there, FSDP gathers the one that comes next.
        """
        again = self._units[::-1] if self._gathers_again else []
        for unit in (*self._units, *again) * self._held:
            self._gather(unit)
        for unit in self._units:
            self._gather(unit)
        for unit in again[:1]:
            self._gather(unit)
        works = []
        for unit, coming in zip_longest(reversed(self._units), again[1:]):
            if coming is not None:
                self._gather(coming)
            works.append(self._reduce(unit))
        for work in filter(None, works):
            work.wait()

    def close(self) -> None:
        """Leave the process group."""
        distributed.destroy_process_group()

    def _buffers(self, unit: Unit, dtype: torch.dtype) -> Buffers:
        ranks = self._groups.sharing.size()
        rows = sum(padded_rows(each, ranks) for each in unit.parameters)
        whole = torch.ones(rows * ranks, dtype=dtype, device=self.device)
        return Buffers(
            rows=torch.ones(rows, dtype=dtype, device=self.device),
            whole=whole,
            gradients=whole.to(torch.float32),
            reduced=torch.ones(rows, device=self.device),
        )

    def _gather(self, unit: Buffers) -> None:
        distributed.all_gather_into_tensor(unit.whole, unit.rows, group=self._groups.sharing)

    def _reduce(self, unit: Buffers) -> distributed.Work | None:
        distributed.reduce_scatter_tensor(unit.reduced, unit.gradients, group=self._groups.sharing)
        if self._groups.repeating is None:
            return None
        work: distributed.Work | None = distributed.all_reduce(
            unit.reduced, group=self._groups.repeating, async_op=self.cuda
        )
        return work


def padded_rows(parameter: Tensor, ranks: int) -> int:
    """Elements of a parameter that each of so many ranks has: as many rows as any, as fully_shard pads them."""
    rows = parameter.shape[0] if parameter.ndim else 1
    return -(-rows // ranks) * (parameter.numel() // max(rows, 1))


def join_groups(rank: TorchRank) -> Groups:
    """Join the process group, and the groups in it; every rank makes all of them."""
    join(rank, fsdp.STRATEGY.backend(rank.task.point))
    ranks, size = range(rank.task.point.world_size), fsdp.group_size(rank.task.point)
    whole = distributed.group.WORLD
    assert whole is not None
    if size == len(ranks):
        return Groups(sharing=whole, repeating=None)
    return Groups(
        sharing=_own_of(rank, fsdp.shard_groups(ranks, size)),
        repeating=_own_of(rank, fsdp.replica_groups(ranks, size)),
    )


def _own_of(rank: TorchRank, groups: Sequence[Sequence[int]]) -> ProcessGroup:
    own: ProcessGroup
    own, _ = distributed.new_subgroups_by_enumeration([list(each) for each in groups], timeout=patience(rank))
    return own


def _policy(param_dtype: str) -> MixedPrecisionPolicy:
    if param_dtype == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[param_dtype], reduce_dtype=torch.float32)


def _whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
