"""What a worker of torch:ps-* sends and waits for, and when; how servers end."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from scaling.frameworks.pytorch import loop, ps_trainer
from scaling.frameworks.pytorch.loop import Training
from tests.support import ranks
from tests.support.wires import PATIENCE_S, World, world

SMALL = {"bucket_cap_mb": "0.3"}
BUCKETS = 11


class Diary:
    """In which order a worker's gradients arrive, its buckets go and modules wait."""

    def __init__(self, trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[tuple[str, Any]] = []
        for target, name in (
            (trainer._optimizer, "_arrived"),
            (trainer._client, "push"),
            (trainer._client, "wait_for"),
        ):
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
