"""No worse setting is ever predicted better: random clusters, measured anyhow, asked for anything."""

from __future__ import annotations

from itertools import pairwise
from math import exp
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from scaling.tools.predict.__main__ import forecasts
from scaling.tools.predict.evidence import Case
from scaling.tools.predict.setting import At, Setting, network
from tests.support.scripted_clusters import measured_at

SIZES = (1, 2, 4, 8, 16, 24, 32)
SAID = 1e-9
OVERLAPS = ("backward", "mwms", "serial")
MESSAGES = ("one", "tensors", "buckets")


@st.composite
def cases(draw: Any) -> Case:
    """A run of 0 to 4 world sizes, whose efficiencies fit nothing and have any noise."""
    each = draw(st.sampled_from((1, 2, 4, 8)))
    method = draw(st.sampled_from(("ring", "sharded", "servers_apart", "servers_beside")))
    kind = draw(st.sampled_from(("ib", "tcp", "ipoib")))
    gbit = draw(st.one_of(st.integers(1, 25), st.integers(1, 400)))
    wires = network(f"{kind}:{gbit}x{draw(st.sampled_from((1, 1, 4)))}")
    setting = Setting(
        gradient_bytes=draw(st.floats(1e6, 1e10)), step_s=draw(st.floats(0.01, 5.0)), tail=draw(st.floats(0, 0.3)),
        bus=draw(st.sampled_from(("pcie", "nvlink", "nvswitch", "unknown"))), method=method,
        overlap=draw(st.sampled_from(OVERLAPS)), messages=draw(st.sampled_from(MESSAGES)),
        gathered_bytes=draw(st.sampled_from((0.0, 1e8))),
        carrier=draw(st.sampled_from(("nccl", "cpu"))), **wires._asdict(),
    )  # fmt: skip
    found = Case(setting=setting, rate=64 / setting.step_s, batch_size=64, unit="images",
                 devices_per_node=each, model="resnet50")  # fmt: skip
    sizes = sorted(draw(st.sets(st.sampled_from(SIZES[1:]), max_size=4)))
    seen = tuple(
        measured_at(found.layout(size), draw(st.floats(0.05, 1.02)), draw(st.floats(0.004, 1.0))) for size in sizes
    )
    return found._replace(observed=seen)


def largest(case: Case) -> int:
    return max((one.at.world_size for one in case.observed), default=1)


def predicted(case: Case, setting: Setting, sizes: tuple[int, ...]) -> list[float]:
    return [one.efficiency for one in forecasts(case._replace(asked=setting), sizes)]


def slower(setting: Setting, factor: float) -> Setting:
    """The same cards at another rate, in the words of --network."""
    gbit = setting.line_bytes_per_s * 8e-9 / setting.cards * factor
    kind = {"rdma": "ib"}.get(setting.link, setting.link)
    return replace(setting, **network(f"{kind}:{max(gbit, 0.1):.4f}x{setting.cards}")._asdict())


def quicker(setting: Setting, factor: float) -> Setting:
    """A smaller batch at the same rate."""
    return replace(setting, step_s=setting.step_s * factor)


def larger(setting: Setting, factor: float) -> Setting:
    return replace(setting, gradient_bytes=setting.gradient_bytes / factor)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases(), st.sampled_from((slower, quicker, larger)), st.floats(0.1, 3.0), st.floats(0.2, 0.99))
def test_a_worse_setting_is_not_predicted_better(case: Case, change: Any, first: float, second: float) -> None:
    """Both may be other settings than the measured one, better or worse."""
    better = change(case.setting, first)
    worse = change(better, second)
    sizes = tuple(size for size in (4, 9, 32, 64, 512) if size >= largest(case))
    pairs = zip(predicted(case, better, sizes), predicted(case, worse, sizes), strict=True)
    assert all(lower <= higher + SAID for higher, lower in pairs)


@pytest.mark.parametrize("words", ["tcp:12", "tcp:25x4", "ipoib:12"])
@pytest.mark.parametrize("method", ["ring", "servers_apart"])
def test_a_line_of_10_gbit_carries_no_more_than_a_faster_one(words: str, method: Any) -> None:
    """A badly measured 25 Gb/s line was predicted faster at 10."""
    setting = Setting(gradient_bytes=1e9, step_s=0.2, bus="nvlink", method=method, **network(words)._asdict())
    seen = measured_at(At(world_size=8, nodes=2), 0.1)
    case = Case(setting=setting, rate=320.0, batch_size=64, unit="images", devices_per_node=4, observed=(seen,))
    (faster,), (slow,) = (predicted(case, one, (16,)) for one in (setting, slower(setting, 10 / 25)))
    assert slow <= faster


@pytest.mark.parametrize("words", ["tcp:1", "ib:100"])
def test_a_collapse_on_several_nodes_is_predicted_in_numbers(words: str) -> None:
    """100 % of two nodes and 5 % of four: the rate of a link fell below the smallest number."""
    setting = Setting(gradient_bytes=1e9, step_s=0.01, bus="nvlink", carrier="cpu", **network(words)._asdict())
    seen = tuple(measured_at(At(world_size=size, nodes=size), value) for size, value in ((2, 1.0), (4, 0.05)))
    case = Case(setting=setting, rate=320.0, batch_size=64, unit="images", devices_per_node=1, observed=seen)
    assert all(0 < one <= 0.05 for one in predicted(case, setting, (8, 64, 256)))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(cases(), st.sampled_from((slower, quicker)), st.floats(0.3, 2.0))
def test_more_devices_are_not_predicted_to_be_more_efficient(case: Case, change: Any, factor: float) -> None:
    beyond = tuple(largest(case) + more for more in (1, 2, 7, 8, 9, 40, 300))
    found = predicted(case, change(case.setting, factor), beyond)
    assert all(later <= sooner + SAID for sooner, later in pairwise(found))


@pytest.mark.parametrize("changes", [{"network": "tcp:99"}, {"network": "tcp:50"}, {"batch": 31}])
def test_a_little_worse_than_measured_is_a_little_worse(changes: dict[str, Any]) -> None:
    """71.8 % at N=32; 83.3 % over tcp:50 and 76.2 % with batch 31 were claimed of the same run."""
    setting = Setting(gradient_bytes=102e6, step_s=0.05, bus="pcie", **network("tcp:100")._asdict())
    case = Case(
        setting=setting, rate=1280.0, batch_size=64, unit="images", devices_per_node=4,
        observed=tuple(measured_at(At(world_size=size, nodes=max(1, size // 4)), value)
                       for size, value in ((2, 0.85), (4, 0.8), (8, 0.74))),
    )  # fmt: skip
    other = quicker(setting, changes["batch"] / 32) if "batch" in changes else setting
    if "network" in changes:
        other = replace(setting, **network(changes["network"])._asdict())
    (same,), (worse,) = (predicted(case, one, (32,)) for one in (setting, other))
    assert same - 0.2 < worse <= same < 0.74


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cases(), st.sampled_from((slower, quicker, larger)), st.floats(0.1, 1.0))
def test_no_measured_point_is_exceeded_by_more_devices(case: Case, change: Any, factor: float) -> None:
    """In the measured setting or a worse one; 25.3 % (16 to 39) of two devices were 41.8 % of four on two nodes.
    A larger point that was measured higher lifts a smaller one."""
    seen = case.observed
    for place, one in enumerate(seen):
        beyond = tuple(one.at.world_size + more for more in (0, 1, 8, 100))
        highest = max(later.efficiency for later in seen[place:])
        assert max(predicted(case, change(case.setting, factor), beyond)) <= highest + SAID


def test_a_noisy_point_bounds_the_interval_by_its_own_high_end() -> None:
    """Fitted alone, 25.3 % (16 to 39) of one node let four devices of two nodes have 26.0 % (18 to 32)."""
    node = Setting(gradient_bytes=3e6, step_s=0.0035, bus="loopback", carrier="cpu")
    seen = measured_at(At(world_size=2, nodes=1), 0.253, 0.22)
    case = Case(setting=node, rate=4546.0, batch_size=16, unit="samples", devices_per_node=2, observed=(seen,))
    case = case._replace(asked=replace(node, **network("eth:10")._asdict()))
    (row,) = forecasts(case, (4,))
    assert row.low < row.efficiency <= seen.efficiency
    assert row.high <= seen.efficiency * exp(1.96 * seen.noise)


def test_fewer_devices_on_each_node_may_be_better_than_measured() -> None:
    """Two devices share the cores of one node, and have a node each."""
    setting = Setting(gradient_bytes=1e6, step_s=0.05, bus="pcie", **network("ib:100")._asdict())
    seen = measured_at(At(world_size=2, nodes=1), 0.253, 0.01)
    case = Case(setting=setting, rate=1280.0, batch_size=64, unit="images", devices_per_node=1, observed=(seen,))
    assert forecasts(case, (2,))[0].high > seen.efficiency


def test_an_unexplained_gain_of_two_nodes_fades_on_more_nodes() -> None:
    """99.8 % of two nodes was carried to eight in full: 98 %; they had 86 % (HKBU, 10 GbE)."""
    setting = Setting(gradient_bytes=102e6, step_s=0.25, bus="pcie", tail=0.05, **network("tcp:10")._asdict())
    seen = measured_at(At(world_size=8, nodes=2), 0.998, 0.005)
    case = Case(setting=setting, rate=256.0, batch_size=64, unit="images", devices_per_node=4, observed=(seen,))
    two, eight = predicted(case, setting, (8, 32))
    assert two > 0.99 and two - eight > 0.06  # 0.05 without the fade
