"""What fed a cell: its pipeline, where its files came from, how long its ranks were blocked. Pure.

Seconds blocked in a feed are a diagnosis and no part of a loss: a device may compute meanwhile, and decoding takes
cores from computing without blocking anybody (data_wait.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scaling.records.events import Finished, Ready
from scaling.records.run import PointRecord

# Of its bytes: what is no longer cold.
STILL_CACHED = 0.01


class Fed(NamedTuple):
    """What is known of a cell's feeds; `notes` are what a reader of its row must know."""

    waited_s: float | None
    fed_by: str
    read_from: str
    notes: tuple[str, ...]


def fed(records: Sequence[PointRecord]) -> Fed:
    """Return what these records of one cell tell."""
    return Fed(waited_s(records), fed_by(records), read_from(records), tuple(notes(records)))


def waited_s(records: Iterable[PointRecord]) -> float | None:
    """Seconds of a step in which a rank was blocked in its feed, mean over ranks, windows and rounds; None where
    batches stay on the device, or nobody has told."""
    finished = (record for record in records if isinstance(record.outcome, Finished))
    windows = [window for record in finished for rank in record.ranks for window in rank.windows]
    told = [(window.waited_s, window.steps) for window in windows if window.waited_s is not None]
    steps = sum(count for _, count in told)
    return sum(seconds for seconds, _ in told) / steps if steps else None


def fed_by(records: Iterable[PointRecord]) -> str:
    """What its native feeds are, "" for the reference feed: `DataLoader, 2 processes a rank; Pillow ...`."""
    return " or ".join(dict.fromkeys(ready.fed_by for ready in _ready(records) if ready.fed_by))


def read_from(records: Iterable[PointRecord]) -> str:
    """`page cache` or `disk`; "" for data in memory."""
    return " or ".join(dict.fromkeys(ready.read_from for ready in _ready(records) if ready.read_from))


def notes(records: Sequence[PointRecord]) -> Iterator[str]:
    """What a reader of its row must know."""
    if own := fed_by(records):
        yield f"native feed: {own}"
    found = read_from(records)
    if found == "page cache":
        yield "files come from the page cache, as far as they fit; --drop-caches reads them from disk"
    elif found:
        yield f"files were dropped from the page cache before each point{_kept(records)}"


def _kept(records: Iterable[PointRecord]) -> str:
    """`, of which 12 % stayed there`, at most."""
    known = [ready.cached_fraction for ready in _ready(records) if ready.read_from == "disk"]
    if not known or None in known:
        return ", as far as the kernel obeys, which it does not tell this user"
    most = max(part for part in known if part is not None)
    return f"; up to {100 * most:.0f} % stayed there" if most > STILL_CACHED else ""


def _ready(records: Iterable[PointRecord]) -> Iterator[Ready]:
    return (rank.ready for record in records for rank in record.ranks if rank.ready)
