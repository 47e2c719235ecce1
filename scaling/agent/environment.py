"""What a child runs in: its environment variables and its Python.

The variables are the agent's without the launcher's, plus ours and the strategy's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from scaling import frameworks
from scaling.hosts import info
from scaling.hosts.proc import text
from scaling.records.host import SECRET, USERINFO, HostInfo, Installed, Interpreter
from scaling.records.network import AUTO
from scaling.records.task import Task

SCRUBBED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "ORTE_", "HYDRA_", "HYDI_", "MPI_", "MPIR_")
MIB = 1 << 20
# NCCL's variables that choose networks, cards or plugins.
CHOOSING = re.compile(r"NCCL_(NET|IB_|TUNER|COLLNET|FASTRAK|GPUDIRECT)")
LOGGING = frozenset({"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"})
# mallopt(3). glibc's defaults return large buffers after each step and fault them in again: 9 to 11 ms in a step
# of 66 ms of digits-cnn. 32 MiB is the largest threshold.
KEPT_HEAP = {
    "MALLOC_TRIM_THRESHOLD_": "2000000000",
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TOP_PAD_": str(64 * MIB),
}


def child_environ(base: Mapping[str, str], task: Task, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the task's child, from the agent's (`base`) and the strategy's (`asked`)."""
    threads = str(task.threads)
    return {
        **_heap(task),
        # The maximum (CUDA programming guide): kernels that do not fit are compiled at each start.
        **({"CUDA_CACHE_MAXSIZE": str(4 << 30)} if task.point.hardware.device == "cuda" else {}),
        **for_children(outside_of_mpi(base)),
        **_past_proxies(base, task),
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        # CUDA then numbers GPUs as NVML does, also if they are of different kinds.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **({"CUDA_VISIBLE_DEVICES": task.shown_gpu} if task.shown_gpu else {}),
        **asked,
    }


def outside_of_mpi(base: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the launcher's variables; Python finds this package first."""
    parent = str(Path(__file__).resolve().parents[2])
    paths = [parent, *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    kept = {key: value for key, value in base.items() if not key.startswith(SCRUBBED)}
    return {**kept, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def _past_proxies(base: Mapping[str, str], task: Task) -> dict[str, str]:
    """Exempt the task's addresses from proxies. gRPC reads `no_proxy` only without `no_grpc_proxy`."""
    if not any(name.lower().endswith("_proxy") for name in base):
        return {}
    own = (task.place.address, *task.addresses, *(server.address for server in task.servers))
    common = base.get("no_proxy", base.get("NO_PROXY", ""))
    return {
        name: ",".join(dict.fromkeys((*filter(None, base.get(name, common).split(",")), *own)))
        for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")
    }


def granted(base: Mapping[str, str], asked: Mapping[str, str], word: str) -> dict[str, str]:
    """Return the strategy's variables, without those of NCCL's log if the user sets any of these. If no network is
    named (`word` of --interconnect), all of the user's variables of NCCL stand. So do those in NCCL's files."""
    own = {**nccl_files(base), **base}
    given = {key: value for key, value in asked.items() if key not in LOGGING or not LOGGING & own.keys()}
    if word != AUTO:
        return given
    chooses = any(map(CHOOSING.match, own))
    kept = {key: value for key, value in given.items() if not (chooses and CHOOSING.match(key))}
    return {key: own.get(key, value) if key.startswith("NCCL_") else value for key, value in kept.items()}


def nccl_files(base: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Return the variables of NCCL's files; the environment has precedence (nccl/src/misc/param.cc)."""
    named, home = base.get("NCCL_CONF_FILE"), base.get("HOME")
    files = [root / "etc/nccl.conf", *([Path(named or f"{home}/.nccl.conf")] if named or home else [])]
    lines = [line for file in files for line in text(file).splitlines() if "=" in line and line[0] != "#"]
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}


def _heap(task: Task) -> dict[str, str]:
    is_kept = task.malloc == "keep" and not task.point.workload.script and task.point.hardware.device != "cuda"
    return KEPT_HEAP if is_kept and not info.allocator_in_use() else {}


# ---------------------------------------------------------------- interpreters
# The Python that runs a framework's children, and what is installed there.
#
# Frameworks whose CUDA libraries overwrite each other's need environments of their own (./launch/install).

# SCALING_PYTHON_TENSORFLOW=/path/to/python precedes the interpreter next to the agent's.
PYTHON_VARIABLE = "SCALING_PYTHON_"
# Less than the time that ranks have to enrol; a cluster's file system may be slow at first.
ANSWER_S = 45.0


def python_of(framework: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the Python of a framework's children: the named one, the one next to the agent's, or the agent's."""
    if named := environ.get(PYTHON_VARIABLE + framework.upper()):
        return named
    beside = Path(f"{sys.prefix}-{framework}", "bin/python")
    return str(beside) if framework and beside.exists() else sys.executable


class Question:
    """A question to another interpreter: what does it have for a framework? Several are asked at once."""

    def __init__(self, framework: str, names: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self.names = tuple(names)
        self._framework, self._path = framework, python_of(framework, environ)
        self._variable = PYTHON_VARIABLE + framework.upper()
        self._is_named = bool(environ.get(self._variable))
        self._where = f"{self._variable}={self._path}" if self._is_named else self._path
        self._process: subprocess.Popen[str] | None = None
        own = {key: value for key, value in outside_of_mpi(environ).items() if not key.startswith(PYTHON_VARIABLE)}
        try:
            self._process = subprocess.Popen(
                [self._path, "-m", "scaling.agent.strategies", framework, *names],
                env=own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        except OSError as error:
            self._why = f"does not start ({error.strerror or error})"

    def answer(self) -> tuple[Installed, Interpreter]:
        """Return what it has. If it does not work, all these strategies are missing."""
        if found := self._installed():
            missing, on_cuda = (
                {name: f"{why} (in {self._where})" for name, why in every.items()}
                for every in (found.missing, found.missing_on_cuda)
            )
            found = replace(found, missing=missing, missing_on_cuda=on_cuda)
        else:
            found = Installed(missing=dict.fromkeys(self.names, f"{self._where} {self._why}; {self._mend()}"))
        described = {name: getattr(found, name) for name in ("python", "versions", "cuda", "compile_lacks")}
        return found, Interpreter(framework=self._framework, path=self._path, **described)

    def _installed(self) -> Installed | None:
        if self._process is None:
            return None
        try:
            output, errors = self._process.communicate(timeout=ANSWER_S)
            return msgspec.json.decode(output, type=Installed)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            self._why = f"does not answer within {ANSWER_S:g} s"
        except msgspec.DecodeError:
            self._why = f"cannot run workers: {(errors.strip().splitlines() or ['it says nothing'])[-1][:200]}"
        return None

    def _mend(self) -> str:
        if not self._is_named:
            return f"./launch/install {self._framework}, or remove {Path(self._path).parent.parent}"
        of = f"{self._framework} and with scaling (pip install {Path(__file__).resolve().parents[2]})"
        return f"name a Python with {of}, or unset {self._variable}"


def ask_interpreters(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> list[Question]:
    """Start a question for each framework of these strategies that does not run in the agent's interpreter."""
    parted: dict[str, list[str]] = {}
    for name in names:
        parted.setdefault(_framework_or_none(name), []).append(name)
    return [Question(one, parted[one], environ) for one in parted if python_of(one, environ) != sys.executable]


def _framework_or_none(strategy: str) -> str:
    try:
        return frameworks.running(strategy).name
    except Exception:  # any exception of a strategy; `missing` reports it
        return ""


# ---------------------------------------------------------------- variables of the user
#
# Those that change rates: which ones are recorded, and which ones children get.

_FRAMEWORKS = tuple(frameworks.FRAMEWORKS.values())
# Variables of libraries, and those that frameworks declare.
RECORDED = re.compile(
    "|".join(
        (
            "CUBLAS_|CUDA_|CUDNN_|DNNL_|FI_|GLIBC_TUNABLES|GOMP_|LD_PRELOAD|MALLOC_|MKL_|NCCL_|NVIDIA_TF32_OVERRIDE",
            "OFI_NCCL_|OMP_|ONEDNN_|OPENBLAS_|UCX_",
            *(one.variables for one in _FRAMEWORKS if one.variables),
        )
    )
)
# Locations and the like, or variables that a task sets.
IGNORED = re.compile(
    r".*_(HOME|VERSION|VISIBLE_DEVICES|CACHE_DIR|CACHE_PATH|ARCH_LIST|LOG_LEVEL)$"
    r"|(OMP|MKL|OPENBLAS)_NUM_THREADS$|CUDA_DEVICE_ORDER$"
)
MOST_CHARACTERS = 200
# libgomp binds threads when it is loaded, so forks of a fork server would run outside their rank's CPUs. A limit
# below a rank's threads makes frameworks hang.
PLACING = re.compile(
    r"(OMP_(THREAD_LIMIT|DYNAMIC|PROC_BIND|PLACES)|GOMP_CPU_AFFINITY|MKL_DOMAIN_NUM_THREADS|\w+_THREAD_AFFINITY)$"
    r"|KMP_"
)
OWN = re.compile("|".join(one.own_variables for one in _FRAMEWORKS if one.own_variables))
CORRECTED = {name: told for one in _FRAMEWORKS for name, told in one.corrected.items()}


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop and correct variables that break a worker or move its threads off its CPUs."""
    kept = {name: value for name, value in environ.items() if not (PLACING.match(name) or OWN.match(name))}
    return {name: _corrected(name, value) for name, value in kept.items()}


def _corrected(name: str, value: str) -> str:
    pattern, instead, _ = CORRECTED.get(name, ("$", "", ""))
    return re.sub(pattern, instead, value, flags=re.IGNORECASE)


def recorded_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of children that change rates, without secrets. Long values are cut."""
    given = for_children(environ)
    return {name: _shown(given[name]) for name in sorted(given) if RECORDED.match(name) and _is_said(name)}


def changed_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that children get changed or not at all: `OMP_PROC_BIND=true (reason)`."""
    return tuple(
        f"{name}={_shown(environ[name])} ({why})"
        for name in sorted(environ)
        if (why := _why_changed(name, environ[name])) and _is_said(name)
    )


def _why_changed(name: str, value: str) -> str:
    if PLACING.match(name):
        return "dropped: scaling places each rank's threads"
    if OWN.match(name):
        return "dropped: scaling sets it for each process"
    corrected = _corrected(name, value)
    return f"{corrected or 'dropped'} for workers: {CORRECTED[name][2]}" if corrected != value else ""


def _is_said(name: str) -> bool:
    return not (IGNORED.match(name) or SECRET.search(name))


def _shown(value: str) -> str:
    value = USERINFO.sub("//***@", value)
    return value if len(value) <= MOST_CHARACTERS else f"{value[:MOST_CHARACTERS]}..."


# ---------------------------------------------------------------- description of a host


def host_with(found: Sequence[Interpreter], environ: Mapping[str, str] = os.environ) -> HostInfo:
    """Describe this host as its workers meet it, with these interpreters besides the agent's own."""
    every = frameworks.FRAMEWORKS.values()
    own = replace(
        info.gather(frameworks.distributions()),
        compile_lacks=next(filter(None, (one.compiler_lacks(environ) for one in every)), ""),
        variables=recorded_variables(environ),
        changed_variables=changed_variables(environ),
    )
    return with_interpreters(own, found)


def with_interpreters(host: HostInfo, found: Sequence[Interpreter]) -> HostInfo:
    """Return the host with these interpreters. A package gets its framework's name, as `horovod (tensorflow)`, if
    its version differs from the agent's, or if the agent's frameworks lack it."""
    elsewhere = {one.framework for one in found}
    every = frameworks.FRAMEWORKS.values()
    here = {package for one in every if one.name not in elsewhere for package in one.distributions}
    moved = {package for one in every if one.name in elsewhere for package in one.distributions} - here
    versions = {package: version for package, version in host.versions.items() if package not in moved}
    for one in found:
        python = {"Python": one.python} if one.python not in ("", host.python) else {}
        for package, version in {**one.versions, **python}.items():
            known = versions.setdefault(package, version) if package in moved else versions.get(package)
            if known != version:
                versions[f"{package} ({one.framework})"] = version
    compiling = (one for one in found if frameworks.named(one.framework).compiler)
    lacks = next((one.compile_lacks for one in compiling), host.compile_lacks)
    return replace(host, versions=versions, interpreters=tuple(found), compile_lacks=lacks)
