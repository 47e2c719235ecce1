"""Short sweeps that tests start as processes, and what these leave in the folder `results`."""

from __future__ import annotations

import os
from pathlib import Path

QUICK = (
    "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02", "--soak-s", "0", "--no-page",
)  # fmt: skip
SLOW = (
    "--strategy", "fake:a", "--kinds", "exchange", "--world-sizes", "2", "--rounds", "99", "--windows", "3",
    "--window-s", "0.05", "--no-page",
)  # fmt: skip


def ours() -> dict[str, str]:
    """The variables of this process, without a launcher's."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PMI", "SLURM_"))}


def run_of(folder: Path) -> Path:
    (run,) = (folder / "results").iterdir()
    return run


def points(folder: Path) -> int:
    return max((len(run.read_bytes().splitlines()) for run in folder.glob("results/*/run.jsonl")), default=0)
