"""What strategies say of the bytes that a step sends between nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.frameworks.base import Option, Strategy
from scaling.records.crossing import Bounds, bytes_per_step
from scaling.records.network import ALONE
from scaling.records.task import Server, Task
from tests.support.points import make_point

S = 1000
HOSTS = ("a", "a", "b", "b")
# By an option that makes gradients smaller on their way: what it is set to.
SMALLER = {
    "torch:horovod": "fp16", "tensorflow:horovod": "fp16", "mxnet:horovod": "fp16", "torch:ps-sync": "fp16",
    "mxnet:dist_sync": "2bit", "mxnet:dist_device_sync": "2bit",
}  # fmt: skip


def task(strategy: str, **options: str) -> Task:
    """Rank 0's of four ranks on two hosts; a server on each where the strategy has some."""
    point = make_point(
        strategy=strategy, kind="exchange", world_size=4, round=0, model="digits-cnn", data="digits", device="cpu",
        batch_rule="weak", batch_size=32, options=options,
    )  # fmt: skip
    has_servers = frameworks.load(strategy).traits(strategy).servers
    servers = tuple(Server(launch_rank=at, host=HOSTS[at], place=ALONE) for at in (0, 2)) if has_servers else ()
    return Task(
        point=replace(point, servers=len(servers)), attempt=1, rank=0, launch_rank=0, local_rank=0,
        local_world_size=2, hosts=HOSTS, device_index=0, cpus=(), threads=1, seed=1, log="", servers=servers,
    )  # fmt: skip


def said(strategy: str, **options: str) -> Bounds | None:
    return frameworks.load(strategy).bytes_per_step(task(strategy, **options), S)


@pytest.mark.parametrize("name", frameworks.NAMES)
def test_by_its_pattern_where_ranks_wait_for_each_other(name: str) -> None:
    traits = frameworks.load(name).traits(name)
    across = {"ring": 2 * 2 * 3 / 4 * S, "servers": 2 * 4 * S / 2, "inside": 0.0}[traits.pattern]
    assert said(name) == ((across, across) if traits.synchronous else None)


@pytest.mark.parametrize("name", SMALLER)
def test_nothing_where_gradients_are_made_smaller(name: str) -> None:
    assert said(name, compression="none") is not None
    assert said(name, compression=SMALLER[name]) is None


def test_every_option_for_smaller_gradients_is_in_this_test() -> None:
    asked = {name for name in frameworks.NAMES if "compression" in frameworks.load(name).options}
    assert {name for name in asked if frameworks.load(name).traits(name).synchronous} == set(SMALLER)


class Halving(Strategy):
    """From outside: its gradients travel in half precision where `wire` says so."""

    names = ("my.own:halving",)
    options = {"wire": Option(type=str, default="fp32", help="how gradients travel")}

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Half as many, or between that and all where it is left to the library."""
        whole = super().bytes_per_step(task, gradient_bytes)
        assert whole is not None
        least = {"fp16": 0.5, "auto": 0.5}.get(task.point.options.get("wire", "fp32"), 1.0)
        most = 0.5 if task.point.options.get("wire") == "fp16" else 1.0
        return whole[0] * least, whole[1] * most


def test_a_strategy_from_outside_says_its_own() -> None:
    asked = task("fake:a")
    bounds = {
        wire: Halving().bytes_per_step(replace(asked, point=replace(asked.point, options={"wire": wire})), S)
        for wire in ("fp32", "fp16", "auto")
    }
    assert bounds == {"fp32": (3000, 3000), "fp16": (1500, 1500), "auto": (1500, 3000)}


def test_without_ranks_servers_or_a_pattern_nothing_is_known() -> None:
    assert bytes_per_step("ring", S, (), ()) is None
    assert bytes_per_step("servers", S, HOSTS, ()) is None
    assert bytes_per_step("", S, HOSTS, ("a",)) is None
