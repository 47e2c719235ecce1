"""How ranks find each other without MPI: flags, launchers' variables, addresses, the secret."""

from __future__ import annotations

import random
from base64 import b64encode
from hashlib import scrypt
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.transport import start
from scaling.transport.start import Secret, Start
from tests.support.golden import check_golden

SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[003-007,9]",
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1",
            "MASTER_PORT": "29500"}  # fmt: skip
PMIX = {**SRUN, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.2"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "23456"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f"}


def test_the_flags_of_a_start_are_taken_from_the_command_line() -> None:
    asked = start.asked(["--rank", "1", "--model", "m", "--ranks=4", "--coordinator", "a:1", "--rounds", "2"])
    assert (asked.rank, asked.ranks, asked.coordinator) == (1, 4, "a:1")
    assert asked.rest == ("--model", "m", "--rounds", "2")


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
POD = {"JOB_COMPLETION_INDEX": "1", "SCALING_COORDINATOR": "j-0.s:9000"}
BY_HAND, TWO = "--rank 0 --ranks 2", "--ranks 2"
HERE = f"{BY_HAND} --coordinator n1:9000"
# What a launcher has set, and the flags of a rank.
STARTS: dict[str, tuple[dict[str, str], str]] = {
    "srun": (SRUN, ""),
    "torchrun": (TORCHRUN, ""),
    "flux": ({**FLUX, "SCALING_COORDINATOR": "n1:9000"}, ""),
    "flux without an address": (FLUX, ""),
    "by hand": ({}, HERE),
    "by hand, IPv6": ({}, f"{BY_HAND} --coordinator [::1]:9000"),
    "srun with PMIx, over ZeroMQ": (PMIX, "--transport zmq"),
    "srun, leftovers of MPICH": ({**SRUN, "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "999"}, ""),
    "torchrun, PMI of an outer launcher": ({**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}, ""),
    "torchrun inside mpirun": ({**TORCHRUN, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, ""),
    "torchrun, a high port": ({**TORCHRUN, "MASTER_PORT": "65530"}, ""),
    "torchrun, IPv6": ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, ""),
    "PyTorchJob": (PYTORCH_JOB, ""),
    "a pod": (POD, TWO),
    "a pod by hand": ({"JOB_COMPLETION_INDEX": "0"}, "--ranks=2 --rank=1 --coordinator=n1:9000"),
    "a pod beyond the ranks": ({"JOB_COMPLETION_INDEX": "2"}, f"{TWO} --coordinator n1:9000"),
    "a pod without a number": ({"JOB_COMPLETION_INDEX": "x"}, f"{TWO} --coordinator n1:9000"),
    "a pod without ranks": (POD, ""),
    "MPI asked for": ({}, "--transport mpi"),
    "mpirun": (OPEN_MPI, ""),
    "srun with PMIx": (PMIX, ""),
    "srun, MPI asked for": (SRUN, "--transport mpi"),
    "srun of one": ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ""),
    "PMIx": ({"PMIX_RANK": "0"}, ""),
    "no launcher": ({}, ""),
    "a number of ranks": ({}, TWO),
    "no launcher, ZeroMQ asked for": ({}, "--transport zmq"),
    "a number of ranks and WORLD_SIZE": ({"WORLD_SIZE": "2"}, "--ranks 3"),
    "WORLD_SIZE alone": ({"WORLD_SIZE": "2"}, ""),
    "WORLD_SIZE and mpirun": ({"WORLD_SIZE": "2", "PMI_SIZE": "2", "PMI_RANK": "1"}, ""),
    "the script of a job": ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, ""),
    "a number of ranks under mpirun": (OPEN_MPI, TWO),
    "a number of ranks under srun": (SRUN, TWO),
    "a number of ranks under torchrun": ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, TWO),
    "another transport": ({}, "--transport tcp"),
    "no number": ({}, "--rank x --ranks 2"),
    "a rank beyond the ranks": ({}, "--rank 2 --ranks 2"),
    "a rank alone": ({}, "--rank 0"),
    "no ranks": ({}, "--ranks 0"),
    "an address without a rank": ({}, f"{TWO} --coordinator n1:9000"),
    "no value": ({}, "--rank"),
    "a rank of MPI": ({}, f"{BY_HAND} --transport mpi"),
    "no address": ({}, BY_HAND),
    "an address without a port": ({}, f"{BY_HAND} --coordinator n1"),
    "a port too high": ({}, f"{BY_HAND} --coordinator n1:99999"),
}


def told(environ: dict[str, str], words: str) -> str:
    try:
        asked = start.asked(words.split())
        if start.is_alone(asked, environ):
            return "starts all ranks"
        place = start.start(asked, environ)
    except UsageError as error:
        return f"error: {error}"
    return f"rank {place.rank} of {place.ranks} at {place.coordinator}, {place.said}" if place else "over MPI"


def test_how_a_rank_finds_its_place() -> None:
    check_golden("starts.txt", "".join(f"{name}: {told(*how)}\n" for name, how in STARTS.items()))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[003-007,9],x", "gpu003"),
        ("a[1,3]b,c", "a1b"),
        ("rack1-n[07]", "rack1-n07"),
    ],
)
def test_the_first_node_of_slurms_list(nodes: str, first: str) -> None:
    assert start.first_node(nodes) == first


PLACE = Start(1, 2, "n1", 9000)
GIVEN = "5Jd0vYq1Rk8sXw2b"
FILE = ".secret-n1-9000"


def test_a_secret_of_the_environment_needs_no_file(tmp_path: Path) -> None:
    one = Secret({"SCALING_SECRET": GIVEN}, tmp_path, PLACE)
    one.show(one.made())
    assert one.made() == one.read() and not list(tmp_path.iterdir())


def test_a_key_is_of_one_address_and_slow_to_guess(tmp_path: Path) -> None:
    """A table of the keys of likely secrets would serve for every launch."""
    keys = {
        Secret({"SCALING_SECRET": GIVEN}, tmp_path, place).made()
        for place in (PLACE, PLACE._replace(port=9001), PLACE._replace(host="n2"))
    }
    expected = scrypt(GIVEN.encode(), salt=b"scaling n1:9000", n=1 << 15, r=8, p=1, maxmem=1 << 26, dklen=32)
    assert len(keys) == 3 and expected in keys


@pytest.mark.parametrize("text", ["abc", "a" * 16, "0123456789abcdef", "passwordpassword", "ab" * 20])
def test_a_secret_that_can_be_guessed_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"can be guessed, it has {len(text)} characters"):
        Secret({"SCALING_SECRET": text}, tmp_path, PLACE)


def test_random_secrets_are_taken() -> None:
    given = (bytes(random.Random(seed).randbytes(32)) for seed in range(1000))
    assert all(start.looks_random(one.hex()) and start.looks_random(b64encode(one).decode()) for one in given)


def test_a_secret_in_a_file_is_new_and_only_of_this_user(tmp_path: Path) -> None:
    one, other = (Secret({}, tmp_path / "results", PLACE) for _ in range(2))
    assert other.read() is None
    key = one.made()
    one.show(key)
    (path,) = (tmp_path / "results").iterdir()
    assert path.name == FILE
    assert path.stat().st_mode & 0o777 == 0o600 and other.read() == key and one.made() != key
    path.chmod(0o644)
    assert other.read() is None
    one.forget()
    assert not path.exists()


def test_launches_in_one_folder_have_files_of_their_own(tmp_path: Path) -> None:
    """torchrun of one node calls its address localhost on every node."""
    places = [PLACE, PLACE._replace(port=9001), PLACE._replace(host="localhost")]
    for place in places:
        one = Secret({}, tmp_path, place)
        one.show(one.made())
    assert {path.name for path in tmp_path.iterdir()} == {
        FILE, ".secret-n1-9001", f".secret-{start.BOOT.read_text()[:8]}-9000"
    }  # fmt: skip


def test_a_link_in_the_place_of_the_secret_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("00")
    victim.chmod(0o600)
    (tmp_path / FILE).symlink_to(victim)
    one = Secret({}, tmp_path, PLACE)
    assert one.read() is None
    one.show(one.made())
    assert victim.read_text() == "00" and not (tmp_path / FILE).is_symlink()
