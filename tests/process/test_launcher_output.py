"""The output of a launcher, written by its rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
RANK = """
import sys
from scaling.transport.mpi import launcher_output
output = launcher_output()
output.write("the last table\\n")
output.close()
"""

LAUNCHER = """
import os, subprocess, sys
os.write(1, b"before, amid a line")
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True, stdout=subprocess.DEVNULL)
os.write(1, b"after\\n")
"""


@pytest.mark.skipif(
    os.geteuid() != 0 and YAMA.exists() and YAMA.read_text() != "0\n",
    reason=f"a rank may not share mpirun's file: {YAMA} is not 0",
)
def test_what_a_launcher_still_writes_to_its_file_leaves_the_last_table_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("w") as stdout:  # as a shell's `>` opens it: not for appending
        subprocess.run(
            [sys.executable, "-c", LAUNCHER, RANK],
            env={**os.environ, "OMPI_COMM_WORLD_RANK": "0"},
            stdout=stdout, check=True, timeout=60,
        )  # fmt: skip
    assert out.read_text() == "before, amid a line\nthe last table\nafter\n"
