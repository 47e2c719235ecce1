"""SIGHUP, of a terminal that closed: the run ends with what it has, unless nohup had it started."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.closed_terminal import outlived
from tests.support.waiting import eventually

# A worker sleeps in each step: the run does not end by itself before it is asked to.
SLOW = ("--strategy", "fake:a", "--option", "step_s=0.1", "--kinds", "exchange", "--no-page")
MANY = ("--rounds", "1", "--windows", "1000", "--window-s", "0.1")


@pytest.mark.parametrize(("answer", "last", "code"), [("SIG_DFL", "HUP", 129), ("SIG_IGN", "TERM", 143)])
def test_a_closed_terminal_ends_a_run_but_not_with_nohup(
    tmp_path: Path, answer: str, last: str, code: int
) -> None:
    """UCX, which Open MPI loads, takes SIGHUP for itself: the run went on for hours, unseen."""
    sets = f"signal.signal(signal.SIGHUP, signal.{answer})"
    begin = f"import os, signal, sys; {sets}; os.execv(sys.argv[1], sys.argv[1:])"
    command = [
        sys.executable,
        "-c",
        begin,
        sys.executable,
        "-m",
        "scaling.run",
        "--world-sizes",
        "1",
        *SLOW,
        *MANY,
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    logs = partial(eventually, lambda: any(tmp_path.glob("results/*/logs/*")), of=process)
    ended, out, err = outlived(process, logs, last)
    assert (ended, err) == (code, "")
    assert out.splitlines()[-1] == "scaling: nothing measured"
