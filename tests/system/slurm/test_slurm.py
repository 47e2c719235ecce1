"""launch/slurm.sbatch, submitted for real to a Slurm of two nodes on this host.

Debian's munged, slurmctld and a slurmd per node run in one folder, without systemd and accounting. Debian's Slurm
wants a host for each node, so each slurmd has a UTS namespace with a host name of its own, which lasts as long as
its processes. Daemons run in the foreground and are ended by their process ids.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from scaling.records import store
from scaling.records.point import Record
from tests.support import debian, moments
from tests.support.fresh_machine import REPOSITORY
from tests.support.matrix import cases
from tests.support.mpis import MPIS, Mpi
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
            lambda: self._ended(job), lambda: f"{self.fields(job)}{self.logs()}", within_s=LIMIT_S, every_s=0.1
        )
        return f"{fields['JobState']} {fields['ExitCode']}"

    def _ended(self, job: str) -> dict[str, str]:
        fields = self.fields(job)
        on = fields["JobState"] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        return {} if on else fields

    def fields(self, job: str) -> dict[str, str]:
        return dict(word.partition("=")[::2] for word in self.run("scontrol", "-o", "show", "job", job).split())

    def logs(self) -> str:
        """The end of every daemon's log."""
        return "".join(
            f"\n--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log"))
        )


@contextlib.contextmanager
def running(nodes: Sequence[str], cpus: int, gpus: int) -> Iterator[Cluster]:
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


SCRIPT = REPOSITORY / "launch" / "slurm.sbatch"
NODES = ("slurm-a", "slurm-b")
FAKE = (
    "--strategy", "fake:a", "--world-sizes", "1,4", "--rounds", "1", "--windows", "3", "--window-s", "0.02",
    "--soak-s", "0",
)  # fmt: skip
SLOW = ("--strategy", "fake:a", "--rounds", "50", "--windows", "3", "--window-s", "0.1")
# By name, since both nodes have this host's addresses: `auto` would take them for a bridge's.
CARDS = [
    name
    for name, addresses in psutil.net_if_addrs().items()
    if name != "lo"
    for one in addresses
    if one.family == AF_INET
]
TWO_EACH = ("--ntasks-per-node=2", "--gpus-per-node=2", "--cpus-per-task=1")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if reason := missing() or (None if CARDS else "no network card with an IPv4 address"):
        pytest.skip(reason)
    with running(NODES, cpus=32, gpus=4) as started:
        yield started


def submit(cluster: Cluster, folder: Path, *arguments: str, mpi: Mpi | None = None, **environ: str) -> str:
    """Submit the script from `folder`, two tasks on each node; the job's id."""
    path = os.environ["PATH"] if mpi is None else f"{mpi.mpirun.parent}{os.pathsep}{os.environ['PATH']}"
    wanted = {"SCALING_ROOT": str(REPOSITORY), "VIRTUAL_ENV": sys.prefix, "PATH": path, **environ}
    command = (
        "sbatch",
        "--parsable",
        "--output=%j.out",
        *TWO_EACH,
        str(SCRIPT),
        "--interconnect",
        CARDS[0],
        *arguments,
    )
    return cluster.run(*command, cwd=folder, **wanted).strip()


def output(folder: Path, job: str) -> str:
    return (folder / f"{job}.out").read_text()


@pytest.mark.parametrize(
    ("launcher", "mpi"),
    cases([("", MPIS[0]), ("", MPIS[1]), ("srun", MPIS[1])], [("", MPIS[0]), ("srun", MPIS[1])]),
    ids=str,
)
def test_a_rank_per_task_on_both_nodes(cluster: Cluster, tmp_path: Path, launcher: str, mpi: Mpi) -> None:
    job = submit(cluster, tmp_path, *FAKE, mpi=mpi, SCALING_LAUNCHER=launcher)
    assert cluster.wait(job) == "COMPLETED 0:0", output(tmp_path, job)
    table = output(tmp_path, job)
    assert re.search(r"hosts slurm-a slurm-b", table), table
    for size in (1, 4):
        assert re.search(rf"^ +{size}  ", table, re.MULTILINE), table


def bare(cluster: Cluster, folder: Path, plugin: str, mpi: Mpi) -> str:
    """What `srun` itself prints, started by hand on both nodes, and its exit code."""
    words = [sys.executable, "-m", "scaling.run", *FAKE[:2], "--interconnect", CARDS[0], "--dry-run"]
    command = f"srun --mpi={plugin} -N 2 -n 2 {shlex.join(words)} 2>&1; echo code $?"
    library = mpi.environ(2).get("MPI4PY_LIBMPI", "")
    return cluster.run("sh", "-c", command, cwd=folder, MPI4PY_LIBMPI=library, PYTHONPATH=str(REPOSITORY))


@pytest.mark.parametrize(("plugin", "mpi"), [("pmix", MPIS[1]), ("pmi2", MPIS[2])], ids=str)
def test_srun_alone_starts_one_launch(cluster: Cluster, tmp_path: Path, plugin: str, mpi: Mpi) -> None:
    said = bare(cluster, tmp_path, plugin, mpi)
    assert "2 ranks on 2 hosts" in said
    assert said.endswith("code 0\n"), said


def test_srun_without_any_pmi_starts_one_launch_without_mpi(cluster: Cluster, tmp_path: Path) -> None:
    """None of MPI can be imported: ranks talk over ZeroMQ, with the secret in a file."""
    (tmp_path / "absent" / "mpi4py").mkdir(parents=True)
    (tmp_path / "absent" / "mpi4py" / "__init__.py").write_text("raise ImportError('there is no MPI here')\n")
    words = [sys.executable, "-m", "scaling.run", *FAKE[:2], *FAKE[4:], "--interconnect", CARDS[0], "--no-page"]
    command = f"srun --mpi=none -N 2 -n 2 {shlex.join(words)} 2>&1; echo code $?"
    path = f"{tmp_path / 'absent'}{os.pathsep}{REPOSITORY}"
    said = cluster.run(
        "sh", "-c", command, cwd=tmp_path, PYTHONPATH=path, SCALING_COORDINATOR=f"127.0.0.1:{free_ports(1)[0]}"
    )
    assert said.endswith("code 0\n") and re.search(r"^scaling: fake:a N=2 ", said, re.MULTILINE), said
    assert "hosts slurm-a slurm-b" in said


@pytest.mark.parametrize("plugin", cases(["none", "pmi2"], ["none"]))
def test_srun_starts_a_torchrun_on_each_node(cluster: Cluster, tmp_path: Path, plugin: str) -> None:
    """Two ranks each: the numbers of torchrun count, not those of srun's tasks or their PMI."""
    port, own = free_ports(2)
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"),
        *("--node-rank", "NODE", "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "scaling.run"),
        *(*FAKE[:2], "--interconnect", CARDS[0], "--dry-run"),
    ]
    words = shlex.join(torchrun).replace("NODE", "$SLURM_PROCID")
    command = f"srun --mpi={plugin} -N 2 -n 2 sh -c {shlex.quote(words)} 2>&1; echo code $?"
    said = cluster.run(
        "sh", "-c", command, cwd=tmp_path, PYTHONPATH=str(REPOSITORY), SCALING_COORDINATOR=f"127.0.0.1:{own}"
    )
    assert said.endswith("code 0\n") and "launch: 4 ranks on 2 hosts" in said, said
    assert said.count("ranks: by torchrun (RANK, WORLD_SIZE), inside srun\n") == 1


def test_what_an_earlier_launch_left_in_the_shell_is_older_than_srun(cluster: Cluster, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "scaling.run", *FAKE[:2], "--interconnect", CARDS[0], "--dry-run"]
    command = f"srun --mpi=none -N 2 -n 2 {shlex.join(words)} 2>&1; echo code $?"
    said = cluster.run(
        "sh", "-c", command, cwd=tmp_path, PYTHONPATH=str(REPOSITORY), PMI_RANK="0", PMI_SIZE="1",
        SCALING_COORDINATOR=f"127.0.0.1:{free_ports(1)[0]}",
    )  # fmt: skip
    assert said.endswith("code 0\n") and said.count("launch: 2 ranks on 2 hosts") == 1, said


@pytest.fixture(scope="module")
def life(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> moments.Life:
    def srun(folder: Path, environ: Mapping[str, str]) -> moments.Launch:
        own = {**environ, **cluster.environ, "SCALING_COORDINATOR": f"127.0.0.1:{free_ports(1)[0]}"}
        words = ("srun", "--mpi=none", "-N", "2", "-n", "2", *moments.COMMAND, "--interconnect", CARDS[0])
        return moments.started(folder, own, words)

    return moments.Life(srun, tmp_path_factory.mktemp("srun"))


@pytest.mark.parametrize("number", cases(range(moments.COUNT), [21]))
def test_a_signal_at_a_moment_ends_all_tasks(life: moments.Life, tmp_path: Path, number: int) -> None:
    life.ends(tmp_path, number)


def test_srun_with_a_pmi_that_the_mpi_does_not_speak_is_refused_once(cluster: Cluster, tmp_path: Path) -> None:
    """Each task would write a table of its own, of one rank."""
    said = bare(cluster, tmp_path, "pmi2", MPIS[1])
    assert said.count("scaling: error: srun started 2 ranks, and in mpi4py's MPI (Open MPI v5") == 1, said
    assert "start them by: srun --mpi=pmix -n 2 python -m scaling.run ..." in said
    assert said.endswith("code 2\n"), said


def test_slurm_would_start_the_script_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("sbatch", "--test-only", str(SCRIPT), "--strategy", "torch:nccl", cwd=tmp_path)


def lines_of_run(folder: Path) -> int:
    return max((len(run.read_bytes().splitlines()) for run in folder.glob("results/*/run.jsonl")), default=0)


def test_a_requeued_job_resumes_its_run_and_appends_to_its_output(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, *FAKE, "--kinds", "exchange", "--rounds", "4", mpi=MPIS[0])
    eventually(lambda: lines_of_run(tmp_path) > 2, lambda: output(tmp_path, job), within_s=LIMIT_S)
    cluster.run("scontrol", "requeue", job)
    # Slurm holds a requeued job back for two minutes.
    eventually(lambda: cluster.fields(job)["JobState"] == "PENDING", lambda: cluster.fields(job), every_s=0.1)
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert cluster.wait(job) == "COMPLETED 0:0", output(tmp_path, job)
    assert cluster.fields(job)["Restarts"] == "1"
    said = output(tmp_path, job)
    assert said.count(" points planned") == 2, said
    (run,) = tmp_path.glob("results/*")
    _, records = store.load(run)
    assert sorted((record.point.world_size, record.point.round) for record in records) == [
        (size, round_) for size in (1, 4) for round_ in range(4)
    ]


def test_its_own_lines_are_those_of_a_gpu_cluster(cluster: Cluster, tmp_path: Path) -> None:
    wanted = {"SCALING_ROOT": str(REPOSITORY), "VIRTUAL_ENV": sys.prefix, "SCALING_LAUNCHER": "nobody"}
    job = cluster.run("sbatch", "--parsable", "--output=%j.out", str(SCRIPT), cwd=tmp_path, **wanted).strip()
    shown = cluster.run("scontrol", "-o", "show", "job", job)
    for words in ("NumNodes=2", "NumCPUs=64 NumTasks=8 CPUs/Task=8", "TresPerNode=gres:gpu:4", "JobName=scaling"):
        assert words in shown
    assert cluster.wait(job) == "FAILED 2:0"
    assert output(tmp_path, job) == "launch: SCALING_LAUNCHER=nobody: neither mpirun nor srun\n"


def test_a_failed_point_is_the_jobs_exit_code(cluster: Cluster, tmp_path: Path) -> None:
    fails = ("--option", "fail=segfault", "--option", "fail_world=4", "--option", "fail_rank=3")
    job = submit(cluster, tmp_path, *FAKE, *fails, mpi=MPIS[0])
    assert cluster.wait(job) == "FAILED 1:0"
    assert "crash(SIGSEGV)" in output(tmp_path, job)


def test_a_folder_that_is_not_the_repository(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, *FAKE, SCALING_ROOT="")
    assert cluster.wait(job) == "FAILED 2:0"
    (line,) = output(tmp_path, job).splitlines()
    assert (
        line == f"launch: {tmp_path} is not the repository of scaling: submit from its root, or set SCALING_ROOT"
    )


def test_the_signal_before_the_time_is_up_ends_it_with_the_table(cluster: Cluster, tmp_path: Path) -> None:
    job = submit(cluster, tmp_path, *SLOW, mpi=MPIS[0])
    eventually(lambda: lines_of_run(tmp_path) > 1, lambda: output(tmp_path, job), within_s=LIMIT_S)
    cluster.run("scancel", "--batch", "--signal=TERM", job)
    assert cluster.wait(job) == "FAILED 143:0", output(tmp_path, job)
    assert "interrupted after " in output(tmp_path, job)


# ---------------------------------------------------------------- the script without a Slurm


@pytest.mark.parametrize(
    ("given", "restarts", "started"),
    [
        ("--model m", "0", "scaling.run --name slurm-7 --model m"),
        ("--model m", "1", "scaling.run --resume results/1-slurm-7"),
        ("--name n --results=kept --model m", "1", "scaling.run --resume kept/2-n"),
        ("--name=n --results kept -- train.py --name o", "1", "scaling.run --resume kept/2-n"),
        ("--name o", "1", "scaling.run --name o"),
        ("run", "0", "scaling.run --name slurm-7"),
        ("run --rounds 2 -- run.py check", "0", "scaling.run --name slurm-7 --rounds 2 -- run.py check"),
        ("run --model m", "1", "scaling.run --resume results/1-slurm-7"),
        ("bisect --noise 3", "1", "scaling bisect --noise 3"),
        ("check --json", "1", "scaling check --json"),
        ("certify --line 0.9", "0", "scaling certify --line 0.9"),
    ],
)
def test_the_script_starts_a_command_or_resumes_the_run_of_a_requeued_job(
    tmp_path: Path, given: str, restarts: str, started: str
) -> None:
    for run in ("results/1-slurm-7", "kept/2-n"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "run.jsonl").write_text("{}\n")
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "srun").chmod(0o755)
    done = scripted(tmp_path, given.split(), SLURM_JOB_ID="7", SLURM_NTASKS="2", SLURM_RESTART_COUNT=restarts)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f" -m {started}\n")


def test_the_script_outside_of_a_job_says_how_to_submit_it(tmp_path: Path) -> None:
    done = scripted(tmp_path, [])
    assert done.returncode == 2
    assert done.stderr == "launch: this is no job of Slurm with tasks: sbatch launch/slurm.sbatch\n"


def scripted(folder: Path, words: Sequence[str], **environ: str) -> subprocess.CompletedProcess[str]:
    ours = {"SCALING_ROOT": str(REPOSITORY), "VIRTUAL_ENV": sys.prefix, "SCALING_LAUNCHER": "srun"}
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPT), *words], cwd=folder, env={"PATH": path, "HOME": str(folder), **ours, **environ},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
