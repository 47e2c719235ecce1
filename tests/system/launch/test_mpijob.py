"""launch/mpijob.yaml against what Kubeflow's MPI operator takes beyond its CRD, and its launcher in such a pod.

The CRD's own check is in tests/system/containers/test_files.py. The facts are from
https://github.com/kubeflow/mpi-operator: pkg/apis/kubeflow/validation/validation.go, sdk/python/v2beta1/docs/
(V2beta1RunPolicy.md), pull request 670 (launcherCreationPolicy), pkg/controller/mpi_job_controller.go (variables
and hostfile of the launcher).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.run import flags
from scaling.run.invocation import resolve
from tests.support.fresh_machine import REPOSITORY, Machine
from tests.support.stub_mpirun import OPENMPI4, OPENMPI5, launched

IMAGE_ROOT = "/scaling"


@pytest.fixture
def job() -> dict[str, Any]:
    loaded: dict[str, Any] = next(yaml.safe_load_all((REPOSITORY / "launch/mpijob.yaml").read_text()))
    return loaded


def pod(job: dict[str, Any], role: str) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
    return spec


def launcher_words(job: dict[str, Any]) -> list[str]:
    (container,) = pod(job, "Launcher")["containers"]
    return [*container["command"], *container["args"]]


def test_the_operators_validation_takes_it(job: dict[str, Any]) -> None:
    """The name of a pod is <name>-worker-<n>, a DNS label."""
    spec = job["spec"]
    roles = spec["mpiReplicaSpecs"]
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?", job["metadata"]["name"])
    assert spec["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All") and spec["slotsPerWorker"] > 0
    assert (
        roles.keys() == {"Launcher", "Worker"}
        and roles["Launcher"]["replicas"] == 1 <= roles["Worker"]["replicas"]
    )
    for role, one in roles.items():
        assert one["restartPolicy"] in ("Never", "OnFailure") and pod(job, role)["containers"]


@pytest.mark.parametrize("role", ["Launcher", "Worker"])
def test_containers_are_whole_and_mount_what_there_is(job: dict[str, Any], role: str) -> None:
    for container in pod(job, role)["containers"]:
        assert {"name", "image", "command", "resources"} <= set(container)
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod(job, role).get("volumes", ())}


def test_workers_wait_for_ssh_on_nodes_of_their_own(job: dict[str, Any]) -> None:
    (container,) = pod(job, "Worker")["containers"]
    assert container["command"][:2] == ["/usr/sbin/sshd", "-De"]
    assert job["spec"]["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert container["readinessProbe"]["tcpSocket"]["port"] > 1023
    (spread,) = pod(job, "Worker")["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == {
        "training.kubeflow.org/job-name": job["metadata"]["name"],
        "training.kubeflow.org/job-role": "worker",
    }
    assert container["resources"]["requests"]["cpu"] >= job["spec"]["slotsPerWorker"]


def test_the_launcher_runs_what_there_is_with_flags_that_there_are(job: dict[str, Any]) -> None:
    program, *words = launcher_words(job)
    assert program == f"{IMAGE_ROOT}/launch/mpirun" and os.access(REPOSITORY / "launch/mpirun", os.X_OK)
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
    name, count = job["metadata"]["name"], job["spec"]["slotsPerWorker"]
    workers = range(job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"])
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
