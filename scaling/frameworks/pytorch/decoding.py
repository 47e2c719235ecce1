"""How a process of torch's DataLoader makes a training image of an encoded picture: by the fastest decoder that
loads here, a random part of the picture in the model's size, mirrored half of the time.

The part is drawn as torchvision's RandomResizedCrop does: 8 to 100 % of the area, of proportions from 3:4 to 4:3
(Szegedy et al., "Going deeper with convolutions", 2014, section 6). Chance is torch's, which the DataLoader seeds
in each of its processes.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps, __version__
from torch import Tensor, nn

from scaling.workloads.feeds.pictures import damages
from scaling.workloads.specs import Images

AREA, RATIO, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10
JPEG = b"\xff\xd8"
# Left, upper, right, lower, in pixels.
Box: TypeAlias = tuple[int, int, int, int]
# An encoded picture to uint8 (channels, height, width) in the model's size; raises OSError where it is none.
Make: TypeAlias = Callable[[bytes], Tensor]
# An encoded JPEG to uint8 (channels, height, width) in its own size; raises ValueError or RuntimeError where it
# cannot.
Decode: TypeAlias = Callable[[bytes], Tensor]


def maker(images: Images) -> tuple[str, Make]:
    """The fastest way here to make such images, by its name. Other formats than JPEG are Pillow's in any case."""
    vision = _loaded("torchvision.io", "torchvision.transforms.v2")
    if vision is not None:
        transform = _torchvision(vision[1], images)
        name = f"torchvision {import_module('torchvision').__version__}"
        if hasattr(torch.ops.image, "decode_jpeg"):
            return f"{name} decodes and crops", _by_tensors(_by_torchvision(vision[0], images), transform, images)
    else:
        name, transform = "torch", lambda image: resized(image, images)
    if (simple := _loaded("simplejpeg")) is not None:
        return f"simplejpeg decodes, {name} crops", _by_tensors(
            _by_simplejpeg(simple[0], images), transform, images
        )
    return f"Pillow {__version__} decodes and crops", lambda content: by_pillow(content, images)


def _loaded(*names: str) -> tuple[Any, ...] | None:
    """The modules; None where one is not there, or does not load beside this torch."""
    try:
        return tuple(import_module(name) for name in names)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None


def _by_tensors(decode: Decode, transform: Callable[[Tensor], Tensor], images: Images) -> Make:
    def make(content: bytes) -> Tensor:
        if content[:2] == JPEG:
            try:
                return transform(decode(content))
            except (ValueError, RuntimeError):
                pass  # a kind of JPEG that Pillow knows, or none at all, which it will say
        return by_pillow(content, images)

    return make


def _torchvision(v2: Any, images: Images) -> Callable[[Tensor], Tensor]:
    size = (images.height, images.width)
    found: Callable[[Tensor], Tensor] = v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()]
    )
    return found


def _by_torchvision(vision: Any, images: Images) -> Decode:
    mode = vision.ImageReadMode.RGB if images.channels == 3 else vision.ImageReadMode.GRAY

    def decode(content: bytes) -> Tensor:
        found: Tensor = vision.decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=mode)
        return found

    return decode


def _by_simplejpeg(simplejpeg: Any, images: Images) -> Decode:
    space = "RGB" if images.channels == 3 else "GRAY"
    return lambda content: torch.from_numpy(simplejpeg.decode_jpeg(content, space)).permute(2, 0, 1)


# ---------------------------------------------------------------- without torchvision


def resized(image: Tensor, images: Images) -> Tensor:
    """A random part of an image in the model's size, perhaps mirrored; uint8 (channels, height, width)."""
    left, upper, right, lower = box(image.shape[2], image.shape[1])
    part = image[None, :, upper:lower, left:right]
    size = (images.height, images.width)
    found = nn.functional.interpolate(part, size, mode="bilinear", antialias=True)[0]
    return found.flip(2) if _mirrors() else found


def by_pillow(content: bytes, images: Images) -> Tensor:
    """The same of an encoded picture of any kind, by Pillow alone. Raises OSError where it is none."""
    size, mode = (images.width, images.height), "RGB" if images.channels == 3 else "L"
    with damages(), Image.open(io.BytesIO(content)) as opened:
        whole, part = opened.size, box(*opened.size)
        # A JPEG is decoded at a half, quarter or eighth of its size where the part is still large enough.
        scale = max(1.0, min((part[2] - part[0]) / size[0], (part[3] - part[1]) / size[1]))
        opened.draft(mode, (math.ceil(whole[0] / scale), math.ceil(whole[1] / scale)))
        image = opened.convert(mode)
    wide, high = image.size[0] / whole[0], image.size[1] / whole[1]
    inside = (part[0] * wide, part[1] * high, part[2] * wide, part[3] * high)
    image = image.resize(size, Image.Resampling.BILINEAR, box=inside)
    pixels = np.array(ImageOps.mirror(image) if _mirrors() else image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def box(width: int, height: int) -> Box:
    """A random part of an image of this size; its middle, where no draw fits."""
    for _ in range(TRIES):
        area = width * height * float(torch.empty(1).uniform_(*AREA))
        ratio = math.exp(float(torch.empty(1).uniform_(math.log(RATIO[0]), math.log(RATIO[1]))))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            left, upper = (int(torch.randint(room + 1, ())) for room in (width - wide, height - high))
            return left, upper, left + wide, upper + high
    wide = max(1, min(width, round(height * RATIO[1])))
    high = max(1, min(height, round(width / RATIO[0])))
    left, upper = (width - wide) // 2, (height - high) // 2
    return left, upper, left + wide, upper + high


def _mirrors() -> bool:
    return bool(torch.rand(()) < 0.5)
