"""How a rank ends: its last words reach the launcher first."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaling.errors import LaunchError
from scaling.transport import launch

WORDS = b"Traceback (most recent call last):\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_it_waits_until_its_words_are_read(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            os.read(pipe[0], len(WORDS))

    monkeypatch.setattr(time, "sleep", sleep)
    os.write(pipe[1], WORDS)
    launch.wait_until_read(pipe[1])
    assert len(slept) == 3


def test_it_waits_for_nobody_for_ever(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    os.write(pipe[1], WORDS)
    launch.wait_until_read(pipe[1])
    assert sum(slept) == pytest.approx(2.0)


def test_a_file_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waited"))
    with (tmp_path / "log").open("wb") as log:
        log.write(WORDS)
        launch.wait_until_read(log.fileno())


@pytest.mark.parametrize(
    ("rank", "ended", "said"),
    [
        ("0", False, "scaling: error: too few files\n"),
        ("1", True, ""),
        ("1", False, f"scaling: error: rank 1 on {socket.gethostname()}: too few files\n"),
    ],
)
def test_rank_0_says_what_all_ranks_met_and_others_what_it_did_not_meet(
    rank: str, ended: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher ends all of them when the first one has ended."""
    slept: list[float] = []

    def wait(_: object, seconds: float) -> int | None:
        slept.append(seconds)
        return signal.SIGTERM if ended else None

    def refuse() -> None:
        raise LaunchError("too few files")

    monkeypatch.setattr(launch, "allow_open_files", refuse)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda *_: None)
    monkeypatch.setattr(signal, "sigtimedwait", wait)
    for name, value in {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": rank}.items():
        monkeypatch.setenv(name, value)
    assert launch.as_rank(lambda _: pytest.fail("connected"), "scaling") == 2
    assert capsys.readouterr().err == said
    assert slept == ([] if rank == "0" else [launch.WORD_S])
