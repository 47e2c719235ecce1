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

SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[003-007,9]",
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1",
            "MASTER_PORT": "29500"}  # fmt: skip
PMIX = {**SRUN, "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.2"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "23456"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f"}


def found(environ: dict[str, str], *words: str) -> Start | None:
    asked = start.asked(words)
    return None if start.is_alone(asked, environ) else start.start(asked, environ)


def test_the_flags_of_a_start_are_taken_from_the_command_line() -> None:
    asked = start.asked(["--rank", "1", "--model", "m", "--ranks=4", "--coordinator", "a:1", "--rounds", "2"])
    assert (asked.rank, asked.ranks, asked.coordinator) == (1, 4, "a:1")
    assert asked.rest == ("--model", "m", "--rounds", "2")


@pytest.mark.parametrize(
    ("environ", "words", "where"),
    [
        (SRUN, (), (3, 4, "gpu003:24234")),
        (TORCHRUN, (), (1, 2, "n1:29511")),
        ({**FLUX, "SCALING_COORDINATOR": "n1:9000"}, (), (1, 2, "n1:9000")),
        ({}, ("--rank", "0", "--ranks", "2", "--coordinator", "n1:9000"), (0, 2, "n1:9000")),
        (PMIX, ("--transport", "zmq"), (3, 4, "gpu003:24234")),
        ({**SRUN, "PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "999"}, (), (3, 4, "gpu003:24234")),
        ({**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}, (), (1, 2, "n1:29511")),
        ({**TORCHRUN, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, (), (1, 2, "n1:29511")),
        ({**TORCHRUN, "MASTER_PORT": "65530"}, (), (1, 2, "n1:65519")),
        ({**TORCHRUN, "MASTER_ADDR": "fd00::1"}, (), (1, 2, "[fd00::1]:29511")),
        (PYTORCH_JOB, (), (1, 2, "n1:23467")),
        ({}, ("--rank", "0", "--ranks", "2", "--coordinator", "[::1]:9000"), (0, 2, "[::1]:9000")),
        (
            {"JOB_COMPLETION_INDEX": "1", "SCALING_COORDINATOR": "j-0.s:9000"},
            ("--ranks", "2"),
            (1, 2, "j-0.s:9000"),
        ),
        ({"JOB_COMPLETION_INDEX": "0"}, ("--ranks=2", "--rank=1", "--coordinator=n1:9000"), (1, 2, "n1:9000")),
    ],
)
def test_a_launcher_without_mpi_says_where_a_rank_is(
    environ: dict[str, str], words: tuple[str, ...], where: tuple[int, int, str]
) -> None:
    told = found(environ, *words)
    assert told is not None and (told.rank, told.ranks, told.coordinator) == where


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, ("--transport", "mpi")),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, ()),
        (PMIX, ()),
        (SRUN, ("--transport", "mpi")),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ()),
        ({"PMIX_RANK": "0"}, ()),
    ],
)
def test_mpi_stays_the_transport_of_mpi(environ: dict[str, str], words: tuple[str, ...]) -> None:
    assert start.start(start.asked(words), environ) is None
    assert not start.is_alone(start.asked(words), environ)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, ()),
        ({}, ("--ranks", "2")),
        ({}, ("--transport", "zmq")),
        ({"WORLD_SIZE": "2"}, ("--ranks", "3")),
        ({"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, ()),  # the script of a job
        ({"JOB_COMPLETION_INDEX": "1", "SCALING_COORDINATOR": "j-0.s:9000"}, ()),
    ],
)
def test_a_process_without_a_launcher_starts_the_ranks(environ: dict[str, str], words: tuple[str, ...]) -> None:
    assert start.is_alone(start.asked(words), environ)


@pytest.mark.parametrize(
    ("environ", "by"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "by mpirun (OMPI_COMM_WORLD_RANK"),
        (SRUN, "by srun (SLURM_PROCID"),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, "by torchrun (RANK"),
    ],
)
def test_a_number_of_ranks_is_refused_under_a_launcher(environ: dict[str, str], by: str) -> None:
    with pytest.raises(UsageError) as error:
        found(environ, "--ranks", "2")
    assert str(error.value).startswith(f"--ranks 2: the ranks are numbered {by}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--transport", "tcp"), "--transport tcp: must be mpi or zmq"),
        (("--rank", "x", "--ranks", "2"), "--rank x: must be a number from 0"),
        (("--rank", "2", "--ranks", "2"), "--rank 2: must be below --ranks 2"),
        (("--rank", "0"), "--rank 0: needs --ranks N too"),
        (("--ranks", "0"), "--ranks 0: must be a number from 1"),
        (("--ranks", "2", "--coordinator", "n1:9000"), "--ranks 2: needs --rank R too"),
        (("--rank",), "--rank: needs a value"),
        (("--rank", "0", "--ranks", "2", "--transport", "mpi"), "--rank: not with --transport mpi"),
        (("--rank", "0", "--ranks", "2"), "must be HOST:PORT"),
        (("--rank", "0", "--ranks", "2", "--coordinator", "n1"), "--coordinator n1 "),
        (("--rank", "0", "--ranks", "2", "--coordinator", "n1:99999"), "--coordinator n1:99999 "),
    ],
)
def test_a_wrong_flag_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError) as error:
        found({}, *words)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("pod", "said"), [("2", "=2: must be below --ranks 2"), ("x", " x: must be a number from 0")]
)
def test_a_wrong_index_of_a_pod_is_refused(pod: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"^JOB_COMPLETION_INDEX{said}$"):
        found({"JOB_COMPLETION_INDEX": pod}, "--ranks", "2", "--coordinator", "n1:9000")


def test_a_world_size_without_a_launcher_is_named() -> None:
    with pytest.raises(UsageError, match=r"WORLD_SIZE=2: .* of this machine unset WORLD_SIZE"):
        found({"WORLD_SIZE": "2"})
    assert found({"WORLD_SIZE": "2", "PMI_SIZE": "2", "PMI_RANK": "1"}) is None  # mpirun's


def test_a_launcher_without_an_address_needs_one() -> None:
    with pytest.raises(UsageError, match="SCALING_COORDINATOR"):
        found(FLUX)


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
