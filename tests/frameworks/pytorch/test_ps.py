"""Parameter servers for PyTorch: the servers' arithmetic, what workers send and wait for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from scaling.frameworks.pytorch import network, ps_server, ps_trainer
from scaling.frameworks.pytorch.loop import Training
from scaling.frameworks.pytorch.ps_server import Averaged, Immediate
from scaling.frameworks.pytorch.ps_wire import ALIGNMENT, MIB, Bucket, Tags, Terms, cut, offsets, terms, touched
from scaling.worker.run_task import cause_of
from scaling.workloads import models
from scaling.workloads.specs import Recipe
from tests.support import ranks
from tests.support.points import changed
from tests.support.wires import End, Wire, World, world

SMALL = {"bucket_cap_mb": "0.3"}


def test_a_taken_port_is_recognised() -> None:
    (task,) = ranks.tasks("torch:ps-sync", "exchange", 1)
    with socket.create_server(("", 0)) as taken:
        place = replace(task.servers[0], port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use") as caught:
            ps_server.serve(replace(task, role="server-0", servers=(place,)), print)
    assert cause_of(caught.value) == "port-taken"


def test_the_default_models_first_layers_have_the_smallest_bucket() -> None:
    model: Any = network.empty(models.spec("digits-cnn"))
    starts, length = offsets([each.numel() for each in model.parameters()][::-1])
    buckets = cut(length, 1, 2)
    sizes = [each.stop - each.start for each in buckets]
    assert sizes == [262_144, 262_144, 262_144, length - 3 * 262_144]
    assert [each.server for each in buckets] == [0, 1, 0, 1]
    first_layer = model[0].weight.numel()
    assert touched(buckets, starts[-1], first_layer) == [3]


def test_what_workers_and_servers_agree_on() -> None:
    options = {"bucket_cap_mb": "3", "compression": "fp16"}
    (task,) = ranks.tasks("torch:ps-async", "exchange", 1, options=options)
    assert terms(changed(task.point, shrink=2.0)) == Terms(cap_mb=1.5, half=True, synchronous=False)


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


# ---------------------------------------------------------------- the servers' arithmetic


def held(kind: Any, size: int, workers: int, *, half: bool = False) -> tuple[Any, list[End]]:
    wires = [Wire() for _ in range(workers)]
    bucket = Bucket(index=0, start=0, stop=size, server=0)
    one = kind(bucket, Tags(count=1), [End(wire, True) for wire in wires], Recipe(rate=0.05), half=half)
    ends = [End(wire, False) for wire in wires]
    ends[0].send(torch.linspace(-1, 1, size), 0)
    one.start()
    for end in ends:
        assert torch.equal(pulled(end, size), torch.linspace(-1, 1, size))
    return one, ends


def pulled(end: End, size: int) -> Any:
    box = torch.empty(size)
    end.receive(box, 1).wait()
    return box


def plain_optimizer(size: int) -> tuple[Any, Any]:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, size))
    return parameter, torch.optim.SGD([parameter], lr=0.05, momentum=0.9)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_mean_is_applied_bit_for_bit_as_the_plain_optimizer_does(workers: int) -> None:
    size = 1008  # as every bucket, of whole vectors: those of the processor
    one, ends = held(Averaged, size, workers)
    parameter, optimizer = plain_optimizer(size)
    for _ in range(4):
        gradients = [torch.randn(size) for _ in ends]
        for end, gradient in zip(ends, gradients, strict=True):
            end.send(gradient, 0)
        one.step()
        parameter.grad = sum(gradients[1:], start=gradients[0].clone()) / workers
        optimizer.step()
        for end in ends:
            assert torch.equal(pulled(end, size), parameter.detach())


def test_each_gradient_is_an_update_of_its_own() -> None:
    """Answers are what the parameters were then, also when they are fetched late; staleness by hand."""
    size = 1008
    one, ends = held(Immediate, size, 3)
    parameter, optimizer = plain_optimizer(size)
    wanted: dict[int, Any] = {}
    for worker, behind in ((0, 0), (2, 1), (1, 2), (1, 0)):
        gradient = torch.randn(size)
        if worker in wanted:
            assert torch.equal(pulled(ends[worker], size), wanted.pop(worker))
        ends[worker].send(gradient, 0)
        assert one.step(worker) == behind
        parameter.grad = gradient
        optimizer.step()
        wanted[worker] = parameter.detach().clone()
    for worker, answer in wanted.items():
        assert torch.equal(pulled(ends[worker], size), answer)


@pytest.mark.parametrize("kind", [Averaged, Immediate])
def test_half_precision_travels_and_full_precision_is_kept(kind: Any) -> None:
    one, ends = held(kind, 32, 1, half=True)
    parameter, optimizer = plain_optimizer(32)
    gradient = torch.randn(32).half()
    ends[0].send(gradient, 0)
    one.step() if kind is Averaged else one.step(0)
    parameter.grad = gradient.float()
    optimizer.step()
    assert torch.equal(pulled(ends[0], 32), parameter.detach())


# ---------------------------------------------------------------- workers and servers together


def staged(made: World) -> None:
    """As on a GPU: buckets go through other memory."""
    client = ps_trainer.Client
    made.patch.setattr(ps_trainer, "Client", lambda *a, **k: client(*a, **{**k, "staged": True}))


def impatient(made: World) -> None:
    """As with --compile: steps wait for all parameters before they begin."""
    remote = ps_trainer.Remote
    made.patch.setattr(ps_trainer, "Remote", lambda *a, **k: remote(*a, **{**k, "lazy": False}))


def after(steps: int, size: int, edit: Callable[[World], None] = lambda _: None, **fields: Any) -> list[str]:
    with world("torch:ps-sync", size, edit, **fields) as made:
        made.steps(steps)
        return [trainer.digest() for trainer in made.trainers]


def test_neither_buckets_nor_servers_nor_the_way_change_a_bit() -> None:
    first, second = after(3, 2)
    assert first == second
    for fields in ({"options": SMALL}, {"options": SMALL, "servers": 3}, {"servers": 9}):
        assert after(3, 2, **fields) == [first, first]
    assert after(3, 2, staged, options=SMALL, servers=2) == [first, first]
    assert after(3, 2, impatient, options=SMALL) == [first, first]


def close(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Equal but for the last bits, which depend on where vectors of the processor begin."""
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


def test_the_memory_order_of_weights_is_kept() -> None:
    with world("torch:ps-sync", 1, memory_format="channels_last", options=SMALL) as made:
        made.steps(2)
        trainer, plain = made.trainers[0], Training(made.tasks[0])
        for _ in range(2):
            plain.step()
        kernel = trainer._module[2].weight
        assert kernel.is_contiguous(memory_format=torch.channels_last)
        assert not kernel.is_contiguous()
        close(trainer.weights(), plain.weights())


def test_one_asynchronous_worker_is_the_plain_loop() -> None:
    with world("torch:ps-async", 1, options=SMALL, servers=2) as made:
        made.steps(3)
        plain = Training(made.tasks[0])
        for _ in range(3):
            plain.step()
        close(made.trainers[0].weights(), plain.weights())
        assert made.trainers[0].staleness() == 0


def test_staleness_counts_the_others_steps_between_pull_and_push() -> None:
    with world("torch:ps-async", 2, options=SMALL, servers=2) as made:
        one, other = made.trainers
        for trainer, wanted in ((one, 0.0), (one, 0.0), (other, 2.0), (one, 1.0)):
            trainer.step()
            trainer.sync()
            assert trainer.staleness() == wanted
        for trainer in (one, other, one):
            trainer.step()
            trainer.sync()
        assert one.staleness() == 0.5, "the mean of 0 and 1"
        assert one.digest() != other.digest()


def test_all_ranks_get_the_weights_of_rank_0() -> None:
    def reseed(made: World) -> None:
        made.tasks[1] = replace(made.tasks[1], seed=99)

    with world("torch:ps-sync", 2, reseed, servers=2) as made:
        first, second = (trainer.digest() for trainer in made.trainers)
        assert first == second == Training(made.tasks[0]).digest()


def test_gloo_brings_the_same_bits() -> None:
    fields: dict[str, Any] = {"options": SMALL, "servers": 2}
    found = ranks.run(ranks.tasks("torch:ps-sync", "exchange", 2, **fields), steps=3)
    assert [trained.digest for trained in found] == after(3, 2, **fields)
