"""What the installed TensorFlow is built for, read from its files; TensorFlow is not imported."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks import cuda
from scaling.frameworks.tf import FRAMEWORK

INSTALL = "./launch/install tensorflow-cuda"


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
    package = find_spec("tensorflow")
    assert package is not None and package.origin is not None
    text = (Path(package.origin).parent / "python/platform/build_info.py").read_text()
    name = distribution()
    if "('is_cuda_build', True)" not in text:
        return f"{name} is built without CUDA: {INSTALL}"
    built = re.search(r"\('cuda_version', '(\d+\.\d+)", text)
    if built and (why := cuda.driver_too_old(name, cuda.version(built.group(1)), "use another framework")):
        return why
    compiled = [cuda.version(each) for each in _capabilities(text)]
    return cuda.no_kernels(name, compiled, "use another framework", newer="compute_" in text) if compiled else None


def _capabilities(text: str) -> list[str]:
    """`9.0` of each sm_90 and compute_90."""
    return [f"{digits[:-1]}.{digits[-1]}" for digits in re.findall(r"'(?:sm|compute)_(\d+)a?'", text)]


def distribution() -> str:
    """Under which name it is installed, with its version."""
    for name in FRAMEWORK.distributions["tensorflow"]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"
