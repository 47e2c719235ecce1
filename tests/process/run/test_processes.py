"""A run beside its processes: a terminal that closes, a page that hangs, a prediction."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from scaling.records import store
from tests.support.closed_terminal import outlived
from tests.support.waiting import eventually

# SIGHUP, of a terminal that closed: the run ends with what it has, unless nohup had it started.

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
        "--ranks",
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


# A Ctrl-C while the page of a run is made: the table is out, the page is not waited for.

# What every Python of the run imports first: the page's hangs, as on a file system that does not answer.
HANGS = """
import os, pathlib, sys, time
if "report" in sys.orig_argv:
    told = pathlib.Path(os.environ["TOLD"])
    told.with_suffix(".part").write_text(str(os.getpid()))
    told.with_suffix(".part").rename(told)
    time.sleep(3600)
"""
QUICK = ("--world-sizes", "1", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "exchange")


def test_a_signal_ends_the_making_of_a_page(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    told = tmp_path / "told"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    process = subprocess.Popen(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", "--strategy", "fake:a", *QUICK, "--page"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "TOLD": str(told)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        eventually(told.exists, of=process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].startswith("scaling: fake:a N=1")
    assert not psutil.pid_exists(int(told.read_text()))
    (run,) = (tmp_path / "results").iterdir()
    assert len(store.load(run)[1]) == 1
