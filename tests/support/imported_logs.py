"""Logs of other tools, written by their grammars, what they say, and what damage does to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from scaling.errors import UsageError
from scaling.importers.found import Found, Given
from scaling.importers.tools import read_all
from scaling.records.imported import ImportedRow

SAMPLES = Path(__file__).parents[1] / "unit" / "importers" / "samples"

NOTHING = Given()


class Said(NamedTuple):
    """What a sample says, by hand: devices, batch per device, units per second over all devices."""

    tool: str
    world_size: int
    batch_size: int
    rate: float
    unit: str = "images"
    given: Given = Given()


SAID = {
    "horovod_n1.log": Said("horovod", 1, 32, 112.2),
    "horovod_n4.log": Said("horovod", 4, 32, 432.8),
    "horovod_keras.log": Said("horovod", 2, 64, 2976.0),
}


def written(folder: Path, text: str, name: str = "a.log") -> Path:
    """A log of these lines."""
    path = folder / name
    path.write_text(text)
    return path


def imported(log: Path, given: Given = NOTHING, tool: str | None = None) -> Found:
    """What one log says."""
    return read_all([log], tool, given)[0]


def only_row(log: Path, given: Given = NOTHING) -> ImportedRow:
    """Of a log of one cell."""
    (row,) = imported(log, given).rows
    return row


def refusal(log: Path, given: Given = NOTHING, tool: str | None = None) -> str:
    """Why a log is refused, without its name."""
    try:
        found = imported(log, given, tool)
    except UsageError as error:
        return str(error).removeprefix(f"LOG {log}: ")
    raise AssertionError(f"it was read: {found}")


def damaged(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """`data` cut at a random byte, and with a random byte changed, in turn."""
    random = Random(seed)
    for number in range(count):
        place = random.randrange(len(data))
        if number % 2:
            yield data[:place]
        else:
            yield data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]


def invented(data: bytes, said: Said, folder: Path) -> list[ImportedRow]:
    """Rows of a damaged log that it did not hold before; a refusal is none."""
    path = folder / "damaged.log"
    path.write_bytes(data)
    try:
        rows = imported(path, said.given).rows
    except UsageError:
        return []
    return [row for row in rows if row.rate is not None and not is_near(row.rate, said.rate)]


def is_near(rate: float, other: float) -> bool:
    """Within what leaving out one line of a few may change."""
    return abs(rate - other) <= 0.2 * other
