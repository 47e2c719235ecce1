"""What a point costs beyond its workers' start-up and its measured windows, at 16 ranks: below 0.4 s.

Everything else is in it: reserving ports, dispatch, warm-up, decisions, digests, the workers' end, the
record's fsync and the view.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from launch import _mpi
from scaling.records import store
from scaling.records.events import Finished
from scaling.records.run import PointRecord

RANKS = 16
BAR_S = 0.4
FLAGS = (
    "--strategy", "fake:a", "--option", "step_s=0.002", "--kinds", "exchange", "--world-sizes", str(RANKS),
    "--rounds", "15", "--windows", "10", "--window-s", "0.01",
)  # fmt: skip


def main() -> None:
    """Print the distribution over the points of one run."""
    with TemporaryDirectory() as folder:
        records = measured(Path(folder))
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


def measured(results: Path) -> tuple[PointRecord, ...]:
    """Run it to its end and return its records; RuntimeError with its output if it fails."""
    mpirun = _mpi.find_mpirun()
    ranks = (str(mpirun), "-np", str(RANKS), sys.executable, "-m", "scaling.run")
    environ = {**os.environ, **_mpi.mpi_environ(mpirun, RANKS)}
    done = subprocess.run(
        [*ranks, "--results", str(results), *FLAGS], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    (folder,) = results.iterdir()
    records = store.load(folder)[1]
    assert all(isinstance(record.outcome, Finished) for record in records)
    return records


if __name__ == "__main__":
    main()
