"""What the installed PyTorch is built for, read from its files; torch is not imported."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from scaling.frameworks import cuda
from scaling.hosts import gpus

# What PyTorch's wheels are compiled for, by CUDA version (https://github.com/pytorch/pytorch, .ci/manywheel/
# build_cuda.sh for CUDA 12; 13.0 is read off the ELF sections of 2.13's libtorch_cuda.so), and whether PTX is
# among it.
COMPILED: dict[cuda.Version, tuple[tuple[cuda.Version, ...], bool]] = {
    (12, 6): (((5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)), False),
    (12, 8): (((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), False),
    (12, 9): (((7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), True),
    (13, 0): (((7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)), True),
}
MEND = "./launch/install --cuda {} torch"


def unfit() -> str | None:
    """Why it cannot compute on the GPUs of this host; None where it can, or where nobody knows."""
    name = f"torch {metadata.version('torch')}"
    built = _cuda()
    if built is None:
        return f"{name} is built without CUDA: {MEND.format('13')} (GPUs before Turing, or drivers before 580: 12)"
    if why := cuda.driver_too_old(name, built, MEND.format("12")):
        return why
    if built not in COMPILED:
        return None
    compiled, has_ptx = COMPILED[built]
    found = [gpu.compute_capability for gpu in gpus.gather_gpus().gpus if gpu.compute_capability]
    is_older = min(found, default=compiled[0]) < compiled[0]
    return cuda.no_kernels(name, compiled, MEND.format("12" if is_older else "13"), newer=has_ptx)


def _cuda() -> cuda.Version | None:
    """The CUDA that it is built for; None for a build without."""
    package = find_spec("torch")
    assert package is not None and package.origin is not None
    text = (Path(package.origin).parent / "version.py").read_text()
    found = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return cuda.version(found.group(1)) if found else None
