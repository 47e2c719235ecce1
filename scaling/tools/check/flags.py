"""The flags of `check`; `parse` turns argv into `Asked`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from scaling.command import command, with_fields
from scaling.errors import UsageError
from scaling.hosts.networks import VARIABLE
from scaling.plan.config import FABRIC_FILE
from scaling.records.point import Record
from scaling.tools.check import NAME
from scaling.transport import start

EPILOG = (
    "Exit codes: 0 no error found, 1 an error found, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP."
)

app = typer.Typer(add_completion=False)


_INTERCONNECT = Option(
    help="Networks to measure: names of the fabric file, interfaces, subnets.",
    metavar="NAME,...",
    show_default="the fabric file's, else all that nodes share",
)
_FABRIC = Option(help=FABRIC_FILE, metavar="FILE", envvar=VARIABLE)
_JSON = Option("--json", help="Print facts and verdicts as JSON.")
_HANDOVER = Option(
    help="Write errors and warnings as a Markdown table to hand on: node, part, seen, expected, what to do.",
    metavar="FILE",
)
_ALL_REDUCE = Option(
    "--all-reduce/--no-all-reduce",
    help="Time all-reduces of all ranks by torch, over each network: about 15 s each, more if torch starts late.",
)
_DEVICE_RATES = Option(
    "--device-rates/--no-device-rates",
    help="Measure each device alone by torch, all at once: about 15 s, more if torch starts late.",
)


class Asked(Record, frozen=True, kw_only=True):
    interconnect: Annotated[str | None, _INTERCONNECT] = None
    fabric: Annotated[str | None, _FABRIC] = None
    json: Annotated[bool, _JSON] = False
    handover: Annotated[Path | None, _HANDOVER] = None
    device_rates: Annotated[bool, _DEVICE_RATES] = True
    all_reduce: Annotated[bool, _ALL_REDUCE] = True

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(word.strip() for word in (self.interconnect or "").split(",") if word.strip())


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command(epilog=f"{start.ABOUT}\n\n{EPILOG}")
@with_fields(Asked)
def check(**given: Any) -> Asked:
    """Test whether this cluster is fit to be measured. Start one rank per device.

    A cluster, its nodes in a hostfile:
        mpirun -np 16 --hostfile hostfiles/4x4 python -m scaling check
    Two of its networks:
        mpirun -np 16 python -m scaling check --interconnect ib0,eth0
    Errors and warnings as a table to hand on:
        mpirun -np 16 python -m scaling check --handover FILE.md
    Facts for a program:
        mpirun -np 16 python -m scaling check --json

    It measures each device alone, each pair of nodes, and an all-reduce of all ranks. Then it judges:

    * software: files, packages, MPI, NCCL and driver, the same on every node
    * limits: cores, load of other programs, locked and shared memory
    * GPUs: number and kinds, peer access, torch's CUDA, GPUDirect RDMA
    * each GPU: its modes, ECC, PCIe link, clocks, power limit, NVLink fabric
    * each device alone: matrix product, memory, transfers, a training step
    * network: names, clocks, membership, mtu, RDMA cards, dead and slow links
    """
    asked = Asked(**given)
    if asked.interconnect is not None and not asked.networks:
        raise UsageError("--interconnect: no network is named; write for example --interconnect ib0,eth0")
    if len(set(asked.networks)) < len(asked.networks):
        raise UsageError(f"--interconnect {asked.interconnect}: a network is named twice")
    return asked
