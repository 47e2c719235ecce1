"""Start ranks under the mpirun at hand: what `./launch/mpirun` does, and where its flags are told.

What a bare mpirun lacks differs by MPI. It is added as variables, because mpirun's own options outrank them; a
variable that is set already stays, unless a flag of ours asks for another value. On the command line are only Open
MPI's `-x`, since it hands nothing on to other nodes unasked (MPICH and Intel MPI hand on all there is; a -genvlist
would cut that down to what it lists), and the path of a program that is the environment's.
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
from launch._call import FORMATS, Call, is_crowded

NEEDED = ("scaling", "mpi4py", "msgspec")
# What ranks on other nodes must have of this environment.
NAMES = frozenset(("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "COLUMNS", "LINES"))
PREFIXES = (
    *("ATEN_", "DNNL_", "GOMP_", "KERAS_", "MALLOC_", "ONEDNN_", "TORCHDYNAMO_"),
    *("SCALING_", "NCCL_", "GLOO_", "HOROVOD_", "MXNET_", "DMLC_", "PS_", "TF_", "XLA_", "TORCH_", "CUDA_"),
    *("PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "NVIDIA_", "CUBLAS_", "CUDNN_"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "MPI4PY_", "UCX_", "FI_", "OFI_NCCL_", "RDMAV_", "SHARP_"),
)
# Which GPUs a node has for this job, its batch system says there: indices and UUIDs of this node are none of
# another's. That there are to be none at all is meant for every node.
OWN = "_VISIBLE_DEVICES"
NONE_AT_ALL = ("", "-1")
# A rank that waits yields its core. MPICH and Intel MPI have no such switch.
YIELDING = {name: {"OMPI_MCA_mpi_yield_when_idle": "1"} for name in ("openmpi4", "openmpi5")}
# Open MPI 5 would put all ranks on the first host of several; so they are spread as by 4, in order of hosts.
CROWDED = {
    "openmpi5": {
        "PRTE_MCA_rmaps_default_mapping_policy": "node:oversubscribe",
        "PRTE_MCA_rmaps_default_ranking_policy": "slot",
    }
}
# ob1: without it a UCX or libfabric beneath would choose a network by itself.
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
# `rsh`, since as `ssh` it would be called with ssh's own flags before the host.
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
# Kubeflow's operator sets the left ones, which Open MPI 5 passes over in silence: all ranks ran in one pod.
RENAMED = {
    "OMPI_MCA_orte_default_hostfile": "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_plm_rsh_args": "PRTE_MCA_plm_ssh_args",
    "OMPI_MCA_plm_rsh_agent": "PRTE_MCA_plm_ssh_agent",
}


# With whole names, as the operator asks of Open MPI 4, prterun takes its own pod for another host and opens an ssh
# to itself, which fails, or starts all ranks there (kubeflow/trainer#4028).
SHORT = {"PRTE_MCA_prte_keep_fqdn_hostnames": "false"}


def main(arguments: list[str]) -> int:
    """Run mpirun, or print how; returns its exit code, a shell's 130 and 143 after a signal, 2 for a mistake."""
    ours, theirs = flags(arguments)
    need_scaling()
    mpirun = _mpi.find_mpirun()
    mpi = _mpi.name_of(mpirun)
    environ = python_first(os.environ | renamed(mpi))
    asked = asked_for(ours, mpi)
    call = Call.read(theirs)
    environ = defaults(mpirun, mpi, crowded=is_crowded(call, mpi, environ)) | environ | asked
    exported = exports(environ, call) if FORMATS.get(mpi) == "openmpi" else []
    command = [str(mpirun), *exported, *located(theirs, call)]
    if ours.show:
        sys.stdout.write(shown(command, environ))
        return 0
    return _mpi.obeying_signals(command, environ)


def defaults(mpirun: Path, mpi: str, *, crowded: bool) -> dict[str, str]:
    """The variables that a start needs, unless they are set already."""
    spread = CROWDED.get(mpi, {}) if crowded else {}
    return _mpi.terminal() | _mpi.variables(mpirun, mpi, crowded=crowded) | YIELDING.get(mpi, {}) | spread


def shown(command: list[str], environ: dict[str, str]) -> str:
    """One line for a shell: what is added to the environment it was made in, and the command."""
    added = [f"{name}={value}" for name, value in environ.items() if os.environ.get(name) != value]
    return shlex.join(["env", *added, *command]) + "\n"


# ---------------------------------------------------------------- what is asked


class Flags(NamedTuple):
    """Our own flags."""

    show: bool
    agent: str
    interface: str


def flags(arguments: list[str]) -> tuple[Flags, list[str]]:
    """Part our flags, which come first, from mpirun's arguments. SystemExit(2) where a value is missing."""
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
    """The variables that our flags stand for."""
    given = [f"--{name}" for name in ("agent", "interface") if getattr(ours, name)]
    if given and mpi not in FORMATS:
        _mpi.fail(f"{given[0]}: this mpirun is of no MPI that is known here: Open MPI 4 or 5, MPICH, Intel MPI")
    return network(ours.interface, mpi) | agent(ours.agent, mpi)


def network(interface: str, mpi: str) -> dict[str, str]:
    """The variables that keep MPI's own messages, those of its start included, to one interface."""
    if not interface:
        return {}
    here = [name for _, name in socket.if_nameindex()]
    subnet = FORMATS[mpi] == "openmpi" and "/" in interface  # which Open MPI takes as well
    if interface not in here and not subnet:
        _mpi.fail(f"--interface {interface}: no such interface on {socket.gethostname()}; it has {' '.join(here)}")
    return {name: value.format(interface) for name, value in NETWORK[mpi].items()}


def agent(command: str, mpi: str) -> dict[str, str]:
    """The variables that let `COMMAND HOST WORDS...` start what is to run on other hosts."""
    if not command:
        return {}
    program, *more = command.split()  # as MPIs do: there is no quoting in these variables
    if shutil.which(program) is None:
        _mpi.fail(f"--agent {command}: {program} is no command; it must be on PATH or a path, and executable")
    parts = {"program": str(Path(shutil.which(program) or "").absolute()), "arguments": " ".join(more)}
    filled = {name: value.format(**parts).strip() for name, value in AGENT[mpi].items()}
    return {name: value for name, value in filled.items() if value}


def need_scaling() -> None:
    """SystemExit(2) unless ranks started here can import what every rank needs."""
    here = str(Path.cwd())
    sys.path[0] = here  # where `python -m scaling.run` looks first
    first = importlib.util.find_spec("scaling")
    del sys.path[0]
    if first and not is_ours(first) and is_ours(importlib.util.find_spec("scaling")):
        found = first.origin or f"{here}/scaling"
        _mpi.fail(f"{found} hides the installed scaling: rename it, or start in another folder")
    sys.path.append(here)  # where scaling moves it: a random.py in it is not Python's own
    specs = {name: importlib.util.find_spec(name) for name in NEEDED}
    # No origin: a folder that is called so.
    lacking = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if lacking:
        _mpi.fail(
            f"scaling is not installed in {sys.prefix} (no {', '.join(lacking)}): ./launch/local installs it, or "
            "activate the environment that has it"
        )


def is_ours(spec: ModuleSpec | None) -> bool:
    """Whether this is the package that has `scaling.run`, and no other module or folder of its name."""
    return spec is not None and spec.origin is not None and Path(spec.origin).with_name("run").is_dir()


# ---------------------------------------------------------------- the environment


def python_first(environ: dict[str, str]) -> dict[str, str]:
    """The environment with this Python before all others on PATH."""
    python = Path(sys.executable)
    if shutil.which(python.name) == str(python):
        return environ
    return {**environ, "PATH": os.pathsep.join((str(python.parent), environ.get("PATH", os.defpath)))}


def located(words: list[str], call: Call) -> list[str]:
    """The words with the paths of programs that are this environment's: Open MPI 4 puts its own folder before all
    others on PATH, and there may be a Python in it, as in /usr/bin."""
    folder = Path(sys.executable).parent
    bare = [place for place in call.programs if "/" not in words[place]]
    found = {place: str(folder / words[place]) for place in bare if (folder / words[place]).is_file()}
    return [found.get(place, word) for place, word in enumerate(words)]


def renamed(mpi: str) -> dict[str, str]:
    """What is set for Open MPI 4 and has another name in 5; what is set already stays."""
    if mpi != "openmpi5":
        return {}
    told = {new: os.environ[old] for old, new in RENAMED.items() if old in os.environ}
    return {name: value for name, value in (SHORT | told).items() if name not in os.environ} if told else {}


def exports(environ: dict[str, str], call: Call) -> list[str]:
    """`-x NAME` for all that ranks need of the environment; what the call exports already stays the call's."""
    names = sorted(name for name, value in environ.items() if is_for_all(name, value))
    return [word for name in names if name not in call.exported for word in ("-x", name)]


def is_for_all(name: str, value: str) -> bool:
    """Whether a variable of this node is meant for ranks on all."""
    if name.endswith(OWN):
        return value in NONE_AT_ALL
    return name in NAMES or name.startswith(PREFIXES)
