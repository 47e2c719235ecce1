"""torch's own pipeline: a DataLoader over a rank's shard of pictures, in the order of the reference feed.

Its processes are forks. Processes that start otherwise may outlive a worker that dies.
"""

from __future__ import annotations

import io
import math
import signal
from collections.abc import Callable
from importlib import import_module
from itertools import count
from multiprocessing.connection import wait
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps, __version__
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from scaling.errors import UsageError
from scaling.frameworks import feeding
from scaling.frameworks.feeding import AREA, RATIO, Batch, FeedError
from scaling.records.task import Task
from scaling.workloads import feeds
from scaling.workloads.feeds.pictures import damages
from scaling.workloads.specs import Images, ModelSpec

# ---------------------------------------------------------------- decoding
#
# A random part of each picture is scaled to the model's size and mirrored half of the time. The part is drawn as
# by torchvision's RandomResizedCrop. The DataLoader seeds torch's random numbers in each process.


TRIES = 10
JPEG = b"\xff\xd8"
# Left, upper, right, lower, in pixels.
Box: TypeAlias = tuple[int, int, int, int]
# Encoded picture to uint8 (channels, height, width) in the model's size. Raises OSError if it cannot be read.
Make: TypeAlias = Callable[[bytes], Tensor]


def picture_maker(images: Images) -> tuple[str, Make]:
    """Return the name and the function of the fastest decoder here: torchvision, or Pillow, which also decodes all
    formats but JPEG."""
    try:
        vision, v2 = import_module("torchvision.io"), import_module("torchvision.transforms.v2")
        name = f"torchvision {import_module('torchvision').__version__} decodes and crops"
        torch.ops.image.decode_jpeg  # noqa: B018 (AttributeError in a build without it)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return f"Pillow {__version__} decodes and crops", lambda content: by_pillow(content, images)
    mode = vision.ImageReadMode.RGB if images.channels == 3 else vision.ImageReadMode.GRAY
    part = v2.RandomResizedCrop((images.height, images.width), antialias=True)
    cropped = v2.Compose([part, v2.RandomHorizontalFlip()])

    def make(content: bytes) -> Tensor:
        if content[:2] == JPEG:
            encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            try:
                found: Tensor = cropped(vision.decode_jpeg(encoded, mode=mode))
                return found
            except (ValueError, RuntimeError):
                pass  # a JPEG that only Pillow can read, or an error that Pillow will report
        return by_pillow(content, images)

    return name, make


def by_pillow(content: bytes, images: Images) -> Tensor:
    """Return a random part of an encoded picture of any format, in the model's size and perhaps mirrored: uint8
    (channels, height, width). Raises OSError if it cannot be read."""
    size, mode = (images.width, images.height), "RGB" if images.channels == 3 else "L"
    with damages(), Image.open(io.BytesIO(content)) as opened:
        whole, part = opened.size, crop_box(*opened.size)
        # Pillow decodes a JPEG at 1/2, 1/4 or 1/8 of its size if the part is still large enough.
        scale = max(1.0, min((part[2] - part[0]) / size[0], (part[3] - part[1]) / size[1]))
        opened.draft(mode, (math.ceil(whole[0] / scale), math.ceil(whole[1] / scale)))
        image = opened.convert(mode)
    wide, high = image.size[0] / whole[0], image.size[1] / whole[1]
    inside = (part[0] * wide, part[1] * high, part[2] * wide, part[3] * high)
    image = image.resize(size, Image.Resampling.BILINEAR, box=inside)
    pixels = np.array(ImageOps.mirror(image) if torch.rand(()) < 0.5 else image)
    return torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))


def crop_box(width: int, height: int) -> Box:
    """Return a random part of an image of this size; its middle if no draw fits."""
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


# ---------------------------------------------------------------- native feed

# Seconds until a process with a broken pipe has ended.
GONE_S = 2.0


class Decoded(Dataset[tuple[Tensor, int]]):
    """Training images, uint8 (channels, height, width), and classes. Raises UsageError for a broken picture."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        self._pictures = feeds.encoded_pictures(task, spec)
        self.said, self._make = picture_maker(self._pictures.images)

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        encoded = self._pictures.encoded
        content, label = encoded.read(index)
        self._pictures.check(index, label)
        try:
            return self._make(content), label
        except OSError as error:
            raise UsageError(f"{encoded.name(index)}: Pillow cannot read it: {error}") from None


class Loader:
    """Batches of uint8 (batch, channels, height, width) and int64 labels (batch,), as torch tensors."""

    def __init__(self, task: Task, spec: ModelSpec) -> None:
        found, workers = Decoded(task, spec), feeding.workers(task)
        self.said = f"DataLoader, {workers} {'process' if workers == 1 else 'processes'} a rank; {found.said}"
        handler = signal.getsignal(signal.SIGCHLD)
        on_gpu = task.point.hardware.device == "cuda"
        if on_gpu:  # kind `feed` selects no device otherwise, and memory would be pinned on GPU 0
            torch.cuda.set_device(task.device_index)
        sampler = feeds.sampler_of(task, len(found))
        self._batches: Any = iter(
            DataLoader(
                found,
                # Without end: there is no gap between epochs.
                batch_sampler=(sampler.indices(step).tolist() for step in count()),
                num_workers=workers,
                multiprocessing_context="fork",
                pin_memory=on_gpu,
                generator=torch.Generator().manual_seed(hash((task.seed, task.rank))),
            )
        )
        # torch's handler raises anywhere in the worker, even during error reports. `next` sees dead processes too.
        signal.signal(signal.SIGCHLD, handler)

    def next(self) -> Batch:
        try:
            images, labels = next(self._batches)
        except UsageError as error:
            # The last line of the loader process's traceback has the message.
            raise FeedError(str(error).strip().rpartition("\n")[2].partition("UsageError: ")[2]) from None
        except (RuntimeError, OSError, EOFError) as error:
            raise FeedError(self._why(error)) from None
        return images, labels

    def _why(self, error: Exception) -> str:
        """Name the ended process: the text of a broken pipe's error varies."""
        processes = {one.sentinel: one for one in self._batches._workers}
        ended = [processes[one] for one in wait(list(processes), timeout=GONE_S)]
        for one in ended:
            one.join(GONE_S)  # its sentinel fires before its exit code is known
        found = ", ".join(f"{one.pid} (exit code {one.exitcode})" for one in ended)
        return f"DataLoader worker {found} exited unexpectedly" if ended else str(error)

    def close(self) -> None:
        self._batches._shutdown_workers()
