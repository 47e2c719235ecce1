"""Servers that anybody may reach are named where they are listed and where they are used."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling.run import listing
from tests.support.points import POINT


@pytest.mark.parametrize("strategy", ["tensorflow:ring", "tensorflow:ps"])
def test_a_sweep_with_tensorflow_s_servers_says_so(strategy: str) -> None:
    (line,) = listing.open_servers([replace(POINT, strategy=strategy)] * 2)
    assert line.startswith(f"{strategy} listens on all addresses of each host without auth")


@pytest.mark.parametrize("strategy", ["torch:gloo", "tensorflow:horovod", "mxnet:dist_sync"])
def test_others_do_not(strategy: str) -> None:
    assert listing.open_servers([replace(POINT, strategy=strategy)]) == []


def test_the_list_of_strategies_says_so() -> None:
    lines = listing.everything({}, ()).splitlines()
    (ring,) = (line for line in lines if line.split()[:1] == ["tensorflow:ring"])
    assert "listens on all addresses without authentication" in ring
