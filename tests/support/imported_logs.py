"""Logs of other tools, written by their grammars, what they say, and what damage does to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from scaling.errors import UsageError
from scaling.records.run import ImportedRow
from scaling.tools.importers.logs import Form, Found, Given
from scaling.tools.importers.tools import read_all

SAMPLES = Path(__file__).parents[1] / "unit" / "importers" / "samples"

NOTHING = Given()
_NO_NUMBERS = [byte for byte in range(256) if byte not in b"0123456789.,eE+-"]


class Said(NamedTuple):
    """What a sample says, by hand: devices, batch per device, units per second over all devices."""

    tool: str
    world_size: int
    batch_size: int
    rate: float
    unit: str = "images"
    given: Given = Given()
    # What it says where it ends earlier.
    earlier: tuple[float, ...] = ()


SAID = {
    "horovod_n1.log": Said("horovod", 1, 32, 112.2),
    "horovod_n4.log": Said("horovod", 4, 32, 432.8),
    "horovod_keras.log": Said("horovod", 2, 64, 2976.0),
    "tf_cnn_2.log": Said("tf_cnn_benchmarks", 2, 32, 204.75),
    "tf_cnn_8.log": Said("tf_cnn_benchmarks", 8, 32, 48.035),
    "torchtitan.log": Said("torchtitan", 8, 1, 58288.0, "tokens"),
    "hf_trainer.log": Said("hf_trainer", 4, 16, 267.4, "samples"),
    "hf_trainer_wrapped.log": Said("hf_trainer", 4, 8, 98.31, "samples"),
    "lightning_bar.log": Said("lightning", 4, 0, 0.8, "steps", earlier=(1 / 4.87, 1 / 1.67)),
    "lightning_no_total.log": Said("lightning", 2, 0, 8.1, "steps", earlier=(4.0, 5.0)),
    # 64 samples in 3.2 s, on 4 data-parallel ranks
    "megatron.log": Said("megatron", 8, 16, 20.0, "samples"),
    # 128 samples in 5 s
    "primus.log": Said("megatron", 16, 8, 25.6, "samples", Given(parallelism="tp=1")),
    "nemo.log": Said("nemo", 8, 8, 80.0, "samples"),
    # 16 x 4096 tokens/s; 2 sequences of a device on 2 devices that share a model
    "maxtext.log": Said("maxtext", 16, 4, 65536.0, "tokens"),
    "deepspeed.log": Said("deepspeed", 4, 16, 404.0, "samples"),
    "deepspeed_old.log": Said("deepspeed", 8, 0, 230.25, "samples", Given(world_size=8)),
    # 32 samples in 4 s, on 2 data-parallel ranks
    "gpt_neox.log": Said("megatron", 4, 16, 8.0, "samples"),
    "torchtitan_wps.log": Said("torchtitan", 8, 0, 25616.0, "tokens"),
    # (0.468 x 301 - 20.5 + 0.424 x 201 - 4.5) s are 500 steps
    "pytorch_imagenet.log": Said(
        "pytorch_imagenet",
        4,
        64,
        128000 / 201.092,
        "samples",
        Given(world_size=4, batch_size=64),
        (25600 / 40.504, 51200 / 80.804, 76800 / 120.368),
    ),
    # of 8 x 64 samples in 0.25 s
    "metric_logger.log": Said("metric_logger", 8, 64, 512 / 0.2502, "samples", Given(batch_size=64)),
    "mmengine.log": Said("mmengine", 8, 0, 2.0, "steps"),
    "detectron2.log": Said("detectron2", 8, 2, 40.0, "samples", earlier=(2.5,)),
    "ultralytics.log": Said(
        "ultralytics", 2, 32, 259.2, "samples", earlier=(128.0, 192.0, 243.2, 2.0, 3.0, 3.8, 4.05)
    ),
}


PUBLIC = Path(__file__).parents[1] / "unit" / "importers" / "public"


class Source(NamedTuple):
    """Where a public log was found, and what it says, by hand; the log is trimmed."""

    url: str
    world_size: int
    rate: float
    given: Given = Given()


def by(rate: str, unit: str, world_size: int = 1) -> Given:
    return Given(world_size=world_size, form=Form(rate=rate, unit=unit))


_GITHUB = "https://github.com"
EIGHT, ONE = Given(world_size=8), Given(world_size=1)
# one log of each tool, by its name
SOURCES = {
    "horovod.log": Source(f"{_GITHUB}/horovod/horovod/issues/712", 4, 432.8),
    "tf_cnn_benchmarks.log": Source(f"{_GITHUB}/horovod/horovod/issues/466", 1, 204.75, ONE),
    # GB/s busbw
    "nccl_tests.log": Source(f"{_GITHUB}/NVIDIA/nccl-tests/issues/252", 8, 97.54),
    "rccl_tests.json": Source(f"{_GITHUB}/ROCm/rccl-tests/pull/93", 4, 0.308),
    # the median of two iterations: 128 in 5.5338 and 5.7186 s
    "megatron.log": Source(f"{_GITHUB}/NVIDIA/Megatron-LM/issues/756", 16, 22.7514, Given(world_size=16)),
    "deepspeed.log": Source(f"{_GITHUB}/deepspeedai/DeepSpeed/issues/2629", 8, 157.0807, EIGHT),
    "maxtext.log": Source(f"{_GITHUB}/AI-Hypercomputer/maxtext/pull/4847", 8, 152914.544, EIGHT),
    "nemo.log": Source(f"{_GITHUB}/NVIDIA-BioNeMo/bionemo-recipes/pull/740", 1, 31.6156, ONE),
    "detectron2.log": Source(f"{_GITHUB}/facebookresearch/detectron2/issues/195", 8, 3.01023, EIGHT),
    "mmengine.log": Source(f"{_GITHUB}/open-mmlab/mmdetection/issues/4090", 8, 2.53807, EIGHT),
    # (2.175 x 196 - 37.476) s are 195 steps
    "pytorch_imagenet.log": Source(f"{_GITHUB}/pytorch/pytorch/pull/8371", 8, 0.501524, EIGHT),
    "metric_logger.log": Source(
        f"{_GITHUB}/fangwei123456/Spike-Element-Wise-ResNet/issues/10", 8, 0.381461, EIGHT
    ),
    "ultralytics.log": Source(f"{_GITHUB}/ultralytics/ultralytics/issues/2023", 8, 0.869631, EIGHT),
    "torchtitan.log": Source(f"{_GITHUB}/pytorch/torchtitan/pull/1349", 8, 8 * 171988.5),
    "lightning.log": Source(f"{_GITHUB}/NVIDIA/NeMo-Framework-Launcher/issues/55", 8, 1 / 41.36, EIGHT),
    "hf_trainer.log": Source(
        f"{_GITHUB}/weitsung50110/Bert_HugginFace_Train_Predict_SpamEmails/blob/main/README.md", 1, 4.005, ONE
    ),
}  # fmt: skip
# logs that `--rate` reads, of tools that have no reader of their own
BY_RATE = {
    # the median of nine windows after the first
    "mxnet.log": Source(f"{_GITHUB}/apache/mxnet/issues/4900", 1, 12941.92, by(r"Speed: ([\d.]+)", "samples")),
    # 262,144 tokens in the median of 33.69561 s
    "nanogpt.log": Source(
        f"{_GITHUB}/karpathy/nanoGPT/issues/466", 2, 1 / 33.69561, by(r"time ([\d.]+)ms", "ms/step", 2)
    ),
    "llm_c.log": Source(f"{_GITHUB}/karpathy/llm.c/issues/796", 1, 91886.5, by(r"([\d.]+) tok/s", "tokens")),
    "mlperf.log": Source(
        f"{_GITHUB}/mlcommons/training_results_v4.0/blob/main/ASUSTeK/results/ESC8000A-E12-8xH100-PCIE-80GB/bert/"
        "result_1.txt", 8, 3726.6889, by(r'"throughput": ([\d.]+)', "sequences", 8),
    ),
}  # fmt: skip


def written(folder: Path, text: str, name: str = "a.log") -> Path:
    """A log of these lines."""
    path = folder / name
    path.write_text(text)
    return path


def imported(log: Path, given: Given = NOTHING, tool: str | None = None) -> Found:
    return read_all([(log, given)], tool)[0]


def only_row(log: Path, given: Given = NOTHING) -> ImportedRow:
    (row,) = imported(log, given).rows
    return row


def refusal(log: Path, given: Given = NOTHING, tool: str | None = None) -> str:
    """Why a log is refused, without its name."""
    try:
        found = imported(log, given, tool)
    except UsageError as error:
        return str(error).removeprefix(f"LOG {log}: ")
    raise AssertionError(f"it was read: {found}")


def damaged(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """`data` cut at a random byte, and with a random byte changed, in turn; never so that one number becomes
    another, which a reader cannot tell where it stands once."""
    random = Random(seed)
    for number in range(count):
        place = random.randrange(len(data))
        if number % 2:
            yield data[:place]
        else:
            yield data[:place] + bytes([random.choice(_NO_NUMBERS)]) + data[place + 1 :]


def invented(data: bytes, said: Said, folder: Path) -> list[ImportedRow]:
    """Rows of a damaged log that it did not hold before; a refusal is none."""
    path = folder / "damaged.log"
    path.write_bytes(data)
    try:
        rows = imported(path, said.given).rows
    except UsageError:
        return []
    near = (said.rate, *said.earlier)
    return [
        row
        for row in rows
        if row.world_size != said.world_size or not any(is_near(row.rate, rate) for rate in near)
    ]


def is_near(rate: float | None, other: float) -> bool:
    """Within what leaving out one line of a few may change; that it failed is no rate."""
    return rate is None or abs(rate - other) <= 0.2 * other
