"""What logs of other tools say: a row per log and cell, and what a benchmark of a network measured.

None of it was measured here. A run that holds such rows has them in its header; it has no points.
"""

from __future__ import annotations

from typing import Literal

from scaling.records.bounds import Amount, Count, Index, Seconds, Size
from scaling.records.point import Record

# What a rate counts. Steps are counted where a log tells neither samples nor their batch.
ImportedUnit = Literal["images", "samples", "sequences", "tokens", "steps"]


class ImportedRow(Record, frozen=True, kw_only=True):
    """What one log says of one cell.

    `rate` is in `unit` per second over all `world_size` devices, None where the training failed, for the reason
    `failed`. `batch_size` is of one device, 0 where the log does not say; neither `model` nor `precision` is ever
    guessed. `audit` says what in the log contradicts its rate. `run` names the import where several are read
    together.
    """

    tool: str
    log: str
    unit: ImportedUnit
    world_size: Size
    rate: Amount | None
    model: str = ""
    batch_size: Index = 0
    precision: str = ""
    synchronous: bool = True
    failed: str = ""
    audit: str = ""
    notes: tuple[str, ...] = ()
    run: str = ""


class ImportedBandwidth(Record, frozen=True, kw_only=True):
    """A line of a benchmark of collectives: `algbw` and `busbw` in units of 1e9 bytes a second.

    `wrong` counts elements with a wrong value, None where nothing was checked. `audit` says that values of the log
    were wrong where no line of it tells which.
    """

    tool: str
    log: str
    collective: str
    world_size: Size
    size_bytes: Count
    dtype: str
    redop: str
    in_place: bool
    time_s: Seconds
    algbw_gbytes_per_s: Amount
    busbw_gbytes_per_s: Amount
    wrong: Count | None = None
    audit: str = ""
    notes: tuple[str, ...] = ()
    run: str = ""
