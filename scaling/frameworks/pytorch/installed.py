"""What the installed torch was built for, read from its files: nothing here imports it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path


def cuda() -> str | None:
    """The CUDA release that torch was built with (`13.0`); "" for a build without, None without any torch."""
    package = find_spec("torch")
    if package is None or package.origin is None:
        return None
    return cuda_of(Path(package.origin).with_name("version.py"))


def cuda_of(version: Path) -> str:
    """The same from the file in which torch says what it is: `cuda: Optional[str] = '13.0'`, or None."""
    try:
        text = version.read_text()
    except OSError:
        return ""
    found = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return found[1] if found else ""
