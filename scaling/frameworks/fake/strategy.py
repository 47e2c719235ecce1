"""The scripted strategy: it sleeps for a step, moves real bytes and fails on command, without a framework.

Every `fake:<mode>` is this module. `--option` sets its script. Words of the mode, joined by "-", choose traits:

* `async`: not synchronous
* `node`, `point`: what one worker drives
* `ps`: has servers
* `ports`: one port per rank

The script gives the seconds of a step. With N ranks:

    compute(rank) = step_s x (1 + contention) x (1 + straggle, on the last rank)     N > 1
    feed = feed_s x (1 + feed_contention)                                            N > 1
    solo = step_s + feed,  together = compute(rank) + feed,  held = compute(rank),  comm = comm_s
    exchange = max over ranks of compute + feed + exchange_s         (overhead_s more at every N)

A sample adds sample_s to step_s. A forward pass takes a third of compute, both passes take 0.9 of it. Each time is
multiplied by seeded noise. So the right speedup, efficiency and loss by cause can be computed by hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.frameworks import evaluating
from scaling.frameworks.base import Helper, Option, Strategy, Traits, read_options
from scaling.frameworks.fake.faults import fault
from scaling.records.task import Task

OPTIONS: Mapping[str, Option] = {
    "step_s": Option(type=float, default=0.01, help="seconds of compute of one step on one rank"),
    "sample_s": Option(type=float, default=0.0, help="seconds that a sample of the batch adds to a step"),
    "cpu_times": Option(type=float, default=1.0, help="factor of a step's time on a CPU next to GPUs"),
    "exchange_s": Option(type=float, default=0.0, help="seconds of exposed exchange of one step, N > 1"),
    "comm_s": Option(type=float, default=0.001, help="seconds of the exchange without compute"),
    "overhead_s": Option(type=float, default=0.0, help="seconds that the strategy adds at every N"),
    "feed_s": Option(type=float, default=0.0, help="seconds that a rank waits for its next batch"),
    "feed_contention": Option(type=float, default=0.0, help="fraction by which feeds slow each other"),
    "contention": Option(type=float, default=0.0, help="fraction by which ranks slow each other"),
    "slow_host": Option(type=str, default="", help="a host that slows every exchange that it takes part in"),
    "slow_by": Option(type=float, default=1.0, help="fraction by which slow_host slows an exchange"),
    "straggle": Option(type=float, default=0.0, help="fraction by which the last rank is slower"),
    "noise": Option(type=float, default=0.0, help="relative deviation of each step"),
    "round_noise": Option(type=float, default=0.0, help="relative deviation of each point"),
    "traffic_bytes": Option(type=int, default=0, help="bytes that each rank sends to rank 0 and back in a step"),
    "start_s": Option(type=float, default=0.0, help="seconds until ready"),
    "helper": Option(type=bool, default=False, help="needs a server, which must announce itself first"),
    "fail": Option(type=fault, default="", help="the fault to plant"),
    "server_s": Option(type=float, default=0.3, help="seconds until a server fails (fail=server)"),
    "fail_rank": Option(type=int, default=0, help="the rank that fails"),
    "fail_step": Option(type=int, default=4, help="the step in which it fails"),
    "fail_kind": Option(type=str, default="exchange", help="the kind of point that fails"),
    "fail_batch": Option(type=int, default=0, help="the smallest batch per device that fails"),
    "fail_cores": Option(type=int, default=0, help="cores of the CPU next to GPUs that fails (0: no such CPU)"),
    "fail_world": Option(type=int, default=0, help="the world size that fails (0: all)"),
}


class Fake(Strategy):
    """The strategy of every `fake:<mode>`."""

    names = ("fake:plain",)
    baseline = "fake:plain"
    options = OPTIONS
    trainer = "scaling.frameworks.fake.trainer"
    server = "scaling.frameworks.fake.server"

    def traits(self, name: str) -> Traits:
        words = name.partition(":")[2].split("-")
        return Traits(
            drives="node" if "node" in words else "point" if "point" in words else "device",
            ports=1,
            rank_ports="ports" in words,
            servers="ps" in words,
            synchronous="async" not in words,
            accuracy=("evaluate",) if "ps" in words else evaluating.ALL,
            passes=("forward", "backward", "step") if name == self.baseline else ("step",),
        )

    def helpers(self, task: Task) -> list[Helper]:
        placed = [Helper(name=f"server-{index}", server=index) for index in range(len(task.servers))]
        asked = read_options(OPTIONS, task.point.options)["helper"]
        return [Helper(name="server"), *placed] if asked else placed

    def environ(self, task: Task, announced: Mapping[str, str]) -> dict[str, str]:
        return {
            "FAKE_PORT": ",".join(map(str, task.ports)),
            "FAKE_RANK_PORTS": ",".join(map(str, task.rank_ports)),
            **{f"FAKE_{key}": value for key, value in announced.items()},
        }


STRATEGY = Fake()
