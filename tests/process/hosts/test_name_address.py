"""Where Gloo listens that is told no interface: at an address of the host's name, tried by binding it."""

from __future__ import annotations

import socket

import pytest

from scaling.frameworks.horovod import strategy as hvd


@pytest.mark.parametrize(
    ("answers", "address"),
    [(("203.0.113.7",), ""), ((), ""), (("203.0.113.7", "127.0.0.1"), "127.0.0.1")],
    ids=["another host's", "none", "the first of its own"],
)
def test_the_address_of_a_name_is_the_first_that_can_be_bound(
    answers: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (answer, 0)) for answer in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert hvd.address_of_name.__wrapped__() == address
