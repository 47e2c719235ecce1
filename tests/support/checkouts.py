"""Git repositories made for a test, with `python -m scaling.run` started on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

QUICK = (
    "--kinds", "solo,exchange", "--rounds", "1", "--windows", "3", "--window-s", "0.01", "--soak-s", "0",
    "--no-page", "--world-sizes", "1", "--option", "step_s=0.002",
)  # fmt: skip


def git(folder: Path, *words: str) -> str:
    """What git says; its commits are by nobody real, and unsigned."""
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path, about: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", about)


def edit(file: Path, before: str, after: str) -> None:
    """Change what stands there once."""
    text = file.read_text()
    assert text.count(before) == 1
    file.write_text(text.replace(before, after))


def measure(path: str, *argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A quick run of one rank with this PYTHONPATH, as a user starts it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("SCALING_", "GIT_"))}
    return subprocess.run(
        [sys.executable, "-m", "scaling.run", "--ranks", "1", *QUICK, *argv], cwd=cwd,
        env={**environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
