"""What a point costs beyond its workers' start-up and its measured windows, at 16 ranks: below 0.4 s.

Everything else is in it: reserving ports, dispatch, warm-up, decisions, digests, the workers' end, the
record's fsync and the view.
"""

from __future__ import annotations

import statistics
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.launching import measured

RANKS = 16
BAR_S = 0.4
FLAGS = (
    "--strategy", "fake:a", "--option", "step_s=0.002", "--kinds", "exchange", "--world-sizes", str(RANKS),
    "--rounds", "15", "--windows", "10", "--window-s", "0.01",
)  # fmt: skip


def main() -> None:
    """Print the distribution over the points of one run."""
    with TemporaryDirectory() as folder:
        records = measured(RANKS, FLAGS, Path(folder))
    starts = [record.started_unix_s for record in records]
    whole = [after - before for before, after in pairwise(starts)]
    over = [
        seconds - record.startup_s - record.measured_s for seconds, record in zip(whole, records, strict=False)
    ]
    median_s = statistics.median(over)
    out = sys.stdout.write
    out(f"turnaround: {len(over)} points of {RANKS} ranks, from start to next start, fake strategy\n")
    out(f"  wall time of a point, median           {statistics.median(whole):.3f} s\n")
    out(f"  less start-up and measured windows     {median_s:.3f} s (most {max(over):.3f})\n")
    out(f"  median / {BAR_S} s                         {median_s / BAR_S:.2f}  (must be below 1)\n")


if __name__ == "__main__":
    main()
