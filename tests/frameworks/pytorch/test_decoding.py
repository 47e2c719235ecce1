"""Training images of torch's own pipeline: which decoder is taken, which part of a picture is shown."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from scaling.frameworks.pytorch import native_feed
from scaling.workloads.specs import Images
from tests.support.written import picture

COLOUR, GREY = Images(channels=3, height=20, width=24), Images(channels=1, height=8, width=8)


@pytest.fixture(autouse=True)
def without_decoders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.io", "torchvision.transforms.v2"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_by_pillow_where_nothing_else_loads(kind: str) -> None:
    said, make = native_feed.picture_maker(COLOUR)
    assert said.startswith("Pillow ") and said.endswith(" decodes and crops")
    shown = make(picture(200, side=90, kind=kind))
    assert (shown.dtype, tuple(shown.shape)) == (torch.uint8, (3, 20, 24))
    assert (shown[:, 5, 5].int() - torch.tensor([200, 100, 50])).abs().max() <= 2
    assert tuple(native_feed.picture_maker(GREY)[1](picture(9)).shape) == (1, 8, 8)
    with pytest.raises(OSError, match="cannot identify"):
        make(b"\xff\xd8 no picture")
    with pytest.raises(OSError, match="invalid literal"):
        make(b"P6\n4x 4\n255\n")


def test_by_torchvision_and_by_pillow_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def decode_jpeg(_content: Any, mode: str) -> Any:
        seen.append(mode)
        if len(seen) > 1:
            raise ValueError("unsupported")
        return torch.full((3, 30, 40), 7, dtype=torch.uint8)

    package, io, v2 = (ModuleType(name) for name in ("torchvision", "torchvision.io", "torchvision.transforms.v2"))
    vars(package).update(__version__="0.9", io=io)
    vars(io).update(decode_jpeg=decode_jpeg, ImageReadMode=SimpleNamespace(RGB="rgb", GRAY="gray"))
    vars(v2).update(
        RandomResizedCrop=lambda size, antialias: lambda x: x[:, : size[0], : size[1]],
        RandomHorizontalFlip=lambda: None,
        Compose=lambda made: made[0],
    )
    monkeypatch.setattr(torch.ops, "image", SimpleNamespace(decode_jpeg=None), raising=False)
    for module in (package, io, v2):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    said, make = native_feed.picture_maker(COLOUR)
    assert said == "torchvision 0.9 decodes and crops"
    jpeg = picture(200, side=90, kind="JPEG")
    shown = make(jpeg)
    assert tuple(shown.shape) == (3, 20, 24) and set(shown.unique().tolist()) == {7}
    assert make(jpeg)[0].max() > 190
    assert make(picture(200))[0].max() > 190
    assert seen == ["rgb", "rgb"]


@pytest.mark.parametrize(("width", "height"), [(500, 375), (30, 400), (400, 30), (1, 1)])
def test_the_part_lies_inside_and_is_drawn_anew(width: int, height: int) -> None:
    torch.manual_seed(0)
    drawn = {native_feed.crop_box(width, height) for _ in range(50)}
    for left, upper, right, lower in drawn:
        assert 0 <= left < right <= width and 0 <= upper < lower <= height
        assert 0.7 <= (right - left) / (lower - upper) <= 1.4
    assert len(drawn) > 40 or min(width, height) < 100
