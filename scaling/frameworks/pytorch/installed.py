"""What the installed torch was built for, read from its files: nothing here imports it."""

from __future__ import annotations

import ast
import platform
import re
from contextlib import suppress
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


def capabilities(release: str, machine: str = platform.machine()) -> tuple[tuple[int, int], ...]:
    """The compute capabilities that PyTorch's own wheels of this version have code for, by the CUDA release that
    they are built with, as torch lists them since 2.13 (torch/cuda, PYTORCH_RELEASES_CODE_CC); () where it does
    not."""
    package = find_spec("torch")
    if package is None or package.origin is None:
        return ()
    with suppress(OSError, SyntaxError, ValueError):
        text = Path(package.origin).with_name("cuda").joinpath("__init__.py").read_text()
        if found := re.search(r"^PYTORCH_RELEASES_CODE_CC\b[^=]*= (\{.*?^\})", text, re.MULTILINE | re.DOTALL):
            codes = ast.literal_eval(found[1]).get(release, {}).get(machine, ())
            return tuple(divmod(code, 10) for code in sorted(codes))
    return ()
