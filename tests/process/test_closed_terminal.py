"""SIGHUP, of a terminal that closed, ends the preflight and a search as Ctrl-C does, and their help says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from scaling.tools.bisect import flags as bisecting
from scaling.tools.check import flags as checking
from tests.support.closed_terminal import outlived

# Each says a line once it is led, and would go on for ever.
COMMANDS = {
    "scaling check": """
import sys, time
from scaling.tools.check import __main__ as check, gather
gather.watch = lambda _: time.sleep(3600)
sys.exit(check.main([]))
""",
    "scaling bisect": """
import sys
from scaling.tools.bisect import __main__ as bisect, leading
def search(lead, asked):
    print("led", flush=True)
    while True:
        lead.mailbox.look()
leading.bisect = search
sys.exit(bisect.main(["--strategy", "fake:a", "--device", "cpu"]))
""",
}


@pytest.mark.parametrize(("answer", "last", "code"), [("SIG_DFL", "HUP", 129), ("SIG_IGN", "TERM", 143)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_terminal_ends_a_command_but_not_with_nohup(
    tmp_path: Path, command: str, answer: str, last: str, code: int
) -> None:
    """UCX, which Open MPI loads, takes SIGHUP for itself and does nothing with it."""
    begin = f"import signal; signal.signal(signal.SIGHUP, signal.{answer}){COMMANDS[command]}"
    process = subprocess.Popen(
        [sys.executable, "-c", begin],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ended, _, err = outlived(process, process.stdout.readline, last)
    assert (ended, err) == (code, "")


@pytest.mark.parametrize("flags", [checking, bisecting])
def test_the_help_names_its_exit_code(flags: ModuleType) -> None:
    assert flags.EPILOG.endswith(" 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.")
