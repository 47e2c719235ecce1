"""Which interface leads to an address: real routing tables, as /proc/net/route writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.hosts import routes
from scaling.records.host import Route
from tests.support.clouds import ROUTE_FILES
from tests.support.inline import host

FLANNEL = (Route(destination="0.0.0.0/0", interface="eth0"), Route(destination="10.244.0.0/16", interface="eth0"))


def test_a_pod_of_flannel(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["flannel"])
    assert routes.read({"eth0"}, tmp_path) == (
        Route(destination="0.0.0.0/0", interface="eth0"),
        Route(destination="10.244.0.0/16", interface="eth0"),
        Route(destination="10.244.1.0/24", interface="eth0"),
    )


def test_routes_by_interfaces_without_an_address_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["a node of calico"])
    assert {route.interface for route in routes.read({"eno2", "tunl0"}, tmp_path)} == {"eno2", "tunl0"}


def test_of_many_routes_the_most_general_are_kept(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/route").write_text(ROUTE_FILES["a node of many"])
    found = routes.read({"eth0", "vxlan.calico"}, tmp_path)
    assert len(found) == routes.MOST
    assert found[0] == Route(destination="0.0.0.0/0", interface="eth0")


def test_a_kernel_that_does_not_tell(tmp_path: Path) -> None:
    assert routes.read({"eth0"}, tmp_path) == ()


@pytest.mark.parametrize(
    ("address", "interface"),
    [("10.1.2.3", "ib0"), ("10.1.9.9", "rail0"), ("8.8.8.8", "eth0"), ("10.1.3.4", "fast0")],
)
def test_the_longest_prefix_and_then_the_least_metric(address: str, interface: str) -> None:
    table = [
        ("0.0.0.0/0", "eth0", 100),
        ("0.0.0.0/0", "wlan0", 600),
        ("10.1.0.0/16", "rail0", 0),
        ("10.1.2.0/24", "ib0", 500),
        ("10.1.3.0/24", "slow0", 200),
        ("10.1.3.0/24", "fast0", 100),
    ]
    one = host(routes=tuple(Route(destination=to, interface=by, metric=metric) for to, by, metric in table))
    assert routes.leads(one, address) == interface


def test_nothing_leads_where_no_route_fits() -> None:
    assert routes.leads(host(routes=FLANNEL[1:]), "8.8.8.8") == ""
    assert routes.leads(host(), "8.8.8.8") == ""
