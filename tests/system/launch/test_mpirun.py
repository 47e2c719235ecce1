"""launch/mpirun on a machine of stubs: what each MPI is called with, slots and hostfiles."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.fresh_machine import Machine, usable_cores
from tests.support.stub_mpirun import (
    INTEL,
    MPICH,
    NAMES,
    OPENMPI,
    OPENMPI4,
    OPENMPI5,
    PROGRAM,
    every_mpi,
    launched,
    mpi_variables,
    refused,
)

ROOT = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1") if not os.geteuid() else {}
ALWAYS = {
    OPENMPI4: {"OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1", **ROOT},
    OPENMPI5: {"PRTE_MCA_hwloc_default_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1", **ROOT},
    MPICH: {},
    INTEL: {"I_MPI_PIN": "0"},
}
CROWDED = "PRTE_MCA_rmaps_default_mapping_policy"

# ---------------------------------------------------------------- what is added


@every_mpi
def test_variables_for_each_mpi(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    environ = launched(machine, "-np", "1", *PROGRAM)["environ"]
    assert mpi_variables(environ) == ALWAYS[version]


@every_mpi
def test_arguments_go_through_as_they_are(machine: Machine, version: str) -> None:
    mpirun = machine.mpirun(version)
    arguments = [
        "-np", "2", "--bind-to", "core", "/bin/python", "-c", "a b; $HOME", "--print", "-np", "9", "--agent",
    ]  # fmt: skip
    argv = launched(machine, *arguments)["argv"]
    assert (argv[0], argv[-len(arguments) :]) == (str(mpirun), arguments)


def test_a_program_of_the_environment_is_called_by_its_path(machine: Machine) -> None:
    machine.mpirun(OPENMPI4)
    arguments = ["-x", "python", "-np", "1", "python", "python", ":", "-n", "1", "python3", ":", "sleep", "1"]
    argv = launched(machine, *arguments)["argv"]
    assert argv[argv.index("-np") + 2 :] == [
        *(f"{sys.prefix}/bin/python", "python", ":", "-n", "1", f"{sys.prefix}/bin/python3", ":", "sleep", "1")
    ]


@pytest.mark.parametrize("version", OPENMPI, ids=NAMES.get)
def test_open_mpi_is_told_what_to_hand_on(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    ours = {"SCALING_FABRIC": "a b", "NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "", "DMLC_INTERFACE": "ib0"}
    argv = launched(machine, "-x", "GLOO_A", "-np", "1", *PROGRAM, **ours, GLOO_A="1", HOROVOD_B="2", SHELL="sh")[
        "argv"
    ]
    told = argv[1 : argv.index("GLOO_A") - 1]
    assert set(told[::2]) == {"-x"}
    always = {"PATH", "PYTHONPATH", "VIRTUAL_ENV", "SCALING_VIEW"}
    assert set(told[1::2]) - {"MPI4PY_LIBMPI", "LD_LIBRARY_PATH"} == always | set(ours) | {"HOROVOD_B"}


@pytest.mark.parametrize("visible", ["0,1", "GPU-8a3f", "-1", ""])
def test_the_gpus_of_this_node_are_not_named_to_others(machine: Machine, visible: str) -> None:
    """But that there are to be none is."""
    machine.mpirun(OPENMPI5)
    environ = {"CUDA_VISIBLE_DEVICES": visible, "PYTORCH_ALLOC_CONF": "a", "OFI_NCCL_PROTOCOL": "RDMA"}
    argv = launched(machine, "-np", "1", *PROGRAM, **environ)["argv"]
    assert ("CUDA_VISIBLE_DEVICES" in argv) is (visible in ("-1", ""))
    assert {"PYTORCH_ALLOC_CONF", "OFI_NCCL_PROTOCOL"} <= set(argv)


@pytest.mark.parametrize("given", ["NCCL_DEBUG", "NCCL_DEBUG=WARN"])
def test_what_the_call_hands_on_itself_is_not_named_twice(machine: Machine, given: str) -> None:
    machine.mpirun(OPENMPI5)
    argv = launched(machine, "-np", "1", "-x", given, *PROGRAM, NCCL_DEBUG="INFO")["argv"]
    assert [word for word in argv if word.startswith("NCCL_DEBUG")] == [given]


@pytest.mark.parametrize("version", [MPICH, INTEL], ids=NAMES.get)
def test_hydra_hands_everything_on_by_itself(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    assert launched(machine, "-np", "1", *PROGRAM, NCCL_DEBUG="INFO")["argv"][1:] == ["-np", "1", *PROGRAM]


NETWORK = {
    OPENMPI4: {
        "OMPI_MCA_oob_tcp_if_include": "lo",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,vader,tcp",
    },
    OPENMPI5: {
        "PRTE_MCA_prte_if_include": "lo",
        "OMPI_MCA_btl_tcp_if_include": "lo",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
    },
    MPICH: {"HYDRA_IFACE": "lo", "FI_TCP_IFACE": "lo", "UCX_NET_DEVICES": "lo"},
    INTEL: {"I_MPI_HYDRA_IFACE": "lo", "I_MPI_OFI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"},
}


@every_mpi
def test_interface(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    environ = launched(machine, "--interface", "lo", "-np", "1", *PROGRAM)["environ"]
    added = {name: value for name, value in environ.items() if value == "lo"} | mpi_variables(environ)
    assert added == ALWAYS[version] | NETWORK[version]


AGENT = {
    OPENMPI4: {"OMPI_MCA_plm_rsh_agent": "{} lab -v"},
    OPENMPI5: {"PRTE_MCA_plm_ssh_agent": "{} lab -v"},
    MPICH: {"HYDRA_LAUNCHER": "rsh", "HYDRA_LAUNCHER_EXEC": "{}", "HYDRA_LAUNCHER_EXTRA_ARGS": "lab -v"},
    INTEL: {
        "I_MPI_HYDRA_BOOTSTRAP": "rsh",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC": "{}",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "lab -v",
    },
}


@every_mpi
def test_agent_with_and_without_arguments(machine: Machine, version: str) -> None:
    machine.mpirun(version)
    path = machine.script("enter", "")
    environ = launched(machine, "--agent", "enter lab -v", "-np", "1", *PROGRAM)["environ"]
    wanted = {name: value.format(path) for name, value in AGENT[version].items()}
    assert mpi_variables(environ) == ALWAYS[version] | wanted
    environ = launched(machine, f"--agent={path}", "-np", "1", *PROGRAM)["environ"]
    bare = {name: value.removesuffix(" lab -v") for name, value in wanted.items() if value != "lab -v"}
    assert mpi_variables(environ) == ALWAYS[version] | bare


def test_what_is_set_stays_unless_a_flag_says_otherwise(machine: Machine) -> None:
    machine.mpirun(OPENMPI4)
    theirs = {"OMPI_MCA_mpi_yield_when_idle": "0", "SCALING_VIEW": "live", "OMPI_MCA_plm_rsh_agent": "mine"}
    environ = launched(machine, "-np", "1", *PROGRAM, **theirs)["environ"]
    assert {name: environ[name] for name in theirs} == theirs
    machine.script("enter", "")
    environ = launched(machine, "--agent", "enter", "-np", "1", *PROGRAM, **theirs)["environ"]
    assert environ["OMPI_MCA_plm_rsh_agent"] == str(machine.bin / "enter")


def test_what_kubeflow_sets_for_open_mpi_4_reaches_5(machine: Machine, tmp_path: Path) -> None:
    machine.mpirun(OPENMPI5)
    (tmp_path / "hosts").write_text("far1 slots=2\nfar2 slots=2\n")
    kubeflow = {
        "OMPI_MCA_orte_default_hostfile": str(tmp_path / "hosts"),
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    }
    environ = launched(machine, *PROGRAM, **kubeflow, PRTE_MCA_plm_ssh_args="-v")["environ"]
    assert environ["PRTE_MCA_prte_default_hostfile"] == str(tmp_path / "hosts")
    assert environ["PRTE_MCA_prte_keep_fqdn_hostnames"] == "false"
    assert environ["PRTE_MCA_plm_ssh_args"] == "-v"


# ---------------------------------------------------------------- more ranks than slots

MANY = str(usable_cores() + 1)


@pytest.mark.parametrize(
    ("arguments", "crowded"),
    [
        (["-np", MANY], True),
        (["-np", str(usable_cores())], False),
        ([], False),
        (["--np", MANY], True),
        (["--mca", "np", "1", "-n", MANY], True),
        (["-n", "1", "/a", "-n", "99", ":", "-n", MANY], True),
        (["--hostfile", "four", "-np", "4"], False),
        (["--hostfile", "four", "-np", "5"], True),
        (["--hostfile=four", "-np", "5"], True),
        (["--hostfile", "four", "--hostfile", "four", "-np", "8"], False),
        (["--hostfile", "open", "-np", "99"], False),
        (["--hostfile", "here", "-np", MANY], True),
        (["--host", "a:2,b", "-np", "3"], False),
        (["--host", "a:2,b", "-np", "4"], True),
        (["-H", "a:*", "-np", "99"], False),
        (["--hostfile", "four", "--host", "a", "-np", "3"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_only_more_ranks_than_slots_are_let_through(machine: Machine, arguments: list[str], crowded: bool) -> None:
    machine.mpirun(OPENMPI5)
    (machine.bin / "four").write_text("far1 slots=2\nfar2 slots=2\n")
    (machine.bin / "open").write_text("far1\nfar2 slots=2\n")
    (machine.bin / "here").write_text("localhost\n")
    environ = launched(machine, *arguments, *PROGRAM)["environ"]
    assert (environ.get(CROWDED) == "node:oversubscribe") is crowded


@pytest.mark.parametrize(
    ("environ", "crowded"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "63"}, True),
        ({"SLURM_JOB_ID": "7"}, False),
        ({"PBS_JOBID": "7"}, False),
        ({"OMPI_MCA_orte_default_hostfile": "many"}, False),
    ],
)
def test_a_queue_manager_knows_the_slots(machine: Machine, environ: dict[str, str], crowded: bool) -> None:
    machine.mpirun(OPENMPI5)
    (machine.bin / "many").write_text("far1 slots=64\n")
    assert (CROWDED in launched(machine, "-np", "64", *PROGRAM, **environ)["environ"]) is crowded


# ---------------------------------------------------------------- hostfiles


@every_mpi
@pytest.mark.parametrize("named", ["argument", "variable"])
def test_a_hostfile_of_the_other_mpi_is_refused_with_its_line(machine: Machine, version: str, named: str) -> None:
    machine.mpirun(version)
    right, wrong = ("a slots=2", "a:2") if version in OPENMPI else ("a:2", "a slots=2")
    flag = "--hostfile" if version in OPENMPI else "-f"
    variable = {
        OPENMPI4: "OMPI_MCA_orte_default_hostfile",
        OPENMPI5: "PRTE_MCA_prte_default_hostfile",
        MPICH: "HYDRA_HOST_FILE",
        INTEL: "I_MPI_HYDRA_HOST_FILE",
    }
    arguments = [flag, "hosts"] if named == "argument" else []
    environ = {} if named == "argument" else {variable[version]: "hosts"}
    (machine.bin / "hosts").write_text(f"# nodes\n{wrong}\n")
    line = refused(machine, *arguments, "-np", "2", *PROGRAM, **environ)
    assert line.startswith(f"launch: hosts:2: '{wrong}' is for ")
    assert line.endswith(f"write '{right}'")
    (machine.bin / "hosts").write_text(f"# nodes\n{right}\n")
    launched(machine, *arguments, "-np", "2", *PROGRAM, **environ)


def test_a_malformed_or_absent_hostfile_is_named(machine: Machine) -> None:
    machine.mpirun(OPENMPI4)
    (machine.bin / "hosts").write_text("a slots=x\n")
    assert "hosts:1: 'a slots=x': slots=x is not a number" in refused(machine, "--hostfile", "hosts", *PROGRAM)
    assert "absent: cannot read this hostfile: No such" in refused(machine, "--machinefile", "absent", *PROGRAM)
