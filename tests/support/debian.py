"""Packages that tests install on a Debian, where they may."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 240


def install(*packages: str) -> str | None:
    """Install packages; why that cannot be, or None."""
    if os.geteuid() != 0:
        return f"only root may install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        return f"no {' '.join(packages)}, and no apt-get to install them"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with no_daemons():
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            command = ["timeout", str(LIMIT_S), "apt-get", "-qq", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    said = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
    return f"apt-get cannot install {' '.join(packages)}: {said}" if done.returncode else None


@contextlib.contextmanager
def no_daemons() -> Iterator[None]:
    """Packages that are installed meanwhile start nothing, as Debian's policy layer provides for."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
