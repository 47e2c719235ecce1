"""A Slurm of Debian's packages on this host alone: munged, slurmctld and a slurmd per node, all in one folder.

No systemd, no accounting, no user but root. Debian's Slurm wants a host for each node, so each slurmd has a UTS
namespace with a host name of its own, which lasts as long as its processes. Daemons run in the foreground and are
ended by their process ids.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from scaling.records.point import Record
from tests.support import debian
from tests.support.ranks import free_ports
from tests.support.waiting import eventually

# The last one for the name without a version by which Slurm's plugin loads the library.
PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client", "libpmix-dev")
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch")
LIMIT_S = 120
CONFIGURATION = """\
ClusterName=scaling
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
MailProg=/bin/true
ReturnToService=2
KillWait=2
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Gres=gpu:{gpus}\n"
PARTITION = "PartitionName=all Nodes=ALL Default=YES State=UP\n"


def missing() -> str | None:
    """Install what is not there. Why there can be no Slurm here, or None."""
    if os.geteuid() != 0:
        return "only root may install and start Slurm"
    if all(map(shutil.which, COMMANDS)) and list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        return None
    return debian.install(*PACKAGES)


class Cluster(Record, frozen=True, kw_only=True):
    """A running Slurm: the folder with all of its files, and the variables that its commands need."""

    folder: Path
    environ: dict[str, str]

    def run(self, *command: str, cwd: Path | None = None, **environ: str) -> str:
        """What a command of Slurm prints; AssertionError with what it says where it fails. Jobs inherit the
        environment, but nothing that is set here for MPIs."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PRTE_"))}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=cwd, timeout=LIMIT_S,
            env={**base, **self.environ, **environ},
        )  # fmt: skip
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self.logs()}"
        return done.stdout

    def wait(self, job: str) -> str:
        """Wait for a job's end; its state and exit code, as `COMPLETED 0:0`."""
        fields = eventually(
            lambda: self._ended(job), lambda: f"{self._fields(job)}{self.logs()}", within_s=LIMIT_S, every_s=0.1
        )
        return f"{fields['JobState']} {fields['ExitCode']}"

    def _ended(self, job: str) -> dict[str, str]:
        fields = self._fields(job)
        on = fields["JobState"] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        return {} if on else fields

    def _fields(self, job: str) -> dict[str, str]:
        return dict(word.partition("=")[::2] for word in self.run("scontrol", "-o", "show", "job", job).split())

    def logs(self) -> str:
        """The end of every daemon's log."""
        return "".join(
            f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log"))
        )


@contextlib.contextmanager
def cluster(nodes: Sequence[str], cpus: int, gpus: int) -> Iterator[Cluster]:
    """A Slurm of these nodes, each said to have so many CPUs and GPUs. Asserts that nothing of it outlives it."""
    # Not under pytest's folder: a socket's path has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    configure(folder, nodes, cpus, gpus)
    environ = {"SLURM_CONF": str(folder / "slurm.conf")}
    key, sockets = folder / "munge.key", folder / "munge.socket"
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={sockets}"]
    munged += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "seed")] + ["--syslog"]
    name_and_run = 'hostname "$0"; exec slurmd -D -f "$1"'
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.enter_context(daemon(folder, "munged", munged, environ))
        eventually(sockets.exists, within_s=LIMIT_S)
        stack.enter_context(daemon(folder, "slurmctld", ["slurmctld", "-D", "-f", environ["SLURM_CONF"]], environ))
        for node in nodes:
            command = ["unshare", "--uts", "sh", "-c", name_and_run, node, environ["SLURM_CONF"]]
            stack.enter_context(daemon(folder, node, command, environ))
        started = Cluster(folder=folder, environ=environ)
        idle(started, len(nodes))
        yield started


def configure(folder: Path, nodes: Sequence[str], cpus: int, gpus: int) -> None:
    """Write the files that all daemons and commands read."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    port, *ports = free_ports(1 + len(nodes))
    text = CONFIGURATION.format(host=os.uname().nodename, port=port, folder=folder)
    for name, each in zip(nodes, ports, strict=True):
        (folder / f"tmp-{name}").mkdir()  # the sockets of PMIx: nodes do not share a /tmp
        text += NODE.format(name=name, port=each, cpus=cpus, gpus=gpus)
    (folder / "slurm.conf").write_text(text + PARTITION)
    for index in range(gpus):
        os.mknod(folder / f"gpu{index}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # another /dev/null
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n")
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")


@contextlib.contextmanager
def daemon(folder: Path, name: str, command: Sequence[str], environ: dict[str, str]) -> Iterator[None]:
    """A daemon in the foreground; at the end it and its children are gone."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **environ},
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children, timeout=5)


def idle(started: Cluster, nodes: int) -> None:
    """Wait until all nodes have reported themselves."""
    wanted = ["idle"] * nodes
    eventually(lambda: states(started) == wanted, started.logs, within_s=LIMIT_S, every_s=0.1)


def states(started: Cluster) -> list[str]:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True, check=False,
        env={**os.environ, **started.environ},
    )  # fmt: skip
    return done.stdout.split()
