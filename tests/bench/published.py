"""Converts published tables of throughput to series for the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path

import msgspec

from scaling import files
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.tools.predict.setting import (
    At,
    Bus,
    Link,
    Measured,
    Messages,
    Method,
    Overlap,
    Setting,
    bytes_per_s,
    known_model,
)
from tests.support.scripted_clusters import measured_at

GBIT_BYTES = 1e9 / 8
# spellings of Gb/s; the group is Tb/s
UNIT = r"gb/s|gbe|gbit|gbps|gigabit|gb?\b|(tb/s|tbit|tbps)"
# of the logarithm of a step without published batch or sample length
GUESSED_STEP = 0.4
TOKENS = (("llama", 8192), ("transformer-xl base", 192), ("transformer-xl", 384), ("gnmt", 50))


class PublishedPoint(Record, frozen=True, kw_only=True):
    gpus: int
    nodes: int
    throughput: float
    unit: str = ""
    step_ms: float | None = None
    accum: int = 1
    std: float | None = None
    pm: float | None = None


class Published(Record, frozen=True, kw_only=True):
    """One curve of a table, in its publisher's words."""

    id: str
    source: str
    model: str
    points: tuple[PublishedPoint, ...]
    gpus_per_node: int | None = None
    params_millions: float | None = None
    gpu: str = ""
    intra_node: str = ""
    network: str = ""
    framework: str = ""
    comm: str = ""
    precision: str = "fp32"
    batch_per_gpu: float | None = None
    trust: str = "C"
    notes: str = ""
    grad_bytes_fp32: float | None = None


class Series(Record, frozen=True, kw_only=True):
    """A published curve for the model. Efficiencies are relative to its first point, the setting's anchor.

    `exchange`: in its publisher's words.
    """

    name: str
    source: str
    exchange: str = ""
    trust: str
    setting: Setting
    observed: tuple[Measured, ...]

    @property
    def publisher(self) -> str:
        return publisher(self.source)


def publisher(source: str) -> str:
    """The repository of a source, or its web site, which stands for a cluster."""
    return re.split(r"[\s]", source.removeprefix("github.com/"))[0].split("/issues")[0].split("/pull")[0]


def read(path: Path) -> tuple[Published, ...]:
    """Read a file of published series. Raises UsageError with the fault."""
    try:
        return msgspec.json.decode(files.read(path), type=tuple[Published, ...])
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: {error}; the file must be an array of series like tests/published.json"
        ) from None


def series(published: Sequence[Published]) -> list[Series]:
    """Convert the usable series: with known gradients and at least two points."""
    return [one for each in published if (one := _series(each)) is not None]


def _series(one: Published) -> Series | None:
    points = sorted(one.points, key=lambda point: (point.nodes, point.gpus))
    if not _has_sense(one) or len(points) < 2:
        return None
    first = points[0]
    each = first.throughput / first.gpus
    return Series(
        name=one.id,
        source=one.source,
        exchange=one.comm,
        trust=one.trust,
        setting=setting(one, first),
        observed=tuple(
            measured_at(_at(point), point.throughput / point.gpus / each, _noise(point)) for point in points[1:]
        ),
    )


def _has_sense(one: Published) -> bool:
    known = (one.batch_per_gpu, *(point.step_ms for point in one.points))
    return (
        0 < _gradient_bytes(one) < inf
        and all(value is None or 0 <= value < inf for value in known)
        and all(point.gpus >= point.nodes >= 1 <= point.accum for point in one.points)
        and all(0 < point.throughput < inf for point in one.points)
        and _servers_known(one)
    )


def _servers_known(one: Published) -> bool:
    """False if parameter servers serve several nodes, and their number is not stated or not the nodes'."""
    if not _method(one).startswith("servers_") or all(point.nodes == 1 for point in one.points):
        return True
    text = one.comm.lower()
    if re.search(r"#servers = #worker nodes|one (server )?per (worker|node)", text):
        return True
    counted = re.search(r"(\d+)(?: cpu)? p?servers", text)
    return counted is not None and all(point.nodes in (1, int(counted[1])) for point in one.points)


def _at(point: PublishedPoint) -> At:
    return At(world_size=point.gpus, nodes=point.nodes, accumulation=point.accum)


def _noise(point: PublishedPoint) -> float:
    spread = max(point.std or 0.0, 0.5 * (point.pm or 0.0)) / point.throughput
    return max(0.005, min(spread, 0.1))


def setting(one: Published, first: PublishedPoint) -> Setting:
    step_s, spread = _step_s(one, first)
    known = known_model(one.model)
    several = any(point.nodes > 1 for point in one.points)
    link, line = _link(one) if several else ("unknown", 0.0)
    overlap = _overlap(one)
    return Setting(
        gradient_bytes=_gradient_bytes(one) * _wire(one.precision),
        tail=known.tail if known else 0.05,
        step_s=step_s,
        step_spread=spread,
        anchor=_at(first),
        bus=(bus := _bus(one)),
        bus_bytes_per_s=bytes_per_s(bus, one.gpu) or 0.0,
        link=link,
        line_bytes_per_s=line,
        cards=_cards(one),
        carrier="cpu" if re.search(r"gloo|grpc|horovod_device=cpu", one.comm.lower()) else "nccl",
        method=_method(one),
        overlap=overlap,
        messages=_messages(one, overlap),
        tensors=known.tensors if known else 200,
        sparse_bytes=_sparse_bytes(one) if overlap == "mwms" else 0.0,
    )


def _gradient_bytes(one: Published) -> float:
    """In float32; 0 if unknown."""
    return one.grad_bytes_fp32 or 4e6 * (one.params_millions or 0.0)


def _step_s(one: Published, first: PublishedPoint) -> tuple[float, float]:
    """Also the standard deviation of its logarithm."""
    rate, text = first.throughput / first.gpus, one.model.lower()
    tokens = "token" in first.unit
    if tokens and "in tokens" in one.notes:
        return 5120 / rate, GUESSED_STEP
    batch = one.batch_per_gpu
    if tokens and batch:
        length = next((count for name, count in TOKENS if name in text), 0)
        return batch * (length or 128) / rate, 0.0 if length else GUESSED_STEP
    if batch:
        return batch / rate, 0.0
    if first.step_ms:
        return first.step_ms / 1000 / first.accum, 0.0
    return 64 / rate, GUESSED_STEP


def _bus(one: Published) -> Bus:
    text = one.intra_node.lower()
    if "nvswitch" in text and "nvlink2/nvswitch" not in text:
        return "nvswitch"
    if "nvlink2/nvswitch" in text:
        return "nvswitch" if (one.gpus_per_node or 0) > 8 else "nvlink"
    if not text:
        return "unknown"
    if "no nvlink" in text:
        return "pcie"
    return "nvlink" if re.search(r"nvlink|xgmi|infinity fabric", text) else "pcie"


def _link(one: Published) -> tuple[Link, float]:
    text = f"{one.network} {one.comm}".lower()
    rate = re.search(rf"(\d+(?:\.\d+)?)(?:-(\d+))?\s*(?:{UNIT})", one.network.lower())
    gbit = float(rate[2] or rate[1]) * (1000 if rate[3] else 1) if rate else 0.0
    line = gbit * _cards(one) * GBIT_BYTES
    tcp = re.search(r"tcp|ethernet|ipoib|ib_disable|\bvm\b|\d+\s*gbe", text) and not re.search(
        r"roce|(?<!not )rdma", one.network.lower()
    )
    if not gbit:
        rdma = re.search(r"infiniband|rdma|roce|mlx", text) and not tcp
        return ("rdma", 100 * GBIT_BYTES) if rdma else ("unknown", 0.0)
    if tcp:
        return "ipoib" if "ipoib" in text else "tcp", line
    if re.search(r"infiniband|rdma|roce|\bib\b|edr|hdr|ndr|fdr|omni-?path|\bopa\b|slingshot|\befa\b", text):
        return "rdma", line
    return "tcp", line


def _cards(one: Published) -> int:
    text = one.network.lower()
    if number := re.search(rf"(\d+)\s*[x×]\s*(?:[a-z]+\s*)?\d+\s*(?:{UNIT})", text):
        return int(number[1])
    if "per gpu" in text:
        return one.gpus_per_node or 1
    return 2 if re.search(r"\bdual\b", text) else 1


def _method(one: Published) -> Method:
    text = one.comm.lower()
    several = any(point.nodes > 1 for point in one.points)
    if "fsdp" in text:
        return "sharded"
    if re.search(r"\bps\b|parameter.server|pserver|kvstore dist|byteps", text):
        inside = "cpu" in text and not several
        return "servers_beside" if inside or "co-located" in text or "kvstore" in text else "servers_apart"
    return "ring"


def _overlap(one: Published) -> Overlap:
    text = one.comm.lower()
    if "no overlap" in text:
        return "serial"
    if "multiworkermirrored" in text or "little overlap" in text:
        return "mwms"
    return "backward"


def _messages(one: Published, overlap: Overlap) -> Messages:
    text = one.comm.lower()
    if overlap == "serial":
        return "one"
    if overlap == "mwms" or ("per tensor" in text and "no fusion" in text):
        return "tensors"
    return "buckets"


def _wire(precision: str) -> float:
    """Mixed precision sends either, rarely stated: float32."""
    return 0.5 if precision.lower().startswith(("fp16", "bf16")) else 1.0


def _sparse_bytes(one: Published) -> float:
    length = re.search(r"seq(?: len)? (\d+)", one.model.lower())
    if "bert" not in one.model.lower() or not length or not one.batch_per_gpu:
        return 0.0
    width = 1024 if "large" in one.model.lower() else 768
    return one.batch_per_gpu * int(length[1]) * width * 4
