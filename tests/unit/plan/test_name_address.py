"""Exchanges that listen at the address of the host's name: refused where that is not on the network asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from scaling.errors import UsageError
from scaling.plan import plan
from scaling.plan.config import SweepConfig
from scaling.plan.plan import Plan
from scaling.records.host import HostInfo, Nic
from tests.support.inline import enrol, host

NAME = "torch:horovod"


def node(number: int) -> HostInfo:
    nics = (
        Nic(name="ib0", address=f"10.10.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),
        Nic(name="eth0", address=f"10.20.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),
    )
    return host(f"node{number}", nics=nics, boot_id=str(number))


def made(addresses: Sequence[str], *interconnect: str, **fields: Any) -> Plan:
    """Of a rank on each of so many nodes, whose names have these addresses; "-" for a build that obeys."""
    told = [{} if address == "-" else {NAME: address} for address in addresses]
    enrolled = [enrol(node(number), name_addresses=one) for number, one in enumerate(told, 1)]
    asked = {"strategy": (NAME,), "interconnect": interconnect, "device": "cpu", **fields}
    return plan.make(SweepConfig(**asked), enrolled)


def test_the_network_on_which_names_are_is_measured_and_the_other_refused() -> None:
    found = made(("10.10.0.1", "10.10.0.2"), "ib0", "eth0")
    refused = [point for point in found.cells if point.cell in found.refused]
    assert {(point.interconnect, point.world_size) for point in refused} == {("eth0", 2)}
    said = "it listens at the address of the host's name: node1 is 10.10.0.1, on eth0 10.20.0.1"
    assert set(found.refused.values()) == {said}


@pytest.mark.parametrize("address", ["127.0.1.1", "10.10.0.2"])
def test_nothing_left_is_a_mistake_with_its_mend(address: str) -> None:
    """Debian's line for a host's own name."""
    with pytest.raises(UsageError) as error:
        made(("10.20.0.1", address), "eth0", world_sizes=(2,))
    assert (
        f"node2 is {address}, on eth0 10.20.0.2; take the network of that address, write `10.20.0.2 node2`"
        in str(error.value)
    )


def test_one_host_reaches_itself_and_a_build_that_obeys_goes_anywhere() -> None:
    assert made(("-", "-"), "eth0").refused == {}
    assert made(("127.0.1.1",), "eth0", world_sizes=(1,)).refused == {}
