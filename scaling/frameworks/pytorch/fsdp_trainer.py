"""The worker's side of FSDP2: its units, the shared loop with its model sharded, or its collectives alone.

With `--precision bf16` autocast computes as in the plain loop, from parameters gathered in fp32.
`param_dtype=bf16` is FSDP's own way (MixedPrecisionPolicy), which halves what is gathered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

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
from scaling.frameworks.pytorch.group import Grouped, patience
from scaling.frameworks.pytorch.loop import Exchange, TorchRank, Training
from scaling.frameworks.pytorch.strategies import FSDP2, group_size, replica_groups, shard_groups
from scaling.records.task import Task

# ---------------------------------------------------------------- fsdp units


class Unit(NamedTuple):
    """A module that is gathered and reduced as one, with its parameters outside inner units."""

    module: nn.Module
    parameters: list[nn.Parameter]


def units(module: nn.Module) -> list[Unit]:
    """Return each child with parameters, then the module with the rest: inner ones first, as fully_shard needs.

    * A container that computes nothing (ModuleList) is replaced by its modules.
    * Each module in an attribute `blocks`, for repeated deeper modules, is a unit too.
    * Children that share a parameter (a tied embedding) cannot be gathered apart: they stay with the module.
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
    inside = {id(each) for each in module.modules()} - {id(module)}
    theirs = {id(one) for each in units if id(each) in inside for one in each.parameters()}
    return [each for each in module.parameters() if id(each) not in theirs]


# ---------------------------------------------------------------- fsdp trainer

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def connect(task: Task) -> Trainer:
    return ShardExchange(task) if task.point.kind == "comm" else FullySharded(task)


class FullySharded(Grouped, Training):
    """The shared loop with its model in sharded units."""

    def join(self) -> None:
        """Join. Raises UsageError before ranks meet."""
        dtype = FSDP2.options_of(self.task.point)["param_dtype"]
        if dtype != "fp32" and any(isinstance(each, _BatchNorm) for each in self._module.modules()):
            raise UsageError(
                "--option param_dtype=bf16: batch normalisation keeps its means in fp32; leave it out"
            )
        super().join()

    def wrap(self, module: nn.Module) -> nn.Module:
        """Shard. All ranks have drawn the same weights."""
        options = FSDP2.options_of(self.task.point)
        policy, dtype = MixedPrecisionPolicy(), options["param_dtype"]
        if dtype != "fp32":
            policy = MixedPrecisionPolicy(param_dtype=DTYPES[dtype], reduce_dtype=torch.float32)
        mesh = mesh_of(self)
        for unit in units(module):
            fully_shard(unit.module, mesh=mesh, reshard_after_forward=options["reshard"], mp_policy=policy)
        return module

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Accumulate as FSDP does. Parameters are still gathered for each micro-batch."""
        assert isinstance(self._module, FSDPModule)
        self._module.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self._module.set_requires_gradient_sync(True)

    def device_digest(self) -> None:
        """Leave it to the host: ranks hold different parts."""

    def weights(self) -> dict[str, NDArray[Any]]:
        """Return the parameters, gathered from all ranks one by one. Collective."""
        return {
            name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().cpu().numpy().copy()
            for name, each in self._module.named_parameters()
        }


def mesh_of(rank: TorchRank) -> DeviceMesh:
    """Create the groups of ranks, as `groups_of`, and return them as a mesh."""
    sharing, repeating = groups_of(rank)
    if repeating is None:
        return DeviceMesh.from_group(sharing, rank.device.type)
    ranks = shard_groups(range(rank.task.point.world_size), sharing.size())
    return DeviceMesh.from_group(
        [repeating, sharing],
        rank.device.type,
        mesh=torch.tensor([list(each) for each in ranks]),
        mesh_dim_names=("repeating", "sharing"),
    )


# Of one unit: a rank's rows and the whole of its parameters, the whole of its gradients and a rank's rows.
Buffers: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


class ShardExchange(Grouped, Exchange):
    """The collectives of one step alone, in FSDP's order: queued on NCCL, one by one over Gloo."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._sharing, self._repeating = groups_of(self)
        options = FSDP2.options_of(task.point)
        *inner, whole = units(self.described()[0])
        # A module is entered before its children.
        self._units = [
            self._buffers(unit, DTYPES[options["param_dtype"]]) for unit in (whole, *inner) if unit.parameters
        ]
        self._gathers_again = options["reshard"]
        self._held = accumulated(task.point) - 1

    def send(self) -> None:
        """Gather each unit; backward, gather it again if it was resharded, and reduce its gradients. FSDP gathers
        the next unit before it reduces the current one."""
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

    def _buffers(self, unit: Unit, dtype: torch.dtype) -> Buffers:
        ranks = self._sharing.size()
        rows = sum(padded_rows(each, ranks) for each in unit.parameters)
        part, reduced = torch.ones(rows, dtype=dtype, device=self.device), torch.ones(rows, device=self.device)
        whole = torch.ones(rows * ranks, dtype=dtype, device=self.device)
        return part, whole, whole.to(torch.float32), reduced

    def _gather(self, unit: Buffers) -> None:
        rows, whole, _, _ = unit
        distributed.all_gather_into_tensor(whole, rows, group=self._sharing)

    def _reduce(self, unit: Buffers) -> distributed.Work | None:
        _, _, gradients, reduced = unit
        distributed.reduce_scatter_tensor(reduced, gradients, group=self._sharing)
        if self._repeating is None:
            return None
        work: distributed.Work | None = distributed.all_reduce(reduced, group=self._repeating, async_op=self.cuda)
        return work


def padded_rows(parameter: Tensor, ranks: int) -> int:
    """Return the elements of a parameter on each rank, padded to the largest number of rows as in fully_shard."""
    rows = parameter.shape[0] if parameter.ndim else 1
    return -(-rows // ranks) * (parameter.numel() // max(rows, 1))


def groups_of(rank: TorchRank) -> tuple[ProcessGroup, ProcessGroup | None]:
    """Create groups in the process group. Return that of the ranks that share parameters, and that of the ranks
    with the same rows, None if there are no others. Collective."""
    ranks, size = range(rank.task.point.world_size), group_size(rank.task.point)
    if size == len(ranks):
        assert distributed.group.WORLD is not None
        return distributed.group.WORLD, None
    own: list[ProcessGroup] = []
    for groups in (shard_groups(ranks, size), replica_groups(ranks, size)):
        listed = [list(each) for each in groups]
        own.append(distributed.new_subgroups_by_enumeration(listed, timeout=patience(rank.task))[0])
    return own[0], own[1]
