"""torchtitan (github.com/pytorch/torchtitan): tokens a second of one device, step by step.

`tps` are local tokens / seconds / devices that share them: times the number of devices it is that of all. Every
rank may print the same step: neither ranks nor steps are added.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.gathered import Rates
from scaling.tools.importers.lines import LogLine

MARKS = ("tps:",)
SURE = re.compile(r"step: *\d+ .*loss: *\S+ .*tps: *[\d,]+")
_STEP = compiled(r"step: *(\d+) .*?loss: *(\S+) .*?tps: *", NUMBER)
_MESH = re.compile(r"[Bb]uilding \d+-D device mesh with [\[(][^\])]*[\])], \[([\d, ]*)\](?:\s|$)")
_PARALLEL = re.compile(r"[Bb]uilding device mesh with parallelism: (.*)")
_DEGREES = re.compile(r"\b(pp|dp_replicate|dp_shard|cp|tp)=(-?\d+)")
_BATCH = re.compile(r"local batch size:? (\d+)")
_MODEL = re.compile(r"Model (\S+ \S+) size: ")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row of the whole log. Raises Refused."""
    skipped, steps, diverged = Skipped(), Rates(), False
    sizes, batches, models = set[int](), set[int](), set[str]()
    for line in lines:
        text = line.text
        if "tps:" in text:
            if "validate step" in text:
                continue
            if (step := _STEP.search(text)) is None:
                skipped.add(line)
            else:
                steps.add(number(step[3]), int(step[1]))
                diverged |= step[2].lower().strip(",") in ("nan", "inf")
        elif "device mesh" in text:
            sizes |= _size(text)
        elif (batch := _BATCH.search(text)) is not None:
            batches.add(int(batch[1]))
        elif (model := _MODEL.search(text)) is not None:
            models.add(model[1])
    if not steps:
        raise Refused("has no whole line with a step and its tps")
    devices = world_size(sizes, given)
    return Found(
        rows=(
            row(
                given,
                tool="torchtitan",
                unit="tokens",
                rate=None if diverged else devices * steps.steady("step"),
                devices=devices,
                models=models,
                batches=batches,
                failed="the loss is no number" if diverged else "",
                notes=("tps of one device x devices; the first step that was logged is left out",),
            ),
        ),
        notes=skipped.notes(),
    )


def _size(text: str) -> set[int]:
    """Devices of a mesh, as older and newer versions say it; none where a degree is -1, what is left of them."""
    if (mesh := _MESH.search(text)) is not None:
        return {prod(int(one) for one in mesh[1].split(",") if one.strip())}
    if (parallel := _PARALLEL.search(text)) is not None and (degrees := _DEGREES.findall(parallel[1])):
        sizes = [int(size) for _, size in degrees]
        return {prod(sizes)} if min(sizes) > 0 else set()
    return set()
