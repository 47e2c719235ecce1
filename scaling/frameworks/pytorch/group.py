"""The process group that joins ranks, and torch's key-value store through which they find each other."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from functools import partial

import torch
from torch import Tensor, distributed

from scaling import frameworks
from scaling.frameworks.abilities import until_it_listens
from scaling.frameworks.base import timeout_s
from scaling.frameworks.pytorch import installed
from scaling.records.task import Task

TRANSPORT = "GLOO_DEVICE_TRANSPORT"


def open_store(address: str, port: int, *, hosts: bool, timeout: timedelta) -> distributed.TCPStore:
    """Open the store at this address, which one process `hosts`. Raises torch's DistStoreError after `timeout`.
    torch's default listens on all interfaces of the host."""
    # Not imported by name: the plain loop runs on builds of torch that lack it.
    open_ = partial(distributed.TCPStore, address, port, is_master=hosts, timeout=timeout, wait_for_workers=False)
    if not hosts:
        until_it_listens(address, port, timeout.total_seconds())
        return open_()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        # With libuv torch 2.4 to 2.7 take no bound socket.
        return open_(master_listen_fd=one.detach(), use_libuv=not installed.is_before(2, 8))


def patience(task: Task) -> timedelta:
    return timedelta(seconds=timeout_s(task.clocks))


def join(task: Task, device: torch.device | None = None) -> None:
    """Join the process group, over NCCL or Gloo as the task's strategy says. NCCL connects here if it gets the
    rank's device, else during the first collective."""
    nccl = frameworks.load(task.point.strategy).by_nccl(task.point)
    timeout, is_first = patience(task), task.rank == 0
    try:
        distributed.init_process_group(
            "nccl" if nccl else "gloo",
            store=open_store(task.address, task.ports[0], hosts=is_first, timeout=timeout),
            rank=task.rank,
            world_size=task.point.world_size,
            timeout=timeout,
            device_id=device if nccl else None,
        )
    except RuntimeError as error:
        if (given := os.environ.get(TRANSPORT)) and "unsupported gloo device" in str(error):
            raise RuntimeError(f"{error}: this torch has no {TRANSPORT}={given}; unset it") from None
        raise


class Grouped:
    """A rank of the process group."""

    task: Task
    device: torch.device

    def join(self) -> None:
        join(self.task, self.device)

    def mean_over_ranks(self, values: Tensor) -> Tensor:
        """Replace the values by their mean over the process group. Return them."""
        distributed.all_reduce(values)
        return values.div_(distributed.get_world_size())

    def close(self) -> None:
        distributed.destroy_process_group()


def nccl_version() -> str:
    """Return NCCL's version; `unknown` if torch is built without it or does not say."""
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call, unused-ignore]
    except (AttributeError, TypeError, RuntimeError):
        return "unknown"
