"""Parameter servers for PyTorch: buckets, servers, what workers send and wait for, how servers end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from scaling.frameworks.pytorch import loop, ps_server, ps_trainer
from scaling.frameworks.pytorch.loop import Training
from scaling.frameworks.pytorch.ps_server import Averaged, Immediate
from scaling.frameworks.pytorch.ps_wire import ALIGNMENT, MIB, Bucket, Tags, Terms, cut, offsets, terms, touched
from scaling.worker.run_task import cause_of
from scaling.workloads.specs import Recipe
from tests.support import ranks
from tests.support.points import changed
from tests.support.wires import PATIENCE_S, End, Wire, World, world

SMALL = {"bucket_cap_mb": "0.3"}


def test_a_taken_port_is_recognised() -> None:
    (task,) = ranks.tasks("torch:ps-sync", "exchange", 1)
    with socket.create_server(("", 0)) as taken:
        place = replace(task.servers[0], port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use") as caught:
            ps_server.serve(replace(task, role="server-0", servers=(place,)), print)
    assert cause_of(caught.value) == "port-taken"


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


# ---------------------------------------------------------------- what a worker sends and waits for, and when

BUCKETS = 11


class Diary:
    """In which order a worker's gradients arrive, its buckets go and modules wait."""

    def __init__(self, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[tuple[str, Any]] = []
        client = trainer._client
        for target, name in ((trainer._optimizer, "_arrived"), (client, "push"), (client, "wait_for")):
            monkeypatch.setattr(target, name, self.noting(name, getattr(target, name)))

    def noting(self, name: str, call: Any) -> Any:
        def noted(what: Any) -> Any:
            self.lines.append((name, what))
            return call(what)

        return noted

    def of(self, name: str) -> list[Any]:
        return [what for one, what in self.lines if one == name]


def test_buckets_leave_while_backward_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Almost in order: of a convolution the bias comes after the weight."""
    with world("torch:ps-sync", 1, options=SMALL) as made:
        diary = Diary(made.trainers[0], monkeypatch)
        made.steps(1)
        assert sorted(diary.of("push")) == list(range(BUCKETS))
        assert sorted(diary.of("_arrived")) == list(range(16))
        last = max(index for index, line in enumerate(diary.lines) if line[0] == "_arrived")
        before = [what for name, what in diary.lines[:last] if name == "push"]
        assert sorted(before) == list(range(BUCKETS - 1)), "only the last bucket waits for the last gradient"


def test_modules_wait_for_their_own_parameters_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with world("torch:ps-sync", 1, options=SMALL) as made:
        diary = Diary(made.trainers[0], monkeypatch)
        trainer = made.trainers[0]
        trainer._module[:2](*trainer.compute.batch(0)[:1])
        assert diary.of("wait_for") == [[BUCKETS - 1]]
        trainer.step()
        trainer.compute.model(trainer.compute.batch(0)[0])
        modules = diary.of("wait_for")[-8:]
        assert modules[0] == [BUCKETS - 1], "the first layer's gradient comes last"
        assert modules[-1] == [0]
        assert len(modules[-2]) > 1, "the large layer is cut"
        assert {bucket for module in modules for bucket in module} == set(range(BUCKETS))


class Stream:
    """A stream of a GPU that is done with its first `copies` copies."""

    copies = 0
    begun = 0

    def __init__(self, _device: object) -> None:
        self.waits = 0

    def wait_stream(self, _other: object) -> None:
        self.waits += 1

    def record_event(self) -> Copied:
        Stream.begun += 1
        return Copied(Stream.begun)


class Copied:
    """The end of a copy; the host that waits for it finds it done."""

    def __init__(self, number: int) -> None:
        self._number = number

    def query(self) -> bool:
        return self._number <= Stream.copies

    def synchronize(self) -> None:
        Stream.copies = max(Stream.copies, self._number)


def test_buckets_are_sent_when_their_copies_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "copies", 0)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    copies = ps_trainer.CopiesOut(torch.device("cuda", 0))
    outboxes = [torch.zeros(2) for _ in range(3)]
    for index, outbox in enumerate(outboxes):
        copies.begin(index, outbox, torch.full((2,), float(index)))
        assert list(copies.done(wait=False)) == []
    Stream.copies = 1
    assert list(copies.done(wait=False)) == [0]
    assert list(copies.done(wait=True)) == [1, 2]
    assert list(copies.done(wait=True)) == []
    assert [float(outbox[0]) for outbox in outboxes] == [0.0, 1.0, 2.0]


def test_a_step_does_not_wait_for_its_answer() -> None:
    """A worker's step returns before the others have pushed; its forward then waits."""
    with world("torch:ps-sync", 2, options=SMALL) as made:
        one, other = made.trainers
        one.step()
        assert len(one._client._pending) == BUCKETS
        other.step()
        for trainer in (one, other):
            trainer.sync()
            assert not trainer._client._pending
        assert one.digest() == other.digest()


def test_micro_batches_are_pushed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with world("torch:ps-sync", 1, options={**SMALL, "accumulate": "4"}) as made:
        diary = Diary(made.trainers[0], monkeypatch)
        before = made.trainers[0].weights()
        made.steps(1)
        assert sorted(diary.of("push")) == list(range(BUCKETS))
        whole = Training(ranks.one_task())
        whole.step()
        after = made.trainers[0].weights()
        for name, wanted in whole.weights().items():
            update = np.linalg.norm(wanted - before[name])
            assert np.linalg.norm(after[name] - wanted) < 1e-3 * update, name


def test_what_the_loss_does_not_depend_on_is_not_changed() -> None:
    class Unused(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(1024, 10), torch.nn.Linear(7, 3)

        def forward(self, images: Any) -> Any:
            return self.used(images.flatten(1))

    def edit(made: World) -> None:
        made.patch.setattr(loop.TorchRank, "build", lambda _: Unused())

    with world("torch:ps-sync", 2, edit, options=SMALL) as made:
        before = made.trainers[0].weights()
        made.steps(2)
        after, other = (trainer.weights() for trainer in made.trainers)
        for name, start in before.items():
            assert np.array_equal(after[name], other[name])
            assert np.array_equal(after[name], start) == name.startswith("unused")


def test_gradients_may_travel_in_half_precision() -> None:
    with world("torch:ps-sync", 2, options={**SMALL, "compression": "fp16"}) as made:
        made.steps(1)
        sent = {(tag < BUCKETS, tensor.element_size()) for tag, tensor in made.wires[0, 1].sent}
        assert sent == {(True, 2), (False, 4)}
        rough = made.trainers[0].weights()
    with world("torch:ps-sync", 2, options=SMALL) as made:
        before = made.trainers[0].weights()
        made.steps(1)
        for name, exact in made.trainers[0].weights().items():
            error, update = np.linalg.norm(rough[name] - exact), np.linalg.norm(exact - before[name])
            assert 0 < error < 1e-2 * update, name


def test_comm_moves_what_training_moves() -> None:
    def moved(kind: str) -> list[tuple[int, int]]:
        with world("torch:ps-async", 1, kind=kind, options=SMALL, servers=2) as made:
            for wire in made.wires.values():
                wire.sent.clear()
            made.steps(2)
            sent = [each for wire in made.wires.values() for each in wire.sent]
            return sorted((tag, tensor.numel()) for tag, tensor in sent)

    assert moved("comm") == moved("exchange")


@pytest.mark.parametrize("name", ["torch:ps-sync", "torch:ps-async"])
@pytest.mark.parametrize("error", ["Connection closed by peer", "Timed out waiting 1ms for recv"])
def test_a_server_ends_when_a_worker_leaves_and_fails_when_it_is_silent(
    name: str, error: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with world(name, 2, options=SMALL) as made:
        made.steps(1)
        for rank in range(2):
            made.wires[0, rank].break_off(error)
        made.threads[0].join(PATIENCE_S)
        end = made.ends["server-0"]
        left = "Connection" in error
        assert (end is None) == left
        assert ("a worker has left" in capfd.readouterr().err) == left
        with pytest.raises(RuntimeError, match=error):
            made.steps(2)
