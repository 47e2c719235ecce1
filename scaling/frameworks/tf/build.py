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
    name = distribution()
    try:
        text = (Path(package.origin).parent / "python/platform/build_info.py").read_text()
    except OSError:
        return None
    if "('is_cuda_build', False)" in text:
        return f"{name} is built without CUDA: {INSTALL}"
    built = re.search(r"\('cuda_version', '(\d+\.\d+)", text)
    if built and (why := cuda.driver_too_old(name, cuda.version(built.group(1)), _mend)):
        return why
    return cuda.no_kernels(name, " ".join(re.findall(r"'((?:sm|compute)_\d+)[a-z]?'", text)), _mend)


def _mend() -> str:
    return "use another framework"


def distribution() -> str:
    """Under which name it is installed, with its version."""
    for name in FRAMEWORK.distributions["tensorflow"]:
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue
    return "tensorflow"
