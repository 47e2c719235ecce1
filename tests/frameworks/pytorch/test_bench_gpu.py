"""The benchmark of GPUs, on a CPU: it ends, and prints a ratio for each comparison."""

from __future__ import annotations

import os
import re
import subprocess
import sys


def test_it_compares_loops_and_windows() -> None:
    small = {"PAIRS": "2", "BLOCK_S": "0.02", "LONG_S": "0.05", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.bench.gpu", "--device", "cpu", "--model", "digits-cnn"]
    done = subprocess.run(
        [*command, "--batch-size", "4", "--precision", "fp32"],
        env={**os.environ, **small}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # torch 2.9's Gloo says on stdout who is connected
    _, *lines = (line for line in done.stdout.splitlines() if not line.startswith("[Gloo]"))
    assert [line.split("  ")[0] for line in lines] == ["plain loop", "windows", "DDP, one rank"]
    assert all(re.search(r"[0-9.]+ ± [0-9.]+$", line) for line in lines)
