"""Searches of `scaling bisect` inside one process: real agents, a real sweep, scripted workers on four hosts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from scaling.plan import config, plan
from scaling.records import store
from scaling.records.host import Nic
from scaling.records.messages import SWEEP_DECODER, Dismiss, ToAgent, ToSweep
from scaling.records.run import Header, PointRecord
from scaling.sweep.sweep import Sweep
from scaling.sweep.view.live import make as make_view
from scaling.tools.bisect import leading
from scaling.tools.bisect.leading import Bisection
from scaling.transport.mailbox import Mailbox
from tests.support.inline import Launch, host

KINDS = ["exchange", "solo", "together", "comm"]


class Told(NamedTuple):
    """How a search ended: its exit code, what it said, its run."""

    code: int
    said: Sequence[str]
    header: Header
    records: tuple[PointRecord, ...]
    launch: Launch


def nic(address: str) -> Nic:
    """A card of a host, in the subnet of all."""
    return Nic(name="eth0", address=address, netmask="255.255.255.0", up=True, mtu=1500)


def bisected(results: Path, *, nodes: int = 4, each: int = 1, noise: float | None = None, **fields: Any) -> Told:
    """Search on so many hosts with as many ranks each."""
    hosts = [
        host(f"node{number}", cores=each, nics=(nic(f"10.0.0.{number}"),))
        for number in range(1, nodes + 1)
        for _ in range(each)
    ]
    launch = Launch(len(hosts), hosts)
    own = {"strategy": ["fake:a"], "device": "cpu", "interleave": False, "windows": 4, "window_s": 0.02}
    wanted = config.build(
        {**own, "kinds": KINDS, "rounds": 3, "world_sizes": [len(hosts)], **fields}, source="test"
    )
    made = plan.make(wanted, launch.enrolled)
    leading._check(made)
    mailbox = Mailbox[ToAgent, ToSweep](launch.hub.rank(0), SWEEP_DECODER, turn=launch.turn, wait=launch.wait)
    screen = make_view("none", sys.stdout)
    now = datetime.fromtimestamp(launch.now(), timezone.utc)
    with store.Store.create(results, "bisect", now, launch.header(made, wanted)) as opened:
        sweep = Sweep(made, mailbox, opened, screen, clock=launch.now, unix_clock=launch.clock)
        search = Bisection(made, sweep, screen, noise)
        try:
            code = search.run()
        finally:
            mailbox.order_all(Dismiss())
            launch.turn()
    header, kept = store.load(opened.folder)
    return Told(code, search.said, header, kept, launch)
