"""Memory and file of a week's burn-in, simulated: seven points on eight ranks, fifteen windows each, every minute.

python -m tests.bench.burn_in [ROUNDS]      (10,000 rounds: some minutes)
"""

from __future__ import annotations

import random
import resource
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from scaling.records import store
from scaling.records.events import Window
from scaling.records.run import PointRecord
from scaling.report.material import Material
from scaling.sweep.sweep import BurnIn
from tests.support.inline_child import Clock
from tests.support.scripted_records import header, point, record

ROUNDS, WINDOWS, STEPS, RANKS = 10_000, 15, 4, 8
ROUND_S = 60.0
POINTS = (
    ("exchange", 1), ("exchange", 2), ("exchange", 4), ("exchange", RANKS),
    ("each", RANKS), ("together", RANKS), ("comm", RANKS),
)  # fmt: skip


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def windows(draw: random.Random) -> tuple[Window, ...]:
    found, at_s = [], 100.0
    for index in range(WINDOWS):
        step_s = tuple(0.025 * draw.lognormvariate(0, 0.05) for _ in range(STEPS))
        end_s = at_s + sum(step_s)
        found.append(
            Window(
                index=index, measured=True, steps=STEPS, samples=32 * STEPS, start_s=at_s, end_s=end_s,
                end_unix_s=1.8e9 + end_s, loss=1.0, step_s=step_s, canary_s=0.001, waited_s=0.0,
            )
        )  # fmt: skip
        at_s = end_s
    return tuple(found)


def templates(draw: random.Random) -> list[PointRecord]:
    """One record of each point; the rounds differ in their numbers only."""
    made = [replace(record(point(kind, size), 0.025), epoch=0) for kind, size in POINTS]
    return [replace(one, ranks=tuple(replace(rank, windows=windows(draw)) for rank in one.ranks)) for one in made]


def write(results: Path, rounds: int) -> Path:
    clock, records = Clock(), tuple[PointRecord, ...]()
    burn_in = BurnIn(rounds * ROUND_S, clock)
    cells = templates(random.Random(1))
    head = header(config={"for": "7d", "rounds": 2})
    with store.Store.create(results, "week", datetime.now(timezone.utc), head) as opened:
        for number in range(rounds):
            clock.now_s += ROUND_S
            for one in cells:
                made = replace(one, point=replace(one.point, round=number))
                for line in (replace(made, ended=False), made) if burn_in.keeps(made) else ():
                    opened.append(line)
                opened.append(burn_in.summary(made))
                records = burn_in.thinned((*records, made))
    return opened.folder


def sizes(run: Path) -> tuple[list[int], list[int]]:
    """Bytes of the summaries, and of the records."""
    told: list[int] = []
    whole: list[int] = []
    with (run / store.FILE).open("rb") as file:
        for line in file:
            (told if b'"type":"summary"' in line else whole).append(len(line))
    return told, whole[1:]


def main(argv: Sequence[str]) -> None:
    rounds = int(argv[0]) if argv else ROUNDS
    with TemporaryDirectory() as folder:
        before_mb = peak_mb()
        run = write(Path(folder), rounds)
        written_mb = peak_mb() - before_mb
        told, whole = sizes(run)
        size_mb = (sum(told) + sum(whole)) / 1e6
        print(f"{rounds:,} rounds of {len(POINTS)} points: run.jsonl has {size_mb:.0f} MB")
        print(f"  summaries {sum(told) / 1e6:.0f} MB, {fmean(told):.0f} bytes each")
        print(f"  a point in full {2 * fmean(whole) / 1e3:.0f} kB")
        print(f"  written with {written_mb:.0f} MB more memory")
        begun_s = time.perf_counter()
        found = store.read(run)
        read_s = time.perf_counter() - begun_s
        doc = Material(found.header, found.records, summaries=found.summaries).doc
        took_s = time.perf_counter() - begun_s
        kept = len({one.point.round for one in found.records})
        print(
            f"  read in {read_s:.1f} s, reported in {took_s:.1f} s, {kept} rounds kept, {len(doc.sections)} tables"
        )
        print(f"  peak memory {peak_mb():.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
