"""Signals that nobody takes notice of: what is loaded meanwhile is said, and the second one ends the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from scaling import files
from scaling.transport import launch
from scaling.transport.launch import Signals

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)


class Ending(Exception):
    """The process would have ended at once."""


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    def leave(code: int) -> None:
        raise Ending(code)

    now = [100.0]
    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(os, "_exit", leave)
    return now


@pytest.mark.parametrize("handed", [False, True])
def test_the_second_signal_ends_what_takes_no_notice_of_the_first(handed: bool, now_s: list[float]) -> None:
    heard: list[int] = []
    caught = Signals()
    if handed:
        caught.hand_to(heard.append, lambda: bool(heard))
    signal.raise_signal(signal.SIGINT)
    now_s[0] += 0.5  # a launcher hands on one Ctrl-C as two signals
    signal.raise_signal(signal.SIGTERM)
    now_s[0] += 1.0
    with pytest.raises(Ending, match="143"):
        signal.raise_signal(signal.SIGTERM)


def test_signals_that_notice_is_taken_of_end_nothing_here(now_s: list[float]) -> None:
    heard: list[int] = []
    Signals().hand_to(heard.append, lambda: False)
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
        now_s[0] += 10.0
    assert heard == [signal.SIGINT] * 3


def test_what_is_loaded_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    Signals()
    with files.loading("/nfs/resnet50.npz"):
        signal.raise_signal(signal.SIGINT)
    assert (
        capfd.readouterr().err
        == "scaling: SIGINT waits for /nfs/resnet50.npz; the next one ends scaling at once\n"
    )
