"""How parameters are cut into buckets and dealt to servers."""

from __future__ import annotations

from itertools import product

import pytest

from scaling.frameworks.pytorch.ps_shards import ALIGNMENT, MIB, Tags, cut, offsets, touched


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
