"""The table that MXNet's benchmark.py writes: images/s by number of GPUs, neither model nor batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

from scaling.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.importers.gathered import Rows
from scaling.importers.lines import CUT, LogLine
from scaling.records.imported import ImportedRow
from scaling.text import one_line

MARKS = ("num_gpus",)
SURE = re.compile(r"^\s*num_gpus\s*,\s*img_per_sec\s*$")

_TABLE_ROW = compiled(r"^ *(\d+) *, *", NUMBER, " *$")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each line of `num_gpus,img_per_sec`; the table tells neither model nor batch."""
    skipped, in_table, rows = Skipped(), False, Rows()
    for line in lines:
        if SURE.search(line.text):
            in_table = True
        elif in_table and (found := _TABLE_ROW.search(line.text)) is not None:
            rows.add(_table_row(int(found[1]), number(found[2]), given))
        elif in_table and CUT in line.text:
            skipped.add(line)
        elif in_table and line.text.strip():
            raise Refused(f"line {line.number} is none of its table: {one_line(line.text)[:60]}")
    return Found(rows=tuple(rows), notes=skipped.notes())


def _table_row(devices: int, rate: float, given: Given) -> ImportedRow:
    return row(given, tool="mxnet_benchmark", unit="images", rate=rate, devices=world_size([devices], given))
