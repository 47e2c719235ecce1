"""AWS' examples of FSDP and of its SageMaker libraries (awslabs/awsome-distributed-training): `Speed` of rank 0.

Their code counts input.shape[0] x the data-parallel size a step, so that it is the speed of all; of a variant that
counts its own samples, `--speed-of worker` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import LogLine

MARKS = ("samples/sec",)
SURE = re.compile(r"Batch:? \d+,? Loss: \S+, Speed: \S+ samples/sec")
_LINE = compiled(r"Batch:? (\d+),? Loss: (\S+), Speed: *", NUMBER, " samples/sec")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, speeds, diverged = Skipped(), Rates(), False
    for line in lines:
        if "samples/sec" not in line.text or "Running Avg" in line.text:
            continue
        if (found := _LINE.search(line.text)) is None:
            skipped.add(line)
            continue
        speeds.add(number(found[3]), int(found[1]))
        diverged |= found[2].lower() in ("nan", "inf")
    if not speeds:
        raise Refused("has no whole line with a speed")
    devices, speed = world_size([], given), speeds.steady("line")
    own = given.speed_of == "worker"
    one = row(
        given,
        tool="aws_fsdp",
        unit="samples",
        rate=None if diverged else speed * (devices if own else 1),
        devices=devices,
        failed="the loss is no number" if diverged else "",
        notes=(
            f"one worker's own speed x {devices}" if own else "the speed of all, as rank 0 counts it",
            "the first line is left out",
        ),
    )
    return Found(rows=(one,), notes=skipped.notes())
