"""A terminal that closes while a command runs in it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable


def outlived(process: subprocess.Popen[str], runs: Callable[[], object], last: str) -> tuple[int, str, str]:
    """Send SIGHUP once the command runs, and where it should go on the signal that ends it: its exit code, stdout
    and stderr."""
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
