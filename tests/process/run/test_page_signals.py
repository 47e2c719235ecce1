"""A Ctrl-C while the page of a run is made: the table is out, the page is not waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from scaling.records import store
from tests.support.waiting import eventually

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
        [sys.executable, "-m", "scaling.run", "--strategy", "fake:a", *QUICK, "--page"],
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
