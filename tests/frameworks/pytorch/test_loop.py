"""The PyTorch loop that all torch strategies share, and its models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from scaling.emulated import device
from scaling.frameworks.pytorch.compute import RealCompute
from scaling.frameworks.pytorch.loop import INTEGERS, TorchRank, Training, device_digest
from scaling.records.point import Kind
from tests.support.ranks import one_task

RESNET50: dict[str, Any] = {"model": "resnet50", "data": "synthetic", "batch_size": 32}


def test_the_loss_falls() -> None:
    trainer = Training(one_task(batch_size=32))
    assert trainer.loss() is None
    losses = []
    for _ in range(30):
        trainer.step()
        losses.append(trainer.loss() or 0.0)
    assert np.mean(losses[-5:]) < 0.6 * np.mean(losses[:5])
    assert trainer.samples == 30 * 32


def test_bf16_computes_in_bf16_and_keeps_fp32_parameters() -> None:
    fine, coarse = (Training(one_task(precision=precision)) for precision in ("fp32", "bf16"))
    for trainer in (fine, coarse):
        trainer.step()
    assert {array.dtype for array in coarse.weights().values()} == {np.dtype(np.float32)}
    assert fine.loss() != coarse.loss()
    assert fine.loss() == pytest.approx(coarse.loss(), rel=0.05)


def test_channels_last_is_the_same_model_in_another_order() -> None:
    plain, last = (Training(one_task(memory_format=each)) for each in ("contiguous", "channels_last"))
    kernel = next(each for each in last._module.parameters() if each.shape == (32, 32, 3, 3))
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert not kernel.is_contiguous()
    assert plain.digest() == last.digest()
    for trainer in (plain, last):
        trainer.step()
    assert plain.loss() == pytest.approx(last.loss(), rel=1e-4)


def test_compile_wraps_what_the_step_calls_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def compiler(model: Any) -> Any:
        calls.append("compile")
        return lambda images: (calls.append("call"), model(images))[1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(torch, "compile", compiler)
    plain, compiled = Training(one_task()), Training(one_task(compile=True))
    assert calls == ["compile", "call"]
    assert compiled.samples == 0
    for trainer in (plain, compiled):
        trainer.step()
    assert calls == ["compile", "call", "call"]
    assert plain.digest() == compiled.digest()


@pytest.mark.parametrize("parts", ["2", "4"])
def test_micro_batches_make_the_same_step(parts: str) -> None:
    whole, split = Training(one_task()), Training(one_task(options={"accumulate": parts}))
    start = whole.weights()
    for trainer in (whole, split):
        trainer.step()
    assert whole.samples == split.samples == 4
    assert whole.loss() == pytest.approx(split.loss(), rel=1e-5)
    after = split.weights()
    for name, wanted in whole.weights().items():
        update = np.linalg.norm(wanted - start[name])
        assert np.linalg.norm(after[name] - wanted) < 1e-3 * update, name


def test_each_micro_batch_is_a_part_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, none twice; all but the last inside `hold`."""
    seen: list[Any] = []

    @contextmanager
    def holding() -> Iterator[None]:
        seen.append("hold")
        yield
        seen.append("release")

    trainer = Training(one_task(options={"accumulate": "4"}))
    forward = trainer.compute.forward

    def noting(images: Any, labels: Any) -> Any:
        seen.append(labels.tolist())
        return forward(images, labels)

    monkeypatch.setattr(trainer, "hold", holding)
    monkeypatch.setattr(trainer.compute, "forward", noting)
    trainer.step()
    first, second, third, last = trainer.compute.batch(0)[1].split(1)
    wanted = ["hold", *(part.tolist() for part in (first, second, third)), "release", last.tolist()]
    assert seen == wanted


DTYPES = [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_devices_digest_follows_every_bit_and_place(dtype: torch.dtype) -> None:
    first, second = torch.randn(7, 11).to(dtype), torch.zeros(5).to(dtype)
    digest = device_digest([first, second])
    assert device_digest([first.clone(), second.clone()], chunk=4) == digest
    changed = []
    for place in range(77):
        other = first.clone()
        flat = other.view(-1).view(INTEGERS[other.element_size()])
        flat[place] ^= 1
        changed.append(device_digest([other, second]))
    swapped = first.clone()
    swapped.view(-1)[[0, 1]] = first.view(-1)[[1, 0]]
    changed += [device_digest([swapped, second]), device_digest([second, first]), device_digest([first])]
    assert digest not in changed
    assert len(set(changed)) == len(changed)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_fused_update_is_the_same_update(optimizer: str) -> None:
    plain, fused = (
        Training(one_task(optimizer=optimizer, options=options)) for options in ({}, {"fused": "true"})
    )
    for trainer in (plain, fused):
        for _ in range(3):
            trainer.step()
    assert fused._optimizer.defaults["fused"]  # type: ignore[attr-defined]
    for name, value in plain.weights().items():
        np.testing.assert_allclose(fused.weights()[name], value, rtol=1e-5, atol=1e-5)


def test_the_threads_are_the_tasks() -> None:
    before = torch.get_num_threads()
    try:
        Training(msgspec.structs.replace(one_task(), threads=3))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_tf32_is_on_only_where_it_was_asked_for(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before, wanted = (cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark), precision == "tf32"
    cudnn.allow_tf32 = matmul.allow_tf32 = not wanted
    try:
        name = RealCompute(one_task(precision=precision, device="cuda"), torch.device("cuda", 0)).name
        assert (name, cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark) == ("a GPU", wanted, wanted, True)
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def test_a_gpus_own_clock_tells_the_steps_between_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        """Recorded 20 ms after the one before."""

        made = 0
        waited_for: float = 0.0

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.made += 1
            self.at_ms = 20.0 * Event.made

        def synchronize(self) -> None:
            Event.waited_for = self.at_ms

        def elapsed_time(self, later: Event) -> float:
            return later.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    rank = TorchRank(one_task())
    assert not rank.has_device_clock  # on a CPU
    for _ in range(2):
        for _ in range(4):
            rank.mark()
        assert rank.between_marks_s(ahead=2) == pytest.approx((0.02,))
        assert Event.waited_for == 20.0 * (Event.made - 2)
        assert rank.between_marks_s() == pytest.approx((0.02, 0.02))


# ---------------------------------------------------------------- emulated devices


class Diary:
    def __init__(self, _dilate: float) -> None:
        self.lines: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.lines.append(name)


@pytest.mark.parametrize(("kind", "exchanged"), [("solo", []), ("exchange", ["meet"])])
def test_an_emulated_step_is_the_loops_own(
    kind: Kind, exchanged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what computes differs, and sleeps in the order in which a GPU would compute."""
    monkeypatch.setattr(device, "Timeline", Diary)
    trainer = Training(one_task(kind=kind, device="emulated", profile="p100", **RESNET50))
    compute: Any = trainer.compute
    lines, spans = compute._timeline.lines, len(compute._device.spans)
    assert lines == ["meet"], "the exchange is connected"
    lines.clear()
    trainer.step()
    forward, backward = ["ask", "granted", "spend"] * spans, ["spend"] * spans
    assert lines == ["begin", *forward, *backward, *exchanged, "ask"]
    lines.clear()
    trainer.sync()
    assert lines == ["granted", "finish"]
    assert (trainer.loss(), trainer.samples) == (None, 32)


def test_emulated_gradients_have_one_value_other_in_each_rank_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "Timeline", Diary)
    task = one_task(device="emulated", profile="p100", shrink=100.0, **RESNET50)
    for rank in (0, 1):
        trainer = Training(msgspec.structs.replace(task, rank=rank))
        for step in range(2):
            trainer.step()
            gradients: list[Any] = [each.grad for each in trainer._module.parameters()]
            (value,) = {float(one) for each in gradients for one in each.unique()}
            assert value == device.value(rank, step)


def test_synthetic_images_go_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Training(one_task(data="synthetic"))
    monkeypatch.setattr(trainer.compute, "batch", lambda _: pytest.fail("moved again"))
    trainer.step()
    trainer.step()
    assert trainer.samples == 8
