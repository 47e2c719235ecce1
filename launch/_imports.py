"""Imports each framework and each binding of Horovod in a separate process, to see what works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from launch import _cuda, _horovod
from launch._horovod import FRAMEWORKS, Framework

FRAMEWORK = (
    "import json, os; os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')\n{first}import {name}\n"
    "print(json.dumps([{name}.__version__, bool({cuda})]))"
)
# Those that have no binding of Horovod come last.
NAMES = (*FRAMEWORKS, "jax")
FIRST = {"mxnet": _horovod.SHIM_NUMPY}
# Preload CUDA's libraries as workers do (scaling/frameworks/mx/importing.py). The repository root has both.
LIBRARIES = "from scaling.frameworks.mx import importing; importing.preload()\n"
CUDA = {
    "torch": "torch.version.cuda",
    "tensorflow": "tensorflow.test.is_built_with_cuda()",
    "mxnet": "mxnet.runtime.Features().is_enabled('CUDA')",
    "jax": "[one for one in __import__('pkgutil').iter_modules() if one.name.startswith('jax_cuda')]",
}
BINDING = (
    "import json\n{first}import horovod.{name} as h\n"
    "parts = dict(Gloo=h.gloo_built(), MPI=h.mpi_built(), NCCL=h.nccl_built())\n"
    "print(json.dumps([name for name, built in parts.items() if built]))"
)
DRIVER = "libcuda.so.1"  # MXNet needs it; only the driver has it
PROBE_S = 600  # to import a framework, which takes minutes on a cold file system


class NoImport(Exception):
    """The reason why an installed package does not import."""


def examine(extras: Sequence[str], problems: dict[str, str]) -> tuple[Framework, ...]:
    """Return the frameworks that import. Asked ones that do not are added to `problems`."""
    found = []
    for name in NAMES:
        asked = next((extra for extra in extras if extra.removesuffix("-cuda") == name), None)
        if not _horovod.releases(name):
            if asked and asked not in problems:
                problems[asked] = f"there is none for {this_python()}; {other_python()}"
            continue
        try:
            version, cuda = probe(FRAMEWORK.format(name=name, first=first(name), cuda=CUDA[name]))
        except NoImport as error:
            if DRIVER in str(error) and not _cuda.driver():
                version = _horovod.releases(name)[0].split()[1]
                found.append(Framework(name=name, version=version, cuda=True, is_tried=False))
            else:
                problems[asked or name] = f"does not import: {error}; {import_advice(name)}"
        else:
            found.append(Framework(name=name, version=version, cuda=cuda))
    return tuple(found)


def import_advice(name: str) -> str:
    if has_cuda_11(name):
        return "it needs the libraries of CUDA 11, cuDNN 8 and NCCL 2; for CPUs: ./launch/install mxnet"
    return f"{sys.executable} -m pip install --force-reinstall '{_horovod.releases(name)[0].replace(' ', '==')}'"


def has_cuda_11(name: str) -> bool:
    return any(release.startswith("mxnet-cu") for release in _horovod.releases(name))


def first(name: str) -> str:
    return FIRST.get(name, "") + LIBRARIES * has_cuda_11(name)


def binding(name: str) -> str:
    """Return the features of a framework's binding, `Gloo, NCCL`. Raises NoImport."""
    return ", ".join(probe(BINDING.format(name=name, first=first(name))))


def all_bindings(names: Iterable[str]) -> bool:
    try:
        return all(binding(name) for name in names)
    except NoImport:
        return False


def probe(code: str) -> Any:
    """Run Python code that prints JSON and return the value. Raises NoImport with the last line of the error."""
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoImport(f"no answer in {PROBE_S} s") from None
    if done.returncode:
        raise NoImport((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:200])
    return json.loads(done.stdout.splitlines()[-1])


def this_python() -> str:
    return "Python {}.{}".format(*sys.version_info)


def other_python() -> str:
    return "for it: python3.12 -m venv FOLDER, activate that, ./launch/install"
