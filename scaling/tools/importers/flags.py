"""The flags of `import`; `parse` turns argv into `Asked`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from scaling.command import command
from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.importers.logs import Given
from scaling.tools.importers.tools import TOOLS

NAME = "scaling import"
EPILOG = (
    f"Tools: {', '.join(TOOLS)}. Rows are marked IMPORTED: they have no interval unless several logs are of one "
    "cell, and are never ranked.\n\nExit codes: 0 written, 2 a log or a flag was refused and nothing is written."
)

_LOGS = Argument(help="Logs: the printed text of a tool.", metavar="LOG...", show_default=False)
_OUTPUT = Option("--output", "-o", help="The run folder to make.", metavar="RUN", show_default=False)
_TOOL = Option("--tool", help="The tool that wrote the logs.", metavar="NAME", show_default="by their lines")
_WORLD = Option("--world-size", help="Devices, if logs do not say.", metavar="N", show_default=False)
_BATCH = Option("--batch-size", help="Samples per device, if logs do not say.", metavar="N", show_default=False)
_MODEL = Option("--model", help="The model, if logs do not say.", metavar="NAME", show_default=False)
_PRECISION = Option("--precision", help="The precision, if logs do not say.", metavar="NAME", show_default=False)
_SPEED_OF = Option(
    "--speed-of",
    help="worker or all: whose speed a line of mxnet, aws_fsdp or tf_official is, if the log does not prove it.",
    metavar="WHOSE",
)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    logs: tuple[Path, ...]
    output: Path
    tool: str | None = None
    given: Given = Given()


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command(epilog=EPILOG)
def importers(
    logs: Annotated[list[Path], _LOGS],
    output: Annotated[Path, _OUTPUT],
    tool: Annotated[str | None, _TOOL] = None,
    world_size: Annotated[int | None, _WORLD] = None,
    batch_size: Annotated[int | None, _BATCH] = None,
    model: Annotated[str, _MODEL] = "",
    precision: Annotated[str, _PRECISION] = "",
    speed_of: Annotated[Literal["worker", "all"] | None, _SPEED_OF] = None,
) -> Asked:
    """Read logs of other benchmarks into a run that scaling report shows, its rows marked IMPORTED.

    The tool is known by the lines of its log:
        python -m scaling import LOG -o RUN
    The tool is named:
        python -m scaling import --tool horovod LOG -o RUN
    The log lacks its number of devices:
        python -m scaling import LOG -o RUN --world-size 4
    """
    if tool is not None and tool not in TOOLS:
        raise UsageError(f"--tool {tool}: {near(tool, TOOLS)}")
    for flag, value in (("--world-size", world_size), ("--batch-size", batch_size)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be 1 or more")
    return Asked(
        logs=tuple(logs),
        output=output,
        tool=tool,
        given=Given(
            world_size=world_size or 0,
            batch_size=batch_size or 0,
            model=model.strip(),
            precision=precision.strip(),
            speed_of=speed_of or "",
        ),
    )
