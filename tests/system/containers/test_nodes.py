"""Containers of the image as the pods of launch/mpijob.yaml: a launcher and two workers, each a node of a lab.

Names, keys and variables are those of Kubeflow's MPI operator (newSSHAuthSecret, newConfigMap and ompiEnvVars in
its pkg/controller/mpi_job_controller.go): workers are called NAME-worker-N.NAME.NAMESPACE.svc, and their host
names have no dots.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.containers import Store
from tests.support.fresh_machine import REPOSITORY
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(900)
NODES = ("node1", "node2")
FEW = (
    "--verbose", "--rounds", "1", "--windows", "3", "--window-s", "0.05", "--soak-s", "0", "--world-sizes", "1,2",
)  # fmt: skip


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = next(yaml.safe_load_all((REPOSITORY / "launch" / "mpijob.yaml").read_text()))
    return loaded


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with labs.lab("pods", nics=("eth0=1gbit",)) as made:
        yield made


def pod(job: dict[str, Any], role: str) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return spec


def secret(folder: Path) -> Path:
    """The keys as the operator makes and Kubernetes mounts them: of root, read by all."""
    folder.mkdir()
    key = folder / "id_rsa"
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", str(key)]
    subprocess.run(words, check=True)
    (folder / "authorized_keys").write_text((folder / "id_rsa.pub").read_text())
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


class Pods:
    def __init__(self, kept: Store, image: str, lab: Lab, job: dict[str, Any], folder: Path) -> None:
        self.kept, self.image, self.lab, self.job = kept, image, lab, job
        self.keys, self.hostfile = secret(folder / "keys"), folder / "hostfile"
        self.hosts = {f"{self.name}-worker-{n}": node for n, node in enumerate(NODES)}
        self.hostfile.write_text("".join(f"{self.full(host)} slots=1\n" for host in self.hosts))

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    def full(self, host: str) -> str:
        return f"{host}.{self.name}.default.svc"

    def flags(self, role: str, host: str, node: str) -> tuple[str, ...]:
        """How a runtime starts the pod: its user, its place on the network, its keys."""
        user = pod(self.job, role)["securityContext"]
        (nic,) = self.lab.nics
        names = [f"--add-host={self.full(one)}:{nic.address(n)}" for n, one in enumerate(self.hosts, 1)]
        holder = self.lab.holder
        return (
            *("--network", f"ns:/proc/{holder.program.pid}/fd/{holder.namespaces[node]['net']}"),
            *("--hostname", host, "--user", f"{user['runAsUser']}:{user['runAsGroup']}", *names),
            *("--volume", f"{self.keys}:{self.job['spec']['sshAuthMountPath']}:ro"),
        )

    @contextmanager
    def worker(self, host: str) -> Iterator[None]:
        (container,) = pod(self.job, "Worker")["containers"]
        node = self.hosts[host]
        command = self.kept.command(
            self.image, *container["command"], flags=("--name", host, *self.flags("Worker", host, node))
        )
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            eventually(lambda: self.listens(node), lambda: process.stdout and process.stdout.read(), of=process)
            yield
        finally:
            self.kept.podman("rm", "--force", "--time", "0", "--ignore", host)
            process.wait(20)
            if process.stdout:
                process.stdout.close()

    def listens(self, node: str) -> bool:
        """Whether anybody waits at the port of the probe."""
        port = pod(self.job, "Worker")["containers"][0]["readinessProbe"]["tcpSocket"]["port"]
        table = labs.on(self.lab, node, "cat", "/proc/net/tcp").stdout
        return f":{port:04X} 00000000:0000 0A" in table

    def launch(self, *words: str, command: Sequence[str] = ()) -> str:
        """What the launcher prints: its own command, or another, with these arguments."""
        (container,) = pod(self.job, "Launcher")["containers"]
        variables = {
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        }
        flags = (
            *self.flags("Launcher", f"{self.name}-launcher", NODES[0]),
            *("--volume", f"{self.hostfile}:/etc/mpi/hostfile:ro", "--workdir", container["workingDir"]),
            *(f"--env={name}={value}" for name, value in variables.items()),
        )
        return self.kept.run(self.image, *(command or container["command"]), *words, flags=flags, within_s=240)


@pytest.fixture(scope="module")
def pods(
    kept: Store, image: str, lab: Lab, job: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pods]:
    made = Pods(kept, image, lab, job, tmp_path_factory.mktemp("pods"))
    with ExitStack() as stack:
        for host in made.hosts:
            stack.enter_context(made.worker(host))
        yield made


def test_two_pods_are_two_nodes_and_their_network_is_verified(pods: Pods, strategy: str) -> None:
    (container,) = pod(pods.job, "Launcher")["containers"]
    table = pods.launch(*container["args"], "--strategy", strategy, *FEW)
    assert re.search(r"\(2 hosts, 2 ranks", table), table
    assert all(host in table for host in pods.hosts), table
    assert strategy == "fake:a" or re.search(r"\bVERIFIED\b", table), table


def test_what_ssh_starts_has_the_images_environment(pods: Pods) -> None:
    """Else a bare mpirun finds neither its daemon nor Python there, and CUDA no driver on some clusters' nodes."""
    asked = "command -v python; command -v mpirun; echo $LD_LIBRARY_PATH; hostname; id -un"
    here = pods.launch("-c", asked, command=("sh",)).split()
    there = pods.launch(pods.full("scaling-worker-1"), asked, command=("ssh",)).split()
    assert here[:2] == ["/opt/scaling/venv/bin/python", "/opt/scaling/venv/bin/mpirun"]
    assert there == [*here[:3], "scaling-worker-1", "mpiuser"]
