"""Importer for SuperBench (github.com/microsoft/superbenchmark): summaries of its results.

`results-summary` with a line per node, or that of one node. A throughput counts one device.
`:3` is the copy of rank 3: copies train alone, at the same time. A distributed training has no such end, and its
number of devices is not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, pairwise

from scaling.records.run import ImportedRow
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import (
    NUMBER,
    Found,
    Given,
    Refused,
    Rows,
    Skipped,
    Tool,
    compiled,
    number,
    row,
    world_size,
)

_SURE = re.compile(r'"[^"]+/pytorch-[^"/]+/[^"]*_train_(?:throughput|step_time)|/throughput_train_\w+')
_TRAINED = compiled(
    r'"[^"]+/pytorch-(?P<model>[^"/]+)(?:/\d+)?/(?:(?P<precision>\w+?)_train_throughput|throughput_train_(?P<old>\w+))'
    r'(?P<copy>:\d+)?": *(?P<rate>',
    NUMBER,
    r")(?=\s*[,}])",
)
_END = LogLine(0, None, "")


def _read_superbench(lines: Iterable[LogLine], given: Given) -> Found:
    skipped, rows = Skipped(), Rows()
    for line, after in pairwise(chain(lines, [_END])):
        text = line.text + after.text.strip()[:1]  # a last value of an object ends with its line
        found = list(_TRAINED.finditer(text)) if "throughput" in text else []
        for one in found:
            if number(one["rate"]) > 0:
                rows.add(_trained(one, given))
        if line.text.count("train_throughput") > len(found):
            skipped.add(line)
    if not (made := tuple(rows)):
        raise Refused("has no train_throughput: nothing was trained, or it failed")
    return Found(rows=made, notes=skipped.notes())


def _trained(one: re.Match[str], given: Given) -> ImportedRow:
    devices = world_size([1] if one["copy"] else [], given, " (SuperBench does not write it)")
    return row(
        given,
        tool="superbench",
        unit="samples",
        rate=number(one["rate"]) * devices,
        devices=devices,
        models=[one["model"]],
        precisions=[one["precision"] or one["old"]],
        notes=(
            "copies on one device each, beside others on the node"
            if one["copy"]
            else "the mean of one device x devices",
        ),
    )


TOOL = Tool("superbench", ("throughput",), _SURE, _read_superbench)
