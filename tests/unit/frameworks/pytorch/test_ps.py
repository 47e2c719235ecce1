"""The parameter server's strategy, and how it shards its buckets."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from scaling.frameworks.pytorch import ps
from scaling.frameworks.pytorch.ps import ALIGNMENT, MIB, Tags, cut, offsets, touched
from scaling.plan import tasks
from scaling.records.network import Place
from scaling.records.task import Server
from tests.support import paper_tasks
from tests.support.points import changed, placed

# Parameter servers for PyTorch on the agent's side: where servers are, what they and workers are told.


def test_a_helper_for_each_server_and_everybodys_own_interface() -> None:
    places = [
        Server(
            launch_rank=index,
            host=f"n{index}",
            place=Place(address=f"10.0.0.{index}", interface=f"ib{index}"),
            port=5000,
        )
        for index in range(3)
    ]
    (task,) = paper_tasks.tasks("torch:ps-sync", "exchange", 1)
    task = replace(placed(task, ["10.0.0.1"], "eth7"), servers=tuple(places))
    found = [(helper.name, helper.server, helper.computes) for helper in ps.STRATEGY.helpers(task)]
    assert found == [("server-0", 0, False), ("server-1", 1, False), ("server-2", 2, False)]
    assert ps.STRATEGY.environ(task, {}) == {"GLOO_SOCKET_IFNAME": "eth7"}
    for index, helper in enumerate(ps.STRATEGY.helpers(task)):
        assert ps.STRATEGY.environ(tasks.helper_task([task], helper), {}) == {"GLOO_SOCKET_IFNAME": f"ib{index}"}


def test_what_workers_and_servers_agree_on() -> None:
    (task,) = paper_tasks.tasks(
        "torch:ps-async", "exchange", 1, options={"bucket_cap_mb": "3", "compression": "fp16"}
    )
    assert ps.terms(changed(task.point, shrink=2.0)) == ps.Terms(cap_mb=1.5, half=True, synchronous=False)


# How parameters are cut into buckets and dealt to servers.


def test_tensors_stand_in_order_and_aligned() -> None:
    for sizes in product((1, 15, 16, 17, 40), repeat=3):
        starts, length = offsets(sizes)
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        assert starts[0] == 0
        assert all(start % ALIGNMENT == 0 for start in starts)
        for end, following in zip(ends, [*starts[1:], length], strict=True):
            assert 0 <= following - end < ALIGNMENT


def cap_mb(elements: int) -> float:
    return 4 * elements / MIB


@pytest.mark.parametrize("cap", [16, 32, 48])
@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_every_element_is_in_one_bucket_and_servers_are_balanced(cap: int, servers: int) -> None:
    for length in range(1, 400):
        buckets = cut(length, cap_mb(cap), servers)
        held = [element for bucket in buckets for element in range(bucket.start, bucket.stop)]
        assert held == list(range(length))
        assert [bucket.index for bucket in buckets] == list(range(len(buckets)))
        sizes = [bucket.stop - bucket.start for bucket in buckets]
        assert sizes[:-1] == [cap] * (len(buckets) - 1)
        assert 0 < sizes[-1] <= cap
        load = [sum(b.stop - b.start for b in buckets if b.server == server) for server in range(servers)]
        assert sum(load) == length
        assert max(load) - min(load) <= cap


def test_a_cap_is_rounded_down_to_whole_lines_and_never_to_nothing() -> None:
    assert [bucket.stop for bucket in cut(64, cap_mb(47), 1)] == [32, 64]
    assert [bucket.stop for bucket in cut(40, cap_mb(1), 1)] == [16, 32, 40]


def test_what_a_tensor_touches() -> None:
    buckets = cut(100, cap_mb(16), 2)
    for start, size in product(range(0, 90, 7), (1, 5, 16, 33)):
        mine = set(range(start, start + size))
        wanted = [each.index for each in buckets if mine & set(range(each.start, each.stop))]
        assert touched(buckets, start, size) == wanted


def test_no_two_messages_share_a_tag() -> None:
    tags = Tags(count=3)
    used = [tags.push(index) for index in range(3)] + [tags.pull(index) for index in range(3)] + [tags.behind]
    assert len(set(used)) == len(used)
