"""Logs of other tools, written by their grammars, what they say, and what damage does to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from scaling.errors import UsageError
from scaling.records.run import ImportedRow
from scaling.tools.importers.logs import Found, Given
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
    "mxnet_dist.log": Said("mxnet", 4, 32, 218.4, "samples"),
    "mxnet_horovod.log": Said("mxnet", 8, 104, 11214.9, "samples"),
    "mxnet_one.log": Said("mxnet", 1, 128, 1001.0, "samples"),
    "dllogger_file.log": Said("dllogger", 8, 256, 2901.0),
    "dllogger_stdout.log": Said("dllogger", 2, 0, 267.94, given=Given(world_size=2)),
    "torchtitan.log": Said("torchtitan", 8, 1, 58288.0, "tokens"),
    "hf_trainer.log": Said("hf_trainer", 4, 16, 267.4, "samples"),
    "hf_trainer_wrapped.log": Said("hf_trainer", 4, 8, 98.31, "samples"),
    "lightning_bar.log": Said("lightning", 4, 0, 0.8, "steps", earlier=(1 / 4.87, 1 / 1.67)),
    "lightning_no_total.log": Said("lightning", 2, 0, 8.1, "steps", earlier=(4.0, 5.0)),
    "lightning_rich.log": Said("lightning", 2, 0, 8.1, "steps", earlier=(4.0, 5.0)),
    "lightning_monitor.log": Said("lightning", 4, 0, 246.0, "samples"),
    "mlperf.log": Said("mlperf", 16, 204, 20101.0, given=Given(world_size=16)),
    "mlperf_06.log": Said("mlperf", 8, 0, 1501.5, given=Given(world_size=8)),
    # 64 samples in 3.2 s, on 4 data-parallel ranks
    "megatron.log": Said("megatron", 8, 16, 20.0, "samples"),
    # 128 samples in 5 s
    "primus.log": Said("megatron", 16, 8, 25.6, "samples", Given(parallelism="tp=1")),
    "nemo.log": Said("nemo", 8, 8, 80.0, "samples"),
    # 16 x 4096 tokens/s; 2 sequences of a device on 2 devices that share a model
    "maxtext.log": Said("maxtext", 16, 4, 65536.0, "tokens"),
    "deepspeed.log": Said("deepspeed", 4, 16, 404.0, "samples"),
    "deepspeed_old.log": Said("deepspeed", 8, 0, 230.25, "samples", Given(world_size=8)),
    "llm_c.log": Said("llm_c", 4, 32, 655360.0, "tokens"),
    # 131,072 tokens in 0.5 s; the iteration of 9 s evaluated first
    "nanogpt.log": Said("nanogpt", 4, 128, 262144.0, "tokens", Given(world_size=4)),
    # 32 samples in 4 s, on 2 data-parallel ranks
    "gpt_neox.log": Said("megatron", 4, 16, 8.0, "samples"),
    "nanochat.log": Said("nanochat", 4, 32, 523764.0, "tokens"),
    # 16 x 20,075
    "olmo.log": Said("olmo", 16, 0, 321200.0, "tokens", Given(world_size=16)),
    "torchtitan_wps.log": Said("torchtitan", 8, 0, 25616.0, "tokens"),
    "timm.log": Said("timm", 4, 0, 2000.0),
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
    "keras.log": Said("keras", 2, 0, 1 / 0.201, "steps"),
}
# Samples of benchmarks of collectives.
NETWORKS = ("nccl_", "rccl_")


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
