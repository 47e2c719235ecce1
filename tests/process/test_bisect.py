"""`python -m scaling bisect` as a process of one rank: what it refuses, in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--strategy", "fake:a"), "this launch has 1 node, a search needs 3"),
        (("--strategy", "fake:a", "--noise", "0"), "--noise 0: not between 0 and 50 percent"),
        (("--strategy", "torch:glo"), "torch:gloo"),
        (("--world-sizes", "4"), "No such option: --world-sizes"),
    ],
)
def test_one_line_exit_2_and_nothing_made(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaling", "bisect", *argv],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling bisect: error: ")
    assert words in line
    assert list(tmp_path.iterdir()) == []
