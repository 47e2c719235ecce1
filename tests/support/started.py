"""Commands that tests start as processes, and what sweeps leave in the folder `results`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

WITHIN_S = 120
RUN = ("-m", "scaling.run")
ALONE = (*RUN, "--ranks", "1")
SCALING = ("-m", "scaling")
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


def ran(
    *words: str | Path, cwd: Path, program: Sequence[str | Path] = ALONE, python: str | Path = sys.executable,
    **environ: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a program of Python to its end, by default `scaling.run` of one rank."""
    return subprocess.run(
        [python, *program, *words], cwd=cwd, env={**ours(), **environ}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


def shelled(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash to its end, in which $PYTHON is this Python."""
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=cwd, env={**ours(), "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


def run_of(folder: Path) -> Path:
    (run,) = (folder / "results").iterdir()
    return run


def points(folder: Path) -> int:
    return max((len(run.read_bytes().splitlines()) for run in folder.glob("results/*/run.jsonl")), default=0)


def outlived(process: subprocess.Popen[str], runs: Callable[[], object], last: str) -> tuple[int, str, str]:
    """Close the terminal of a command once it runs; if it goes on, send the signal that ends it. Return its code,
    stdout and stderr."""
    try:
        runs()
        process.send_signal(signal.SIGHUP)
        if last != "HUP":
            process.send_signal(signal.Signals[f"SIG{last}"])
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err
