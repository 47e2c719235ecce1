"""The watch over unit tests: what they promise not to do fails them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from tests.support import guard


def bind() -> None:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))


@pytest.mark.parametrize(
    ("deed", "why"),
    [
        (lambda: subprocess.run(["true"], check=False), "starts a process"),
        (lambda: os.system("true"), "starts a process"),
        (os.fork, "starts a process"),
        (lambda: os.posix_spawn("/bin/true", ["true"], {}), "starts a process"),
        (bind, "takes a port"),
        (lambda: socket.create_connection(("127.0.0.1", 1)), "asks for a host's address"),
        (lambda: time.sleep(0), "sleeps"),
    ],
    ids=["run", "system", "fork", "spawn", "bind", "connect", "sleep"],
)
def test_a_unit_test_that_does_it_fails(deed: Callable[[], object], why: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=rf"test_guard\.py::\S+ {why}"):
        deed()


@pytest.mark.parametrize("name", ["torch", "tensorflow.keras", "mxnet"])
def test_frameworks_are_refused_by_their_names(name: str) -> None:
    assert "tests/frameworks" in (guard.refusal("import", (name, None, [], [], [])) or "")
    assert guard.refusal("import", ("torchlight", None, [], [], [])) is None


def test_an_import_of_a_framework_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    with pytest.raises(pytest.fail.Exception, match="imports mxnet"):
        __import__("mxnet")


def test_no_unit_test_waits_for_the_disk() -> None:
    os.fsync(-1)  # no such file: the real one would say so


def test_threads_are_watched_too() -> None:
    caught: list[BaseException] = []

    def run() -> None:
        try:
            bind()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert isinstance(caught[0], pytest.fail.Exception)
