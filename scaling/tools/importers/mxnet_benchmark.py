"""The table that MXNet's benchmark.py writes: images/s by number of GPUs, neither model nor batch."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

from scaling.records.imported import ImportedRow
from scaling.text import one_line
from scaling.tools.importers.found import NUMBER, Found, Given, Refused, Skipped, compiled, number, row, world_size
from scaling.tools.importers.lines import CUT, LogLine

MARKS = ("num_gpus",)
SURE = re.compile(r"^\s*num_gpus\s*,\s*img_per_sec\s*$")

_TABLE_ROW = compiled(r"^ *(\d+) *, *", NUMBER, " *$")


def read(lines: Iterable[LogLine], given: Given) -> Found:
    """A row for each number of GPUs, the middle of those that say it; the table tells neither model nor batch."""
    skipped, in_table = Skipped(), False
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        if in_table and (found := _TABLE_ROW.search(line.text)) is not None:
            said[found[1]][found[2]] += 1
        elif SURE.search(line.text):
            in_table = True
        elif in_table and CUT in line.text:
            skipped.add(line)
        elif in_table and line.text.strip():
            raise Refused(f"line {line.number} is none of its table: {one_line(line.text)[:60]}")
    rows = tuple(_table_row(int(devices), _middle(rates), given) for devices, rates in said.items())
    return Found(rows=rows, notes=skipped.notes())


def _middle(rates: Counter[str]) -> float:
    """The lower one of two."""
    left = (rates.total() + 1) // 2
    for text in sorted(rates, key=number):
        left -= rates[text]
        if left <= 0:
            break
    return number(text)


def _table_row(devices: int, rate: float, given: Given) -> ImportedRow:
    return row(given, tool="mxnet_benchmark", unit="images", rate=rate, devices=world_size([devices], given))
