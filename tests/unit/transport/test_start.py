"""How ranks find each other without MPI: flags, launchers' variables, addresses, the secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.transport import start
from scaling.transport.start import Secret, Start

SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "gpu[003-007,9]",
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}  # fmt: skip
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1",
            "MASTER_PORT": "29500"}  # fmt: skip
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_JOB_ID": "f"}


def found(environ: dict[str, str], *words: str) -> Start | None:
    return start.start(start.asked(words), environ)


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
        ({**SRUN, "PMIX_RANK": "3"}, ("--transport", "zmq"), (3, 4, "gpu003:24234")),
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
        ({}, ()),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, ()),
        ({**SRUN, "PMIX_RANK": "3"}, ()),
        (SRUN, ("--transport", "mpi")),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, ()),
        ({"JOB_COMPLETION_INDEX": "1", "SCALING_COORDINATOR": "j-0.s:9000"}, ()),
    ],
)
def test_mpi_stays_the_transport_of_mpi(environ: dict[str, str], words: tuple[str, ...]) -> None:
    assert found(environ, *words) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--transport", "tcp"), "--transport tcp: must be mpi or zmq"),
        (("--rank", "x", "--ranks", "2"), "--rank x: must be a number from 0"),
        (("--rank", "2", "--ranks", "2"), "--rank 2: must be below --ranks 2"),
        (("--rank", "0"), "--rank and --ranks: give both"),
        (("--ranks", "2"), "--ranks 2: needs --rank R too"),
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
    with pytest.raises(UsageError) as error:
        found({"JOB_COMPLETION_INDEX": pod}, "--ranks", "2", "--coordinator", "n1:9000")
    assert str(error.value) == f"JOB_COMPLETION_INDEX{said}"


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


def test_a_secret_of_the_environment_needs_no_file(tmp_path: Path) -> None:
    one = Secret({"SCALING_SECRET": "x" * 16}, tmp_path, "job")
    assert one.made() == one.read() == "x" * 16 and not list(tmp_path.iterdir())


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 3 characters"):
        Secret({"SCALING_SECRET": "abc"}, tmp_path, "job")


def test_a_secret_in_a_file_is_new_and_only_of_this_user(tmp_path: Path) -> None:
    one, other = (Secret({}, tmp_path / "results", "job") for _ in range(2))
    assert other.read() is None
    text = one.made()
    (path,) = (tmp_path / "results").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and other.read() == text and one.made() != text
    path.chmod(0o644)
    assert other.read() is None
    one.forget()
    assert not path.exists()


def test_a_link_in_the_place_of_the_secret_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o600)
    (tmp_path / ".secret-job").symlink_to(victim)
    one = Secret({}, tmp_path, "job")
    assert one.read() is None
    one.made()
    assert victim.read_text() == "kept" and not (tmp_path / ".secret-job").is_symlink()
