"""`python -m scaling report` as a process: the bytes that it prints, and a reader that leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.report.formats import terminal
from tests.support.report_scenes import cluster_run, default_run
from tests.support.scripted_records import written


@pytest.mark.parametrize("end", ["", "run.jsonl"])
def test_the_command_prints_the_bytes_of_render(tmp_path: Path, end: str) -> None:
    made, records = default_run()
    run = written(tmp_path / "run", (made, records))
    done = subprocess.run(
        [sys.executable, "-m", "scaling", "report", str(run / end)], capture_output=True, check=True, timeout=60
    )
    assert done.stdout == terminal.render(made, records, color=False).encode()
    assert done.stderr == b""


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    run = written(tmp_path / "run", cluster_run())
    child = subprocess.Popen(
        [sys.executable, "-m", "scaling", "report", str(run), "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=60) == 0


@pytest.mark.parametrize("words", [["scaling", "report"], ["scaling.run"], ["scaling"]])
def test_a_reader_of_the_help_that_leaves_early_is_no_error(words: list[str]) -> None:
    listener, writer = os.pipe()
    os.close(listener)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *words, "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
