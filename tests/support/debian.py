"""Packages that tests install on a Debian, where they may, or only unpack."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
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
    with alone(), no_daemons():
        for words in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
            command = ["timeout", str(LIMIT_S), "apt-get", "-qq", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    said = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
    return f"apt-get cannot install {' '.join(packages)}: {said}" if done.returncode else None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other test calls apt-get: it refuses to run twice at once."""
    with Path(tempfile.gettempdir(), f"scaling-tests-{os.getuid()}.apt").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpacked(package: str, wanted: str) -> Path | str:
    """The folder of a package's files that is `wanted`, as installed or else unpacked and nothing installed; why
    that cannot be, as text. What was unpacked is kept for the next time."""
    if Path(wanted).is_dir():
        return Path(wanted)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return f"no {package}, and no apt-get to get it"
    kept = Path(tempfile.gettempdir(), f"scaling-tests-{os.getuid()}", package)
    if not kept.is_dir():
        kept.parent.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            if reason := _unpack(package, Path(folder)):
                return reason
            Path(folder, "files").rename(kept)
    return kept / wanted.lstrip("/")


def _unpack(package: str, folder: Path) -> str | None:
    limited = ["timeout", str(LIMIT_S)]
    attempts = [["apt-get", "-qq", "download", package]]
    if os.geteuid() == 0:
        attempts += [["apt-get", "-qq", "update"], attempts[0]]
    for words in attempts:
        with alone():
            done = subprocess.run([*limited, *words], cwd=folder, capture_output=True, text=True, check=False)
        if archives := list(folder.glob("*.deb")):
            subprocess.run(["dpkg", "-x", archives[0], folder / "files"], check=True)
            return None
    return f"apt-get cannot download {package}: {done.stderr.strip()[-300:]}"


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
