"""Facts -> verdicts, one line each: ok, warning, or error with the mend. Pure; a file per subject."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scaling.check.facts import Facts, Verdict
from scaling.check.verdicts import all_reduce, gpu_driver, gpu_health, gpus, limits, links, network, software

TOPICS: tuple[Callable[[Facts], Iterator[Verdict]], ...] = (
    software.launch, software.code, software.versions,
    limits.cores, limits.load, limits.memlock, limits.shared_memory,
    gpus.gpus, gpu_driver.driver, gpu_driver.direct, gpu_health.health,
    network.names, network.clocks, network.membership, network.mtu, network.rdma,
    links.reached, links.latency, links.bandwidth,
    all_reduce.all_reduce,
)  # fmt: skip


def judge(facts: Facts) -> tuple[Verdict, ...]:
    """Every verdict, in the order in which they are printed."""
    return tuple(verdict for topic in TOPICS for verdict in topic(facts))
