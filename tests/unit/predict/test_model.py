"""The time of a step against hand-made numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.tools.predict import model
from scaling.tools.predict.model import Parts
from scaling.tools.predict.setting import At
from tests.support.scripted_clusters import RESNET50, at, exact

GB = 1e9


def parts(world_size: int, setting: Any = RESNET50, each: int = 4, **known: float) -> Parts:
    values = exact(setting, **{"network": 0.8, "bus": 5 * GB, "window": 0.66, "wire": 1.0, **known})
    return model.parts(setting, values, model.sizes([at(world_size, each)]), np.array([setting.step_s]))


def seconds(found: Parts) -> float:
    return float(found.exchange_s[0, 0])


def test_one_device_takes_its_own_step() -> None:
    found = parts(1, tax=0.1, jitter=0.1, growth=0.1)
    assert found.step_s.item() == pytest.approx(0.25)


def test_a_ring_inside_a_node_moves_2_n_minus_1_over_n_at_the_rate_of_its_bus() -> None:
    assert seconds(parts(4)) == pytest.approx(2 * 3 / 4 * 102e6 / (5 * GB), rel=0.02)


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_leg() -> None:
    slow = replace(RESNET50, line_bytes_per_s=1.25 * GB)
    assert seconds(parts(8, slow)) == pytest.approx(2 * 7 / 8 * 102e6 / (0.8 * 1.25 * GB), rel=0.02)
    assert seconds(parts(8)) == pytest.approx(2 * 7 / 8 * 102e6 / (5 * GB), rel=0.02)


def test_servers_apart_take_pushes_and_pulls_one_after_the_other_where_nothing_overlaps() -> None:
    servers = replace(RESNET50, method="servers_apart", overlap="serial", messages="one")
    inside, network = 2 * 3 / 4 * 102e6 / (5 * GB), 102e6 / (0.8 * 12.5 * GB)
    assert seconds(parts(16, servers)) == pytest.approx(inside + 2 * network, rel=1e-3)
    assert seconds(parts(16, replace(servers, overlap="other"))) == pytest.approx(inside + 1.1 * network, rel=1e-3)


def test_servers_beside_the_training_send_what_is_not_their_own() -> None:
    servers = replace(RESNET50, method="servers_beside", messages="one")
    expected = 4 * 102e6 / (5 * GB) + 2 * 3 / 4 * 102e6 / (0.8 * 12.5 * GB)
    assert seconds(parts(16, servers)) == pytest.approx(expected, rel=1e-3)


def test_what_backward_hides_is_not_exposed_but_for_the_tail() -> None:
    exchange_s = seconds(parts(4))
    assert parts(4, hide=1.0).exposed_s.item() == pytest.approx(0.0, abs=1e-9)
    tailed = parts(4, replace(RESNET50, tail=0.25), hide=1.0)
    assert tailed.exposed_s.item() == pytest.approx(0.25 * exchange_s)
    assert parts(4, hide=0.0).exposed_s.item() == pytest.approx(exchange_s)


def test_an_exchange_longer_than_backward_shows_by_the_difference() -> None:
    found = parts(4, hide=1.0, bus=0.1 * GB)
    assert found.exposed_s.item() == pytest.approx(seconds(found) - 0.66 * 0.25)


def test_stragglers_grow_as_the_largest_of_n_normal_numbers() -> None:
    """Blom's approximation; the exact means of the largest of 16 and of 256 are 1.766 and 2.815."""
    for size, exact_mean in ((16, 1.766), (256, 2.815)):
        found = parts(size, jitter=0.01)
        assert found.straggling_s.item() / 0.25 == pytest.approx(0.01 * exact_mean, rel=0.01)


def test_gradients_are_exchanged_once_in_several_micro_steps() -> None:
    sizes = model.sizes([At(world_size=4, nodes=1, accumulation=8)])
    values = exact(RESNET50, network=0.8, bus=5 * GB, window=0.66, wire=1.0)
    found = model.parts(RESNET50, values, sizes, np.array([0.25]))
    assert found.alone_s.item() == pytest.approx(2.0)
    assert seconds(found) == pytest.approx(seconds(parts(4)))


def test_a_tree_saves_latency_where_nodes_are_many() -> None:
    many = {"alpha": 1e-4, "tree": True}
    tree = seconds(parts(1024, alpha=many["alpha"]))
    ring = seconds(parts(1024, replace(RESNET50, tree=False), alpha=1e-4))
    assert tree < ring
    assert ring > 4 * 255 * 2 * 1e-4


def test_compressing_divides_the_bytes() -> None:
    assert seconds(parts(4, replace(RESNET50, compress=4.0))) == pytest.approx(seconds(parts(4)) / 4, rel=0.02)
