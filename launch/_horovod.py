"""Builds Horovod for the installed frameworks, or takes the wheel of an earlier build from the cache.

horovod.cmake adds what current frameworks need, and replaces one file so that Gloo uses the given interface. A
wheel's key covers what determines its content, except the environment's path: a binding finds libraries by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from launch import _install

HERE = Path(__file__).resolve().parent
VERSION = "0.28.1"
CMAKE_FILES = (HERE / "horovod.cmake", HERE / "horovod_project.cmake", HERE / "horovod_stream.cc")
# Framework -> its name in Horovod's variables and in CMake, and its distributions.
FRAMEWORKS = {
    "torch": ("PYTORCH", "pytorch", ("torch",)),
    "tensorflow": ("TENSORFLOW", "tensorflow", ("tensorflow", "tensorflow-cpu")),
    "mxnet": ("MXNET", "mxnet", ("mxnet", "mxnet-cu112")),
}
# Variables that a user may set for the build; the other HOROVOD_* are for run time.
BUILD_VARIABLES = re.compile(
    r"HOROVOD_(WITH|GPU|ROCM|NCCL|CUDA|BUILD|CPU_OP|DEBUG|ALLOW)|CCL_ROOT$|C(C|XX|FLAGS|XXFLAGS)$"
)
ARCHITECTURE = {"f16c", "avx", "fma"}  # instructions that Horovod's CMakeLists.txt uses if available
CORE_MINUTES = 10  # measured: 9.2 for three bindings with GCC 12
NO_NCCL = (
    "without NCCL: nvcc or nccl.h is missing; install the CUDA toolkit of your framework's release "
    "(https://developer.nvidia.com/cuda-downloads), or set HOROVOD_CUDA_HOME and HOROVOD_NCCL_HOME to where they "
    "are; then ./launch/install horovod"
)
JOB_BYTES = 2 << 30  # memory of one compiler with the headers of TensorFlow or torch
SHIM_NUMPY = "import numpy\nnumpy.bool = bool  # MXNet 1.9.1 uses the name that numpy 1.24 removed\n"
SHIM_TORCH = "import torch\ntorch.version.cuda = None  # else Horovod builds in what this machine has no use for\n"


class NoHorovod(Exception):
    """The reason why there is no Horovod, with the fix. `bindings` are those that do not compile."""

    def __init__(self, reason: str, bindings: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.bindings = bindings


@dataclass(frozen=True, kw_only=True)
class Framework:
    """An installed framework. `is_tried` is False if it needs a missing driver for its import."""

    name: str
    version: str
    cuda: bool = False
    is_tried: bool = True


@dataclass(frozen=True, kw_only=True)
class Build:
    frameworks: tuple[Framework, ...]
    settings: dict[str, str]

    def key(self) -> str:
        parts = {
            "horovod": VERSION,
            "frameworks": [releases(framework.name) for framework in self.frameworks],
            "python": [sys.implementation.cache_tag, sysconfig.get_config_var("SOABI")],
            "platform": [sysconfig.get_platform(), *platform.libc_ver(), *sorted(architecture())],
            "settings": self.settings,
            "cmake": [path.read_text() for path in CMAKE_FILES],
            "tools": [said("mpicxx", "-show") if "HOROVOD_WITH_MPI" in self.settings else "", self.cuda_release()],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def cuda_release(self) -> str:
        return said(self.settings["HOROVOD_CUDA_HOME"] + "/bin/nvcc", "--version") if self.gpu else ""

    @property
    def gpu(self) -> bool:
        return "HOROVOD_GPU_OPERATIONS" in self.settings

    def environ(self, shims: Path) -> dict[str, str]:
        paths = {"PYTHONPATH": str(shims), "PATH": str(Path(sys.prefix, "bin"))}
        joined = {name: os.pathsep.join(filter(None, (at, os.environ.get(name)))) for name, at in paths.items()}
        toolchain = {"CMAKE_TOOLCHAIN_FILE": str(CMAKE_FILES[0])}
        return {"MAKEFLAGS": f"-k -j{jobs()}"} | os.environ | self.settings | joined | toolchain

    def shim(self) -> str:
        """Return the code that each Python of the build runs first (sitecustomize)."""
        torch = any(framework.name == "torch" and framework.cuda for framework in self.frameworks)
        mxnet = any(framework.name == "mxnet" for framework in self.frameworks)
        return SHIM_NUMPY * mxnet + SHIM_TORCH * (torch and not self.gpu)


def plan(frameworks: tuple[Framework, ...], *, driver: bool) -> tuple[Build, dict[str, str]]:
    """Plan the build. Return also what is left out, by name, and why. GPU operations are for all bindings or none:
    with a driver, a framework with CUDA, nvcc and NCCL."""
    wanted = driver and any(framework.cuda for framework in frameworks)
    gpu = gpu_settings() if wanted else {}
    bound = tuple(f for f in frameworks if (f.cuda if gpu else not (f.cuda and f.name == "mxnet")))
    asked = {name: value for name, value in os.environ.items() if BUILD_VARIABLES.match(name)}
    ours = {"HOROVOD_WITH_GLOO": "1", **mpi_settings(), **gpu, **binding_settings(bound)}
    settings = {name: value for name, value in ours.items() if opposite(name) not in asked} | asked
    other = (
        "has CUDA, which this Horovod is built without" if not gpu else "is built without CUDA, this Horovod with"
    )
    left_out = {f.name: f"{f.name} {other}" for f in frameworks if f not in bound}
    return Build(frameworks=bound, settings=settings), left_out | (
        {"horovod": NO_NCCL} if wanted > bool(gpu) else {}
    )


def opposite(name: str) -> str:
    with_, without = "HOROVOD_WITH_", "HOROVOD_WITHOUT_"
    return name.replace(without, with_) if name.startswith(without) else name.replace(with_, without)


def binding_settings(bound: tuple[Framework, ...]) -> dict[str, str]:
    names = {framework.name for framework in bound}
    return {f"HOROVOD_WITH{'' if name in names else 'OUT'}_{FRAMEWORKS[name][0]}": "1" for name in FRAMEWORKS}


def mpi_settings() -> dict[str, str]:
    """Choose MPI if the machine has one. PyPI's is skipped: every import would need it at this path."""
    own = str(Path(sys.prefix, "bin"))
    path = os.pathsep.join(at for at in os.environ.get("PATH", "").split(os.pathsep) if at != own)
    return {"HOROVOD_WITH_MPI" if shutil.which("mpicxx", path=path) else "HOROVOD_WITHOUT_MPI": "1"}


def gpu_settings() -> dict[str, str]:
    """Return variables for GPU operations over NCCL; empty without nvcc or nccl.h. NCCL is the framework's own
    unless the user names another."""
    nvcc = shutil.which("nvcc")
    home = os.environ.get("HOROVOD_CUDA_HOME") or os.environ.get("CUDA_HOME")
    home = home or (str(Path(nvcc).resolve().parent.parent) if nvcc else "/usr/local/cuda")
    places = (os.environ.get("HOROVOD_NCCL_HOME"), pypi_nccl(), "/usr", home)
    nccl = next((str(at) for at in places if at and Path(at, "include/nccl.h").is_file()), None)
    if nccl is None or not Path(home, "bin/nvcc").is_file():
        return {}
    found = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_CUDA_HOME": home, "HOROVOD_NCCL_HOME": nccl}
    return found | {"CUDA_HOME": home, "HOROVOD_NCCL_LINK": "SHARED"}


def pypi_nccl() -> Path:
    return Path(sysconfig.get_path("purelib"), "nvidia/nccl")


def releases(framework: str) -> list[str]:
    """List a framework's installed distributions with versions: `tensorflow-cpu 2.21.0`."""
    found = []
    for name in FRAMEWORKS[framework][2] if framework in FRAMEWORKS else (framework,):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return found


def architecture() -> set[str]:
    """Return the instructions of ARCHITECTURE that this processor has. Different machines may share a cache."""
    with suppress(OSError):
        return ARCHITECTURE.intersection(Path("/proc/cpuinfo").read_text().split())
    return set()


def jobs() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), memory // JOB_BYTES))


def said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def lacks() -> str | None:
    compiler = shlex.split(os.environ.get("CXX", "")) or ["c++"]
    if not any(map(shutil.which, (compiler[0], "g++", "clang++"))) or not shutil.which("make"):
        return "no C++ compiler or no make: apt-get install g++ make (RHEL: dnf install gcc-c++ make)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        release = "{}.{}".format(*sys.version_info)
        return f"no Python.h: apt-get install python{release}-dev (RHEL: dnf install python{release}-devel)"
    return None


def wheel(build: Build) -> Path:
    """Return the wheel of `build`, from the cache or built now. Raises NoHorovod on failure."""
    folder = cache() / build.key()
    kept = sorted(folder.glob("horovod-*.whl"))
    if kept:
        _install.say(f"Horovod {VERSION} is in the cache: {kept[0]}")
        return kept[0]
    if reason := lacks():
        raise NoHorovod(reason)
    folder.mkdir(parents=True, exist_ok=True)
    announce(build, folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        compile_wheel(build, Path(scratch), folder / "build.log")
        made = next(Path(scratch).glob("horovod-*.whl"))
        return made.replace(folder / made.name)  # atomic: other processes may read the cache


def cache() -> Path:
    """Return the folder of all wheels, or a temporary one if it cannot be created."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "scaling/wheels")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _install.say(f"the wheel will not be kept: {error}")
        return Path(tempfile.mkdtemp())
    return folder


def announce(build: Build, folder: Path) -> None:
    names = ", ".join(framework.name for framework in build.frameworks)
    parts = ["Gloo", *(["MPI"] if "HOROVOD_WITH_MPI" in build.settings else []), *(["NCCL"] if build.gpu else [])]
    minutes = max(2, CORE_MINUTES // jobs())
    _install.say(f"building Horovod {VERSION} for {names} with {', '.join(parts)}: about {minutes} minutes")
    _install.say(f"when {jobs()} cores are idle; the wheel is then kept in {folder}")


def compile_wheel(build: Build, scratch: Path, log: Path) -> None:
    """Build the wheel into `scratch` with pip and print progress. Raises NoHorovod on failure."""
    (scratch / "sitecustomize.py").write_text(build.shim())
    options = ("--verbose", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--no-binary", "horovod")
    command = [sys.executable, "-m", "pip", "wheel", *_install.QUIET, *options]
    command += ["--wheel-dir", str(scratch), f"horovod=={VERSION}"]
    if code := follow(command, build.environ(scratch) | nccl_by_its_plain_name(build, scratch), log):
        raise failure(log, code)


def nccl_by_its_plain_name(build: Build, scratch: Path) -> dict[str, str]:
    """Link PyPI's libnccl.so.2 as libnccl.so, the name that CMake looks for."""
    if build.settings.get("HOROVOD_NCCL_HOME") != str(pypi_nccl()):
        return {}
    (scratch / "libnccl.so").symlink_to(Path(build.settings["HOROVOD_NCCL_HOME"], "lib/libnccl.so.2"))
    return {"HOROVOD_NCCL_LIB": str(scratch)}


def follow(command: list[str], environ: Mapping[str, str], log: Path) -> int:
    start, next_percent = time.monotonic(), 10
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            found = re.match(r"\s*\[ *(\d+)%\]", line)
            if found and int(found[1]) >= next_percent:
                next_percent = int(found[1]) // 10 * 10 + 10
                _install.say(f"Horovod {found[1]} %, {(time.monotonic() - start) / 60:.1f} min")
    return process.returncode


def failure(log: Path, code: int) -> NoHorovod:
    """Return the first error, and the bindings that do not compile."""
    text = log.read_text()
    targets = re.findall(r"\*\*\* \[.*CMakeFiles/(\w+)\.dir/.*\] Error", text)
    bindings = frozenset(name for name, (_, target, _) in FRAMEWORKS.items() if target in targets)
    first = re.search(r"^.*(\berror: |CMake Error|ERROR: ).*$", text, re.MULTILINE)
    reason = first[0].strip()[:200] if first else f"pip wheel exited with {code}"
    return NoHorovod(f"does not build: {reason}; mend that ({log}), then ./launch/install horovod", bindings)
