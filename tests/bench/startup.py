"""How long `python -m scaling run --help` takes against importing what it stands on, alternating.

python -m tests.bench.startup
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

RUNS = 10
HELP = ("-m", "scaling", "run", "--help")
IMPORTS = ("-c", "import typer, rich, msgspec, mpi4py.MPI")  # the last of which initialises MPI


def seconds(arguments: Sequence[str]) -> float:
    """Wall time of one interpreter, from its start to its end."""
    start_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start_s


def main() -> None:
    pairs = [(seconds(HELP), seconds(IMPORTS)) for _ in range(RUNS + 1)][1:]  # the first fills the file cache
    ours_s, theirs_s = (median(column) for column in zip(*pairs, strict=True))
    print(f"--help {ours_s:.3f} s, imports alone {theirs_s:.3f} s, ratio {ours_s / theirs_s:.2f} (at most 1.2)")


if __name__ == "__main__":
    main()
