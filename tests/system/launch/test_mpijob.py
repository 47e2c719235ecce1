"""launch/mpijob.yaml against what Kubeflow's MPI operator takes, and what its launcher does in such a pod.

The facts are from https://github.com/kubeflow/mpi-operator: pkg/apis/kubeflow/validation/validation.go,
charts/mpi-operator/templates/mpijob-crd.yaml (schema of v2beta1), sdk/python/v2beta1/docs/ (V2beta1MPIJobSpec.md,
V2beta1RunPolicy.md: MPICH), pull request 670 (launcherCreationPolicy), pkg/controller/mpi_job_controller.go
(variables and hostfile of the launcher).
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.run import flags
from scaling.run.invocation import resolve
from tests.support.fresh_machine import REPOSITORY, Machine
from tests.support.stub_mpirun import OPENMPI4, OPENMPI5, launched

FILE = REPOSITORY / "launch" / "mpijob.yaml"
IMAGE_ROOT = "/scaling"


def one_of(*values: str) -> Callable[[Any], bool]:
    return lambda value: value in values


def number(least: int, most: float = float("inf")) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def some(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0


def text(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


# Path -> what may stand there: fields of an object (a `!`: must be there), or a test of the value.
SCHEMA: dict[str, Any] = {
    "": {"apiVersion!", "kind!", "metadata!", "spec!"},
    "apiVersion": one_of("kubeflow.org/v2beta1"),
    "kind": one_of("MPIJob"),
    # The name of a pod is <name>-worker-<n>, a DNS label.
    "metadata.name": text(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?"),
    "spec": {
        *("slotsPerWorker", "runPolicy!", "mpiReplicaSpecs!", "sshAuthMountPath", "mpiImplementation"),
        "launcherCreationPolicy",
    },
    "spec.slotsPerWorker": number(1),
    "spec.sshAuthMountPath": text("/.+"),
    "spec.mpiImplementation": one_of("OpenMPI", "Intel", "MPICH"),
    "spec.launcherCreationPolicy": one_of("AtStartup", "WaitForWorkersReady"),
    "spec.runPolicy": {
        *("cleanPodPolicy!", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "suspend"),
        *("managedBy", "schedulingPolicy"),
    },
    "spec.runPolicy.cleanPodPolicy": one_of("None", "Running", "All"),
    "spec.runPolicy.ttlSecondsAfterFinished": number(0),
    "spec.runPolicy.activeDeadlineSeconds": number(0),
    "spec.runPolicy.backoffLimit": number(0),
    "spec.mpiReplicaSpecs": {"Launcher!", "Worker!"},
    "spec.mpiReplicaSpecs.Launcher": {"replicas!", "restartPolicy", "template!"},
    "spec.mpiReplicaSpecs.Launcher.replicas": number(1, 1),
    "spec.mpiReplicaSpecs.Launcher.restartPolicy": one_of("Never", "OnFailure"),
    "spec.mpiReplicaSpecs.Launcher.template.spec.containers": some,
    "spec.mpiReplicaSpecs.Worker": {"replicas!", "restartPolicy", "template!"},
    "spec.mpiReplicaSpecs.Worker.replicas": number(1),
    "spec.mpiReplicaSpecs.Worker.restartPolicy": one_of("Never", "OnFailure"),
    "spec.mpiReplicaSpecs.Worker.template.spec.containers": some,
}
ABSENT = object()


def at(job: dict[str, Any], path: str) -> Any:
    """What stands at a path; ABSENT where nothing does."""
    found: Any = job
    for name in path.split(".") if path else ():
        found = found.get(name, ABSENT) if isinstance(found, dict) else ABSENT
    return found


def problems(job: dict[str, Any]) -> Iterator[str]:
    for path, wanted in SCHEMA.items():
        found = at(job, path)
        if isinstance(wanted, set):
            fields = set(found) if isinstance(found, dict) else set()
            needed = {name.removesuffix("!") for name in wanted if name.endswith("!")}
            yield from (f"{path}.{name}" for name in needed - fields)
            yield from (f"{path}.{name}" for name in fields - {name.removesuffix("!") for name in wanted})
        elif found is not ABSENT and not wanted(found):
            yield path


@pytest.fixture
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = next(yaml.safe_load_all(FILE.read_text()))
    return loaded


def pod(job: dict[str, Any], role: str) -> dict[str, Any]:
    spec: dict[str, Any] = at(job, f"spec.mpiReplicaSpecs.{role}.template.spec")
    return spec


def launcher_words(job: dict[str, Any]) -> list[str]:
    (container,) = pod(job, "Launcher")["containers"]
    return [*container["command"], *container["args"]]


def test_the_operator_would_take_it(job: dict[str, Any]) -> None:
    assert list(problems(job)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("apiVersion", "kubeflow.org/v1"),
        ("metadata.name", "Scaling_1"),
        ("spec.slotsPerWorker", "4"),
        ("spec.slotsPerWorker", 0),
        ("spec.cleanPodPolicy", "Running"),
        ("spec.runPolicy.cleanPodPolicy", "Always"),
        ("spec.mpiImplementation", "openmpi"),
        ("spec.mpiReplicaSpecs.Launcher.replicas", 2),
        ("spec.mpiReplicaSpecs.Worker.restartPolicy", "Always"),
        ("spec.mpiReplicaSpecs.Worker.template.spec.containers", []),
    ],
)
def test_a_mistake_would_be_found(job: dict[str, Any], path: str, value: Any) -> None:
    wrong = copy.deepcopy(job)
    folder, _, name = path.rpartition(".")
    at(wrong, folder)[name] = value
    assert list(problems(wrong)) == [path]


@pytest.mark.parametrize("path", ["spec.runPolicy.cleanPodPolicy", "spec.mpiReplicaSpecs.Worker.replicas", "kind"])
def test_an_omission_would_be_found(job: dict[str, Any], path: str) -> None:
    folder, _, name = path.rpartition(".")
    del at(job, folder)[name]
    assert [found.lstrip(".") for found in problems(job)] == [path]


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_containers_are_whole_and_mount_what_there_is(job: dict[str, Any], role: str) -> None:
    for container in pod(job, role)["containers"]:
        assert {"name", "image", "command", "resources"} <= set(container)
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod(job, role).get("volumes", ())}


def test_workers_wait_for_ssh_on_nodes_of_their_own(job: dict[str, Any]) -> None:
    (container,) = pod(job, "Worker")["containers"]
    assert container["command"][:2] == ["/usr/sbin/sshd", "-De"]
    assert at(job, "spec.launcherCreationPolicy") == "WaitForWorkersReady"
    assert container["readinessProbe"]["tcpSocket"]["port"] > 1023
    (spread,) = pod(job, "Worker")["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {
        "training.kubeflow.org/job-name": job["metadata"]["name"],
        "training.kubeflow.org/job-role": "worker",
    }
    assert container["resources"]["requests"]["cpu"] >= at(job, "spec.slotsPerWorker")


def test_the_launcher_runs_what_there_is_with_flags_that_there_are(job: dict[str, Any]) -> None:
    program, *words = launcher_words(job)
    path = REPOSITORY / Path(program).relative_to(IMAGE_ROOT)
    assert path == REPOSITORY / "launch" / "mpirun"
    assert os.access(path, os.X_OK)
    assert words[:4] == ["python", "-m", "scaling", "run"]
    results = Path(resolve(flags.parse(words[4:])).results)
    mounts = pod(job, "Worker")["containers"][0]["volumeMounts"]
    assert results in {Path(mount["mountPath"]) for mount in mounts}


@pytest.mark.parametrize(
    ("version", "variable"),
    [(OPENMPI4, "OMPI_MCA_orte_default_hostfile"), (OPENMPI5, "PRTE_MCA_prte_default_hostfile")],
    ids=["openmpi4", "openmpi5"],
)
def test_in_the_operators_pod_all_slots_of_its_hostfile_are_used(
    machine: Machine, job: dict[str, Any], tmp_path: Path, version: str, variable: str
) -> None:
    machine.mpirun(version)
    name, count = job["metadata"]["name"], at(job, "spec.slotsPerWorker")
    workers = range(at(job, "spec.mpiReplicaSpecs.Worker.replicas"))
    hosts = tmp_path / "hostfile"
    hosts.write_text("".join(f"{name}-worker-{n}.{name}.default.svc slots={count}\n" for n in workers))
    operators = {
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": str(hosts),
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    call = launched(machine, *launcher_words(job)[1:], **operators)
    assert call["environ"][variable] == str(hosts)
    assert "-np" not in call["argv"]
    assert call["argv"][-len(launcher_words(job)) + 2 :] == launcher_words(job)[2:]
