"""./launch/mpirun: finds your mpirun and adds what it needs.

Needs are added as variables, because mpirun's own options override them. A set variable stays, unless one of our
flags changes it. On the command line are only Open MPI's `-x` (the others forward all variables) and paths of
programs.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
import sys
from collections import deque
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

from launch import _mpi
from launch._call import OPEN_MPI, READERS, Call, is_crowded

NEEDED = ("scaling", "mpi4py", "msgspec")
# variables of this environment for ranks on other nodes
NAMES = frozenset(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "LINES"))
PREFIXES = (
    *("ATEN_", "DNNL_", "GOMP_", "KERAS_", "MALLOC_", "ONEDNN_", "TORCHDYNAMO_"),
    *("SCALING_", "NCCL_", "GLOO_", "HOROVOD_", "MXNET_", "DMLC_", "PS_", "TF_", "XLA_", "TORCH_", "CUDA_"),
    *("PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "NVIDIA_", "CUBLAS_", "CUDNN_"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "MPI4PY_", "UCX_", "FI_", "OFI_NCCL_", "RDMAV_", "SHARP_"),
)
# GPU indices and UUIDs are valid on this node only, so they are not exported. "No GPU" is, for every node.
OWN = "_VISIBLE_DEVICES"
NONE_AT_ALL = ("", "-1")
# A waiting rank yields its core. MPICH and Intel MPI have no such switch.
YIELDING = {name: {"OMPI_MCA_mpi_yield_when_idle": "1"} for name in ("openmpi4", "openmpi5")}
# Open MPI 5 would put all ranks on the first host. This spreads them like 4, in order of hosts.
CROWDED = {
    "openmpi5": {
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        "PRTE_MCA_rmaps_default_ranking_policy": "slot",
    }
}
# ob1: otherwise UCX or libfabric would choose a network
NETWORK = {
    "openmpi4": {
        "OMPI_MCA_oob_tcp_if_include": "{}",
        "OMPI_MCA_btl_tcp_if_include": "{}",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,vader,tcp",
    },
    "openmpi5": {
        "PRTE_MCA_prte_if_include": "{}",
        "OMPI_MCA_btl_tcp_if_include": "{}",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
    },
    "mpich": {"HYDRA_IFACE": "{}", "FI_TCP_IFACE": "{}", "UCX_NET_DEVICES": "{}"},
    "intel": {"I_MPI_HYDRA_IFACE": "{}", "I_MPI_OFI_PROVIDER": "tcp", "FI_TCP_IFACE": "{}"},
}
# `rsh`, because `ssh` would get ssh's flags before the host
AGENT = {
    "openmpi4": {"OMPI_MCA_plm_rsh_agent": "{program} {arguments}"},
    "openmpi5": {"PRTE_MCA_plm_ssh_agent": "{program} {arguments}"},
    "mpich": {
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": "{program}",
        "HYDRA_LAUNCHER_EXTRA_ARGS": "{arguments}",
    },
    "intel": {
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "{program}",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "{arguments}",
    },
}
# Kubeflow's operator sets the left ones. Open MPI 5 ignores them silently, so all ranks ran in one pod.
RENAMED = {
    "OMPI_MCA_orte_default_hostfile": "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_plm_rsh_args": "PRTE_MCA_plm_ssh_args",
    "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
}


# With full names prterun takes its own pod for another host, and opens an ssh to itself (kubeflow/trainer#4028).
SHORT = {"PRTE_MCA_prte_keep_fqdn_hostnames": "false"}


def main(arguments: list[str]) -> int:
    """Return mpirun's exit code, 130 or 143 after a signal, 2 for a mistake."""
    ours, theirs = flags(arguments)
    need_scaling()
    mpirun = _mpi.find_mpirun()
    mpi = _mpi.name_of(mpirun)
    environ = python_first(os.environ | renamed(mpi))
    asked = asked_for(ours, mpi)
    call = Call.read(theirs)
    environ = defaults(mpirun, mpi, crowded=is_crowded(call, mpi, environ)) | environ | asked
    exported = exports(environ, call) if READERS.get(mpi) == OPEN_MPI else []
    command = [str(mpirun), *exported, *located(theirs, call)]
    if ours.show:
        sys.stdout.write(shown(command, environ))
        return 0
    return _mpi.obeying_signals(command, environ)


def defaults(mpirun: Path, mpi: str, *, crowded: bool) -> dict[str, str]:
    spread = CROWDED.get(mpi, {}) if crowded else {}
    return _mpi.terminal() | _mpi.variables(mpirun, mpi, crowded=crowded) | YIELDING.get(mpi, {}) | spread


def shown(command: list[str], environ: dict[str, str]) -> str:
    added = [f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value]
    return shlex.join(["env", *added, *command]) + "\n"


class Flags(NamedTuple):
    show: bool
    agent: str
    interface: str


def flags(arguments: list[str]) -> tuple[Flags, list[str]]:
    """Split our flags, which come first, from mpirun's arguments. SystemExit(2) for a missing value."""
    words, given = deque(arguments), {"--print": "", "--agent": "", "--interface": ""}
    while words and words[0].partition("=")[0] in given:
        flag, equals, value = words.popleft().partition("=")
        if flag == "--print":
            value = "yes"
        elif not equals and words and not words[0].startswith("-"):
            value = words.popleft()
        if not value:
            _mpi.fail(f"{flag}: needs {'a command' if flag == '--agent' else 'the name of a network interface'}")
        given[flag] = value
    if not words:
        _mpi.fail("nothing to run; write for example ./launch/mpirun -np 2 python -m scaling.run")
    return Flags(bool(given["--print"]), given["--agent"], given["--interface"]), list(words)


def asked_for(ours: Flags, mpi: str) -> dict[str, str]:
    given = [f"--{name}" for name in ("agent", "interface") if getattr(ours, name)]
    if given and mpi not in READERS:
        _mpi.fail(f"{given[0]}: this mpirun belongs to no known MPI (Open MPI 4 or 5, MPICH, Intel MPI)")
    return network(ours.interface, mpi) | agent(ours.agent, mpi)


def network(interface: str, mpi: str) -> dict[str, str]:
    if not interface:
        return {}
    here = [name for _, name in socket.if_nameindex()]
    subnet = READERS[mpi] == OPEN_MPI and "/" in interface  # Open MPI accepts a subnet too
    if interface not in here and not subnet:
        _mpi.fail(f"--interface {interface}: no such interface on {socket.gethostname()}; it has {' '.join(here)}")
    return {name: value.format(interface) for name, value in NETWORK[mpi].items()}


def agent(command: str, mpi: str) -> dict[str, str]:
    if not command:
        return {}
    program, *more = command.split()  # as MPIs do: these variables have no quoting
    if shutil.which(program) is None:
        _mpi.fail(f"--agent {command}: {program} is no command; it must be on PATH or a path, and executable")
    parts = {"program": str(Path(shutil.which(program) or "").absolute()), "arguments": " ".join(more)}
    filled = {name: value.format(**parts).strip() for name, value in AGENT[mpi].items()}
    return {name: value for name, value in filled.items() if value}


def need_scaling() -> None:
    """Exit with 2 unless ranks started here can import NEEDED."""
    here = str(Path.cwd())
    sys.path[0] = here  # the first place of `python -m scaling.run`
    first = importlib.util.find_spec("scaling")
    del sys.path[0]
    if first and not is_ours(first) and is_ours(importlib.util.find_spec("scaling")):
        found = first.origin or f"{here}/scaling"
        _mpi.fail(f"{found} hides the installed scaling: rename it, or start in another folder")
    sys.path.append(here)  # scaling moves it to the end: a random.py there does not replace Python's
    specs = {name: importlib.util.find_spec(name) for name in NEEDED}
    # without an origin it is only a folder of this name
    lacking = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if lacking:
        _mpi.fail(
            f"scaling is not installed in {sys.prefix} (no {', '.join(lacking)}): ./launch/local installs it, or "
            "activate the environment that has it"
        )


def is_ours(spec: ModuleSpec | None) -> bool:
    """Return True for the package with `scaling.run`, not another module or folder of its name."""
    return spec is not None and spec.origin is not None and Path(spec.origin).with_name("run").is_dir()


def python_first(environ: dict[str, str]) -> dict[str, str]:
    python = Path(sys.executable)
    if shutil.which(python.name) == str(python):
        return environ
    return {**environ, "PATH": os.pathsep.join((str(python.parent), environ.get("PATH", os.defpath)))}


def located(words: list[str], call: Call) -> list[str]:
    """Use full paths for programs of this environment: Open MPI 4 puts its own folder first on PATH."""
    folder = Path(sys.executable).parent
    bare = [place for place in call.programs if "/" not in words[place]]
    found = {place: str(folder / words[place]) for place in bare if (folder / words[place]).is_file()}
    return [found.get(place, word) for place, word in enumerate(words)]


def renamed(mpi: str) -> dict[str, str]:
    """Rename variables of Open MPI 4 for Open MPI 5. Set variables are kept."""
    if mpi != "openmpi5":
        return {}
    told = {new: os.environ[old] for old, new in RENAMED.items() if old in os.environ}
    return {name: value for name, value in (SHORT | told).items() if name not in os.environ} if told else {}


def exports(environ: dict[str, str], call: Call) -> list[str]:
    """Return `-x NAME` for the variables that ranks need, except those that the call exports."""
    names = sorted(name for name, value in environ.items() if is_for_all(name, value))
    return [word for name in names if name not in call.exported for word in ("-x", name)]


def is_for_all(name: str, value: str) -> bool:
    """Return True if a variable of this node is valid for ranks on all nodes."""
    if name.endswith(OWN):
        return value in NONE_AT_ALL
    return name in NAMES or name.startswith(PREFIXES)
