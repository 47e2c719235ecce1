"""What a run's header and rows say of the exchange and of the network under it, in the model's words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scaling.analysis.rows import Row
from scaling.errors import UsageError
from scaling.records.point import Point
from scaling.records.run import Header, PointRecord
from scaling.tools.predict.models import known_model
from scaling.tools.predict.setting import Bus, Link, Messages, Method, Overlap, Setting, Wire

# Of each pair of GPUs, where a switch joins them.
SWITCHED_LINKS = 6
# Options that shrink gradients on their way: Horovod's and MXNet's, DDP's.
COMPRESSIONS = ("compression", "compress")
SHARDED = "torch:fsdp2"
# On GPUs these exchange by NCCL, which takes cards by their verbs; everything else sends TCP.
BY_NCCL = ("nccl", "horovod", "fsdp2")
FALSE = ("false", "0", "no", "off")
# Options that the model knows at these values alone, the default first.
USUAL: Mapping[str, tuple[str, ...]] = {"hsdp": ("0",), "param_dtype": ("fp32",), "shard_optimizer": FALSE}


def setting_of(header: Header, records: Sequence[PointRecord], row: Row, rate: float) -> Setting:
    known = known_model(row.workload.model)
    link, line = _link(header, row)
    _known_way(row)
    method, overlap, messages = way(row)
    return Setting(
        gradient_bytes=gradient_bytes(records, row),
        tail=known.tail if known else 0.05,
        step_s=row.workload.batch_size / rate / accumulation(row),
        wire=_wire(row),
        bus=_bus(header, row),
        link=link,
        line_bytes_per_s=line,
        method=method,
        overlap=overlap,
        messages=messages,
        tensors=known.tensors if known else 200,
        emulated=bool(row.hardware.profile),
    )


def accumulation(row: Row) -> int:
    """The micro steps between two exchanges, among which the batch of a device is divided."""
    return int(row.options.get("accumulate", "1"))


def _wire(row: Row) -> Wire:
    """What the strategy's own compression makes of float32; its 2 bits (MXNet) are taken as half, at most."""
    whole = all(row.options.get(name, "none") == "none" for name in COMPRESSIONS)
    return "full" if whole else "half"


def _known_way(row: Row) -> None:
    """Raises UsageError where options make an exchange that the model does not have."""
    usual = {**USUAL, **({"accumulate": ("1",)} if row.strategy == SHARDED else {})}
    for name, plain in usual.items():
        given = row.options.get(name, plain[0])
        if given.lower() not in plain:
            raise UsageError(
                f"RUN: {row.strategy} with --option {name}={given}: what that exchanges is not in the model; "
                "measure it without, or larger with it"
            )


def gradient_bytes(records: Iterable[PointRecord], row: Row) -> float:
    """Bytes of one step's gradients, as the row's workers counted them; what emulation shrank is undone."""
    found = [
        rank.ready.gradient_bytes
        for record in records
        if record.point.workload == row.workload and record.point.hardware == row.hardware
        for rank in record.ranks
        if rank.ready is not None and rank.ready.gradient_bytes
    ]
    if found:
        return max(found) * row.hardware.shrink
    known = known_model(row.workload.model)
    if known is None:
        raise UsageError(f"RUN: no worker told the gradients of {row.workload.model}: measure it anew")
    return 4.0 * known.parameters


def way(row: Row | Point) -> tuple[Method, Overlap, Messages]:
    """How a strategy exchanges, in the model's words."""
    framework, _, mode = row.strategy.partition(":")
    if mode == "horovod":
        return "ring", "horovod", "fusion"
    if row.servers:
        return ("servers_beside" if row.server_hosts == "shared" else "servers_apart"), "other", "tensors"
    if mode == "local":
        return "servers_in_host", "other", "tensors"
    if row.strategy == SHARDED:  # two gathers and a scatter, or, where parameters are kept, what a ring moves
        kept = row.options.get("reshard", "true").lower() in FALSE
        return ("ring" if kept else "sharded"), "ddp", "buckets"
    if framework == "torch":
        return "ring", "ddp", "buckets"
    return "ring", "mwms" if framework == "tensorflow" else "other", "tensors"


def _bus(header: Header, row: Row) -> Bus:
    links = {link for host in header.hosts for gpu in host.gpus for link in gpu.links} - {"self"}
    if row.hardware.device != "cuda":
        return "loopback"
    if not any(link.startswith("NV") for link in links):
        return "pcie"
    # Through a switch every pair has all links of a GPU; 6 of them is the fewest that any has (DGX-2).
    whole = all(link.startswith("NV") and int(link[2:] or 0) >= SWITCHED_LINKS for link in links)
    return "nvswitch" if whole else "nvlink"


def _link(header: Header, row: Row) -> tuple[Link, float]:
    """What the run's network is: rates of emulated links are those of the cluster that is emulated."""
    network = next((one for one in header.networks if one.word == row.interconnect), None)
    if network is None or network.rate_bits_per_s is None:
        return ("unknown", 0.0) if row.nodes > 1 else ("none", 0.0)
    line = network.rate_bits_per_s / 8
    if row.hardware.profile:
        return "tcp10", line
    cards = max((len(place.hca.split(",")) for place in network.places.values() if place.hca), default=0)
    if cards and row.hardware.device == "cuda" and row.strategy.endswith(BY_NCCL):
        card = (network.card_bits_per_s or network.rate_bits_per_s) / 8
        return ("rdma_several" if cards > 1 else "rdma"), card * cards
    return ("tcp10" if line <= 1.25e9 else "tcp"), line


def device(header: Header) -> str:
    gpus = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    return next(iter(sorted(gpus)), header.hosts[0].cpu_model if header.hosts else "")


def devices_per_node(header: Header) -> int:
    return max(Counter(header.host_of_rank).values(), default=1)
