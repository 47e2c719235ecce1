"""What MXNet's tests share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scaling.frameworks.mx.strategies import Plain

MISSING = Plain().missing("mxnet:plain")
needs_mxnet = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


def said(code: str, *arguments: str) -> str:
    """In a process of its own: MXNet's OpenMP and torch's are not made for one process."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
