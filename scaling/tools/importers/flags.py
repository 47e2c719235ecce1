"""The flags of `import`; `parse` turns argv into `Asked`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace
from typer import Argument, Option

from scaling.command import command, show
from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.importers import generic, table
from scaling.tools.importers.engine import as_degrees, as_text
from scaling.tools.importers.logs import Form, Given
from scaling.tools.importers.tools import TOOLS, forms

NAME = "scaling import"
READERS = (*TOOLS, generic.NAME, table.NAME)
EPILOG = (
    f"Tools: {', '.join(READERS)}. Rows are marked IMPORTED: they have no interval unless several logs are of one "
    "cell, and are never ranked.\n\nExit codes: 0 written, 2 a log or a flag was refused and nothing is written."
)

_LOGS = Argument(
    help="Printed text of a tool. LOG:N is one of N devices; :batch=B, :model=NAME, :precision=NAME, "
    ":parallelism=tp=T add more.", metavar="LOG...", show_default=False,
)  # fmt: skip
_OUTPUT = Option("--output", "-o", help="The run folder to make.", metavar="RUN", show_default=False)
_TOOL = Option("--tool", help="The tool that wrote the logs.", metavar="NAME", show_default="by their lines")
_WORLD = Option("--world-size", help="Devices, if logs do not say.", metavar="N", show_default=False)
_BATCH = Option("--batch-size", help="Samples per device, if logs do not say.", metavar="N", show_default=False)
_MODEL = Option("--model", help="The model, if logs do not say.", metavar="NAME", show_default=False)
_PRECISION = Option("--precision", help="The precision, if logs do not say.", metavar="NAME", show_default=False)
_PARALLELISM = Option(
    "--parallelism",
    help="How the model is split, if logs do not say: tp=4,pp=2,cp=2,ep=8; tp=1 for not at all.",
    metavar="SPLIT", show_default=False,
)  # fmt: skip
_RATE = Option(
    "--rate",
    help="Read any log: a regular expression with a group, 'tok/s: ([\\d.,]+k?)'. Of a table: the column.",
    metavar="REGEX", show_default=False,
)  # fmt: skip
_UNIT = Option(
    "--unit", help=f"What --rate counts: {', '.join(generic.UNITS)}.", metavar="NAME", show_default=False
)
_PER_DEVICE = Option("--per-device", help="--rate is of one device.")
_STEP = Option("--step", help="A regular expression whose group is the step.", metavar="REGEX", show_default=False)
_SAME = Option("--same-work", help="The logs are of one model, batch rule, precision and parallelism.")
_BASE = Option("--base", help="Efficiency is relative to N devices.", metavar="N", show_default="1, or the fewest")


def _show_forms(asked: bool) -> None:
    if asked:
        show("".join(f"{line}\n" for tool in TOOLS.values() for line in forms(tool)))
        raise typer.Exit


_LIST = Option("--list", help="Show the lines of each tool.", callback=_show_forms, is_eager=True)

app = typer.Typer(add_completion=False)


class Asked(Record, frozen=True, kw_only=True):
    """The parsed command line; each log with its values."""

    logs: tuple[tuple[Path, Given], ...]
    output: Path
    tool: str | None = None
    same_work: bool = False
    base: int = 0


def parse(argv: Sequence[str]) -> Asked | None:
    """Parse the command line; None after printing help. Raises UsageError."""
    asked = command(app, argv, NAME)
    return asked if isinstance(asked, Asked) else None


@app.command(epilog=EPILOG)
def importers(
    logs: Annotated[list[str], _LOGS],
    output: Annotated[Path, _OUTPUT],
    tool: Annotated[str | None, _TOOL] = None,
    world_size: Annotated[int | None, _WORLD] = None,
    batch_size: Annotated[int | None, _BATCH] = None,
    model: Annotated[str, _MODEL] = "",
    precision: Annotated[str, _PRECISION] = "",
    parallelism: Annotated[str, _PARALLELISM] = "",
    rate: Annotated[str, _RATE] = "",
    unit: Annotated[str, _UNIT] = "",
    per_device: Annotated[bool, _PER_DEVICE] = False,
    step: Annotated[str, _STEP] = "",
    same_work: Annotated[bool, _SAME] = False,
    base: Annotated[int | None, _BASE] = None,
    list_: Annotated[bool, _LIST] = False,  # noqa: ARG001  # its callback has ended the command
) -> Asked:
    """Read logs of other benchmarks into a run that scaling report shows, its rows marked IMPORTED.

    The tool is known by the lines of its log:
        python -m scaling import LOG -o RUN
    The tool is named:
        python -m scaling import --tool horovod LOG -o RUN
    The log lacks its number of devices:
        python -m scaling import LOG:4 -o RUN
    It also lacks its batch per device and precision:
        python -m scaling import LOG:4:batch=32:precision=fp32 -o RUN
    Three logs of one work to one table, relative to 8 devices:
        python -m scaling import A.log:8 B.log:64 C.log:512 --same-work --base 8 -o RUN
    A log of any program:
        python -m scaling import LOG:8 --rate 'tok/s: ([\\d.]+)' --unit tokens -o RUN
    """
    if tool is not None and tool not in READERS:
        raise UsageError(f"--tool {tool}: {near(tool, READERS)}")
    if str(output).startswith("-"):
        raise UsageError(f"--output {output}: a folder's name does not begin with a dash")
    for flag, value in (("--world-size", world_size), ("--batch-size", batch_size), ("--base", base)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be 1 or more")
    if parallelism and not as_degrees(parallelism):
        raise UsageError(f"--parallelism {parallelism}: write tp=4,pp=2, or tp=1 for a model that is not split")
    given = Given(
        world_size=world_size or 0, batch_size=batch_size or 0, model=model.strip(), precision=precision.strip(),
        parallelism=as_text(as_degrees(parallelism)), form=_form(rate, unit, per_device, step),
    )  # fmt: skip
    each = tuple(of_one(log, given) for log in logs)
    return Asked(logs=each, output=output, tool=tool, same_work=same_work, base=base or 0)


def _form(rate: str, unit: str, per_device: bool, step: str) -> Form:
    """Raises UsageError for a form that cannot be used."""
    if unit and unit not in generic.UNITS:
        raise UsageError(f"--unit {unit}: {near(unit, generic.UNITS)}")
    for flag, text in (("--rate", rate), ("--step", step)):
        try:
            re.compile(text)
        except re.error as why:
            raise UsageError(f"{flag} '{text}': {why}") from None
    return Form(rate=rate, unit=unit, per_device=per_device, step=step)


# ---------------------------------------------------------------- LOG:N:batch=B

_FIELDS = {"batch": "batch_size", "model": "model", "precision": "precision", "parallelism": "parallelism"}


def of_one(text: str, given: Given) -> tuple[Path, Given]:
    """Split `LOG:N:batch=B:model=NAME:precision=NAME:parallelism=tp=T` into the log and what is given for it.

    All but LOG may be left out; the others override `given`. A file of the whole name is a log. Raises UsageError.
    """
    parts = text.split(":")
    heads = {end: ":".join(parts[:end]) for end in range(len(parts), 0, -1)}
    of_missing = max([1, *(end for end, part in enumerate(parts, 1) if not _fact(part)[1])])
    end = next((end for end, head in heads.items() if os.path.lexists(head)), of_missing)
    said: dict[str, int | str] = {}
    for part in parts[end:]:
        name, value = _fact(part)
        if not value or name in said:
            why = "is given twice" if value else "is not understood"
            form = f"{heads[end]}:N:batch=B:model=NAME:precision=NAME:parallelism=tp=T"
            raise UsageError(f"LOG {text}: '{part}' {why}; write {form}")
        said[name] = value
    return Path(heads[end]), replace(given, **said)


def _fact(part: str) -> tuple[str, int | str]:
    """Return a field of `Given` and its value, which is 0 or "" if the part is none."""
    name, _, value = part.partition("=") if "=" in part else ("N", "", part)
    if name in ("N", "batch"):
        return _FIELDS.get(name, "world_size"), int(value) if value.isascii() and value.isdigit() else 0
    if name == "parallelism":
        return name, as_text(as_degrees(value))
    return _FIELDS.get(name, name), value.strip() if name in _FIELDS else ""
