"""Which terminal shows the output of a rank, by the processes of a machine; the size of that terminal."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

import pytest

from scaling.sweep.view import live
from scaling.sweep.view.plain import PlainView
from scaling.transport import terminal

OPENMPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
MPICH = {"PMI_SIZE": "2", "PMI_RANK": "0"}
SHELL, MPIRUN, DAEMON, RANK = 10, 20, 30, 40


@pytest.fixture
def tty() -> Iterator[int]:
    """A pseudo-terminal of 130 x 40."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 130, 0, 0))
    yield slave
    os.close(master)
    os.close(slave)


class Machine:
    """The part of /proc that tells of a shell, mpirun, its daemon and a rank."""

    def __init__(self, folder: Path, tty: int) -> None:
        self.proc, self.file = folder, folder / "file"
        self.tty = Path(os.ttyname(tty))
        self.file.touch()

    def process(
        self, pid: int, parent: int, name: str, stdout: Path, *words: str, is_in_front: bool = True
    ) -> None:
        folder = self.proc / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd/1").symlink_to(stdout)
        front = pid if is_in_front else SHELL
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} {SHELL} 34816 {front} 0\n")
        (folder / "comm").write_text(f"{name}\n")
        (folder / "cmdline").write_text("\0".join((f"/usr/bin/{name}", *words, "")))

    def shows(self, environ: dict[str, str]) -> bool:
        found = terminal.find(environ, RANK, self.proc)
        if found is None:
            return False
        assert terminal.size(found) == (130, 40)
        os.close(found)
        return True


@pytest.fixture
def machine(tmp_path: Path, tty: int, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    found = Machine(tmp_path, tty)
    found.process(SHELL, 1, "bash", found.tty, is_in_front=False)
    return found


@pytest.mark.parametrize(
    ("environ", "names"),
    [(OPENMPI, ("prterun", "bash")), (OPENMPI, ("mpirun", "bash")), (MPICH, ("mpiexec.hydra", "hydra_pmi_proxy"))],
)
def test_mpirun_s_own_output_decides(machine: Machine, environ: dict[str, str], names: tuple[str, str]) -> None:
    """It does not matter that the rank's is a pipe, or a pseudo-terminal of mpirun's."""
    machine.process(MPIRUN, SHELL, names[0], machine.tty, "-np", "2", "--", "program", "-o")
    machine.process(DAEMON, MPIRUN, names[1], machine.file)
    machine.process(RANK, DAEMON, "python", machine.file, is_in_front=False)
    assert machine.shows(environ)


def test_mpirun_may_be_called_by_a_link(machine: Machine) -> None:
    machine.process(MPIRUN, SHELL, "orterun_wrapper", machine.tty)
    machine.process(RANK, MPIRUN, "python", machine.file)
    assert not machine.shows(OPENMPI)
    (machine.proc / str(MPIRUN) / "cmdline").write_text("/opt/mpi/bin/mpirun\0")
    assert machine.shows(OPENMPI)


@pytest.mark.parametrize(
    ("stdout", "words", "is_in_front"),
    [
        ("file", (), True),
        (os.devnull, (), True),
        ("tty", (), False),  # nothing is drawn in the background
        # labelled lines are no screen
        *(("tty", ("-np", "2", word), True) for word in ("--tag-output", "--output=tag", "-prepend-rank", "-l")),
    ],
)
def test_what_is_behind_mpirun_is_no_terminal(
    machine: Machine, stdout: str, words: tuple[str, ...], is_in_front: bool
) -> None:
    shown = {"file": machine.file, "tty": machine.tty}.get(stdout, Path(stdout))
    machine.process(MPIRUN, SHELL, "prterun", shown, *words, is_in_front=is_in_front)
    machine.process(RANK, MPIRUN, "python", machine.tty)
    assert not machine.shows(OPENMPI)


@pytest.mark.parametrize(
    "environ", [OPENMPI, MPICH, {"PMIX_RANK": "0"}, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}]
)
def test_without_mpirun_above_it_a_rank_knows_nothing(machine: Machine, environ: dict[str, str]) -> None:
    """Its own stdout looks like a terminal: mpirun's daemon made it so."""
    machine.process(DAEMON, SHELL, "orted", machine.tty)
    machine.process(RANK, DAEMON, "python", machine.tty)
    assert not machine.shows(environ)


@pytest.mark.parametrize(("is_file", "is_in_front"), [(True, True), (False, False), (False, True)])
def test_without_a_launcher_the_own_output_decides(machine: Machine, is_file: bool, is_in_front: bool) -> None:
    stdout = machine.file if is_file else machine.tty
    machine.process(RANK, SHELL, "python", stdout, is_in_front=is_in_front)
    assert machine.shows({}) is (is_in_front and not is_file)


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert terminal.find({}, RANK, tmp_path) is None


def test_columns_and_lines_go_before_the_terminal(tty: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without a size has the usual one."""
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    fcntl.ioctl(tty, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    assert terminal.size(tty).columns >= 80
    monkeypatch.setenv("COLUMNS", "77")
    monkeypatch.setenv("LINES", "11")
    assert terminal.size(tty) == (77, 11)


@pytest.mark.parametrize("has_terminal", [True, False])
def test_the_view_is_live_on_a_terminal(tty: int, has_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(terminal, "find", lambda: tty if has_terminal else None)
    stream = cast(TextIO, io.StringIO())
    assert isinstance(live.make("auto", stream), live.LiveView if has_terminal else PlainView)
    assert isinstance(live.make("live", stream), live.LiveView)
    assert type(live.make("plain", stream)) is PlainView
