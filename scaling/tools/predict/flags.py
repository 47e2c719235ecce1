"""The flags of `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from scaling.command import command, output_flag, with_fields
from scaling.records.point import Record

NAME = "scaling predict"
Precision = Literal["fp32", "tf32", "amp", "bf16", "fp16"]
EPILOG = "Exit codes: 0 predicted, 2 a mistake in the call, a run that cannot be read or nothing to predict from."
# Flags of the short help, by their names in Python.
USUAL = (
    "run", "world_sizes", "strategy", "interconnect", "up_to", "network", "batch_size", "model",
    "devices_per_node", "format", "output",
)  # fmt: skip
app = typer.Typer(add_completion=False)

_what_if = partial(Option, rich_help_panel="What if")
_cold = partial(Option, rich_help_panel="Without a run")


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line. Its fields are the flags; None and empty: not given."""

    run: Annotated[Path | None, Argument(
        help="A run's folder, or its run.jsonl.", metavar="RUN", show_default=False)] = None  # fmt: skip
    world_sizes: Annotated[str, Option(
        help="World sizes to predict: 32,64, or 32..1024 for doublings.",
        metavar="N,...|A..B", show_default="beyond the run")] = ""  # fmt: skip
    strategy: Annotated[str, Option(
        help="Which exchange, if the run has several; with --cold or an import, any of scaling.run --list.",
        metavar="NAME", show_default="fastest")] = ""  # fmt: skip
    interconnect: Annotated[str, Option(
        help="Which network, if the run has several.", metavar="NAME", show_default="fastest")] = ""  # fmt: skip
    up_to: Annotated[int | None, Option(
        help="Use measured world sizes up to N; predict the larger ones.", metavar="N", min=2)] = None  # fmt: skip
    network: Annotated[str, _what_if(
        help="Between nodes: KIND:GBIT or KIND:GBITxCARDS of one node, such as ib:200 or tcp:25x2.",
        metavar="NET")] = ""  # fmt: skip
    batch_size: Annotated[int | None, _what_if(
        help="Samples per device; one device must have run this batch.", metavar="N", min=1)] = None  # fmt: skip
    model: Annotated[str, _what_if(
        help="Model; one device must have run it, else give --rate.", metavar="NAME")] = ""  # fmt: skip
    devices_per_node: Annotated[int | None, _what_if(
        help="Devices of each further node.",
        metavar="N", min=1, max=256, show_default="the run's")] = None  # fmt: skip
    rate: Annotated[float | None, _cold(
        help="Samples/s of one device (of a RUN of text: tokens/s).", metavar="R")] = None  # fmt: skip
    cold: Annotated[bool, _cold("--cold", help="Use only the flags of one device, a node and --network.")] = False
    bus: Annotated[str, _cold(
        help="Between devices of a node: pcie, nvlink or nvswitch, with the GB/s (busbw) of an all-reduce if "
        "known: nvswitch:450.", metavar="BUS", show_default="unknown")] = ""  # fmt: skip
    precision: Annotated[Precision | None, _cold(
        help="bf16 and fp16 send half the bytes of a gradient; amp keeps float32 gradients.",
        metavar="NAME", show_default="fp32")] = None  # fmt: skip
    sequence_length: Annotated[int | None, _cold(
        help="Tokens per sample; --rate is in tokens/s then.", metavar="L", min=1, max=10**7)] = None  # fmt: skip
    device: Annotated[str, _cold(help="Name of the device, which has a bus.", metavar="NAME")] = ""  # fmt: skip
    parameters: Annotated[float | None, _cold(
        help="Parameters of a model that is not in the catalogue, such as 7e9.",
        metavar="P", min=1, max=1e13)] = None  # fmt: skip
    flops_per_sample: Annotated[float | None, _cold(
        help="Operations of one sample (of a token with --sequence-length), forward and backward: --cold "
        "guesses --rate from these and --device.", metavar="F", min=1, max=1e21)] = None  # fmt: skip
    format: Annotated[Literal["table", "json"], Option(
        help="For people: table; for programs: json.", metavar="NAME")] = "table"  # fmt: skip
    output: Annotated[Path | None, output_flag("--output")] = None  # fmt: skip


@app.command(epilog=EPILOG)
@with_fields(Asked)
def predict(**flags: Any) -> Asked:
    """Predict images/s and efficiency of world sizes, networks, batches and models that were not measured.

    A larger cluster:
        python -m scaling predict RUN --world-sizes 32..1024
    Another network and batch:
        python -m scaling predict RUN --network ib:200 --batch-size 128
    """
    return Asked(**flags)


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked: Asked | None = command(app, argv, NAME, usual=USUAL) or None
    return asked
