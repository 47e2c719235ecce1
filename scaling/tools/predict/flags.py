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
_SIZES = Option(
    help="World sizes to predict: 32,64, or 32..1024 for doublings.",
    metavar="N,...|A..B", show_default="beyond the run",
)  # fmt: skip
_STRATEGY = Option(
    help="Which exchange, if the run has several; with --cold or an import, any of scaling.run --list.",
    metavar="NAME", show_default="fastest",
)  # fmt: skip
_INTERCONNECT = Option(help="Which network, if the run has several.", metavar="NAME", show_default="fastest")
_UP_TO = Option(help="Use measured world sizes up to N; predict the larger ones.", metavar="N", min=2)
_NETWORK = _what_if(
    help="Between nodes: KIND:GBIT or KIND:GBITxCARDS of one node, such as ib:200 or tcp:25x2.", metavar="NET"
)
_BATCH = _what_if(help="Samples per device; one device must have run this batch.", metavar="N", min=1)
_MODEL = _what_if(help="Model; one device must have run it, else give --rate.", metavar="NAME")
_COMPRESS = _what_if(
    help="Divide the gradients' bytes by this; the cost of compressing is not counted.", metavar="K", min=1
)
_EACH = _what_if(help="Devices of each further node.", metavar="N", min=1, show_default="the run's")
_RATE = _cold(help="Samples/s of one device (of a RUN of text: tokens/s).", metavar="R")
_COLD = _cold("--cold", help="Use only the flags of one device, a node and --network.")
_BUS = _cold(
    help="Between devices of a node: pcie, nvlink or nvswitch, with the GB/s (busbw) of an all-reduce if known: "
    "nvswitch:450.",
    metavar="BUS", show_default="unknown",
)  # fmt: skip
_PRECISION = _cold(
    help="bf16 and fp16 send half the bytes of a gradient; amp keeps float32 gradients.",
    metavar="NAME", show_default="fp32",
)  # fmt: skip
_LENGTH = _cold(help="Tokens per sample; --rate is in tokens/s then.", metavar="L", min=1)
_DEVICE = _cold(help="Name of the device, which has a bus.", metavar="NAME")
_PARAMETERS = _cold(help="Parameters of a model that is not in the catalogue, such as 7e9.", metavar="P")
_FLOPS = _cold(
    help="Operations of one sample (of a token with --sequence-length), forward and backward: --cold guesses "
    "--rate from these and --device.",
    metavar="F",
)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line. Its fields are the flags; None and empty: not given."""

    run: Annotated[
        Path | None, Argument(help="A run's folder, or its run.jsonl.", metavar="RUN", show_default=False)
    ] = None
    world_sizes: Annotated[str, _SIZES] = ""
    strategy: Annotated[str, _STRATEGY] = ""
    interconnect: Annotated[str, _INTERCONNECT] = ""
    up_to: Annotated[int | None, _UP_TO] = None
    network: Annotated[str, _NETWORK] = ""
    batch_size: Annotated[int | None, _BATCH] = None
    model: Annotated[str, _MODEL] = ""
    compress: Annotated[float, _COMPRESS] = 1.0
    devices_per_node: Annotated[int | None, _EACH] = None
    rate: Annotated[float | None, _RATE] = None
    cold: Annotated[bool, _COLD] = False
    bus: Annotated[str, _BUS] = ""
    precision: Annotated[Precision | None, _PRECISION] = None
    sequence_length: Annotated[int | None, _LENGTH] = None
    device: Annotated[str, _DEVICE] = ""
    parameters: Annotated[float | None, _PARAMETERS] = None
    flops_per_sample: Annotated[float | None, _FLOPS] = None
    format: Annotated[
        Literal["table", "json"], Option(help="For people: table; for programs: json.", metavar="NAME")
    ] = "table"
    output: Annotated[Path | None, output_flag("--output")] = None


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
