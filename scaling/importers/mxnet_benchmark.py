"""The table that MXNet's benchmark.py writes: images/s by number of GPUs, neither model nor batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.importers.found import NUMBER, Found, Given, Skipped, compiled, merged, number, row, world_size
from scaling.importers.lines import LogLine
from scaling.records.imported import ImportedRow

MARKS = ("num_gpus",)
SURE = re.compile(r"^\s*num_gpus\s*,\s*img_per_sec\s*$")

_TABLE_ROW = compiled(r"^\s*(\d+)\s*,\s*", NUMBER, r"\s*$")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each line of `num_gpus,img_per_sec`; the table tells neither model nor batch."""
    skipped, in_table, rows = Skipped(), False, []
    for line in lines:
        if SURE.search(line.text):
            in_table = True
        elif in_table and (found := _TABLE_ROW.search(line.text)) is not None:
            rows.append(_table_row(int(found[1]), number(found[2]), given))
        elif in_table and line.text.strip():
            skipped.add(line)
    return Found(rows=merged(rows), notes=skipped.notes())


def _table_row(devices: int, rate: float, given: Given) -> ImportedRow:
    return row(given, tool="mxnet_benchmark", unit="images", rate=rate, devices=world_size([devices], given))
