"""Trainers of other models: Composer and timm."""

from __future__ import annotations

from scaling.tools.importers.engine import Grammar, Launch, form, integers, narrowed, of_all, ratios
from scaling.tools.importers.lines import LogLine
from scaling.tools.importers.logs import Refused

# ---------------------------------------------------------------- Composer
# SpeedMonitor of github.com/mosaicml/composer: means over the last batches, with four digits.
# `time/sample` over `time/batch` is the global batch.

_HALF = 0.00005


def _ratio(launch: Launch) -> dict[int, LogLine | None]:
    """Devices: nodes times their GPUs, else the rate of all over that of one if its digits leave one number."""
    nodes, each = launch.only("nodes"), launch.only("gpus_per_node")
    if nodes and each:
        return {nodes * each: next(iter(launch.facts["nodes"].values()))}
    whole, one = launch.pooled("rate"), launch.pooled("device_rate")
    return narrowed(launch, ratios(whole[-1], one[-1], _HALF) if whole.size and one.size else set())


def _of_counters(launch: Launch) -> list[int]:
    samples, count = (int(launch.last.get(name, 0)) for name in ("_samples", "_batches"))
    each = count * launch.devices
    return [samples // each] if each and samples and samples % each == 0 else []


COMPOSER = Grammar(
    name="composer",
    marks=("throughput/",),
    sure=r"Train throughput/(?:device/)?samples_per_sec: [\d.]+",
    unit="samples",
    data="throughput/samples_per_sec",
    value=of_all("window", "the mean over the last batches, of all devices; the first is left out"),
    sizes=_ratio,
    batches=_of_counters,
    lines=(
        form("[", r"^\[(?:epoch=<epoch>\]\[)?(?:batch|token|sample|iteration)=<at>[/\]]"),
        form("throughput/samples", r"Train throughput/samples_per_sec: (?P<rate>\d+\.\d{4})\s*$"),
        form("device/samples", r"Train throughput/device/samples_per_sec: (?P<device_rate>\d+\.\d{4})\s*$"),
        form("Train time/batch:", r"Train time/batch: (?P<_batches>\d+)\s*$"),
        form("Train time/sample:", r"Train time/sample: (?P<_samples>\d+)\s*$"),
        form("loss/train/total", r"Train loss/train/total: <loss>\s*$"),
        form("num_nodes", r"^num_nodes: <nodes>\s*$"),
        form("num_gpus_per_node", r"^num_gpus_per_node: <gpus_per_node>\s*$"),
        form("Config:", r"^Config:\s*$", begins=True),
    ),
)


# ---------------------------------------------------------------- timm
# github.com/huggingface/pytorch-image-models: images of all devices over the seconds of one update.
# The rate in parentheses is the epoch's mean with its start. The first update of an epoch waits for its data.


def _of_update(launch: Launch) -> list[int]:
    """Images of a device: seconds x rate, where the digits of all lines leave one number. Raises Refused."""
    found: set[int] | None = None
    for seconds, rate in zip(launch.pooled("seconds"), launch.pooled("rate"), strict=True):
        one = integers((seconds - 0.0005) * (rate - 0.005), (seconds + 0.0005) * (rate + 0.005))
        found = one if found is None else found & one
    whole = {images // launch.devices for images in found or () if images % launch.devices == 0}
    if found and not whole:
        raise Refused(f"has {min(found)} images per update, no multiple of {launch.devices} devices")
    return [whole.pop()] if len(whole) == 1 else []


TIMM = Grammar(
    name="timm",
    marks=("Train: ",),
    sure=r"Train: \d+ \[ *\d+/\d+ \( *\d+%\)\] +Loss: ",
    unit="images",
    value=of_all("update", "images of all devices; each epoch's first update is left out", by_epoch=True),
    batches=_of_update,
    lines=(
        form(
            "Train: ",
            r"Train: <epoch> \[ *<step>/\d+ \( *\d+%\)\] +Loss: *<loss> .*?"
            r"Time: *(?P<seconds>\d+\.\d{3})s, +(?P<rate>\d+\.\d\d)/s +\(\d+\.\d{3}s, +\d",
        ),
        form("Training in distributed", r"Process \d+, total <world_size>[,.]", begins=True),
        form("Training with a single", r"Training with a single process on <world_size> ", begins=True),
        form("created, param", r"Model <model> created, param"),
        form("Training in mixed", r"Using \w+ \w+ (?P<precision>AMP)\. Training in mixed precision"),
        form("AMP not enabled", r"AMP not enabled\. Training in (?:\w+\.)?(?P<precision>\w+)"),
    ),
)
