"""Models, devices and networks by name: gradients, buses and lines.

Rates are of one direction of one device ("busbw" of nccl-tests). A training reaches a share of them, which is
learned (`bus.*` in priors.toml).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from scaling.errors import UsageError, near
from scaling.tools.predict.setting import Bus, Link

# ---------------------------------------------------------------- models
# `tail` is the share of the gradients that only the end of backward produces: small first layers, or the
# embeddings of a transformer. Parameters of convolutional networks are the catalogue's
# (scaling/workloads/models.py; a test compares). BERT's follow from its shape (Devlin et al., arXiv:1810.04805:
# 30,522 tokens, 768 x 12 or 1,024 x 24).


class KnownModel(NamedTuple):
    """`tokens` of a short sample of text: fewer are not used to train it."""

    name: str
    parameters: int
    tail: float
    tensors: int
    pattern: str
    tokens: int = 1


MODELS = (
    KnownModel("digits-cnn", 813_546, 0.0004, 16, "digits"),
    KnownModel("resnet50", 25_557_032, 0.0004, 161, r"resnet-?50"),
    KnownModel("resnet101", 44_549_160, 0.0002, 314, r"resnet-?101"),
    KnownModel("resnet152", 60_192_808, 0.0002, 467, r"resnet-?152"),
    KnownModel("alexnet", 61_100_840, 0.0004, 16, "alexnet"),
    KnownModel("vgg16", 138_357_544, 0.0001, 32, r"vgg-?16"),
    KnownModel("googlenet", 6_998_552, 0.0014, 116, "googlenet"),
    KnownModel("inception_v3", 23_834_568, 0.0001, 284, r"inception[- _]?(v3|bn)"),
    KnownModel("bert-base", 110_000_000, 0.217, 206, r"bert-?base", 64),
    KnownModel("bert-large", 336_200_000, 0.095, 398, r"bert-?large", 64),
    KnownModel("transformer-xl", 285_000_000, 0.3, 300, r"transformer-?xl", 128),
    KnownModel("transformer-big", 213_000_000, 0.16, 250, r"transformer-?big", 16),
    KnownModel("gnmt", 160_000_000, 0.2, 80, "gnmt", 16),
    KnownModel("llama-8b", 8_030_000_000, 0.065, 291, r"llama.*8b", 256),
    KnownModel("bart", 406_300_000, 0.127, 500, "bart", 64),
)


def known_model(words: str) -> KnownModel | None:
    return next((one for one in MODELS if re.search(one.pattern, words.lower())), None)


# ---------------------------------------------------------------- devices

# of devices that are not in DEVICES: PCIe 4.0 x16 by its data sheet, the links of a V100, the switch of an A100
USUAL_BYTES_PER_S: Mapping[Bus, float] = {
    "pcie": 31.5e9, "nvlink": 120e9, "nvswitch": 240e9, "host": 15.75e9, "loopback": 1e9, "unknown": 40e9,
}  # fmt: skip


class Device(NamedTuple):
    """Rates of a device: between devices that have links, and by PCIe; 0 if it has none."""

    pattern: str
    links_bytes_per_s: float
    pcie_bytes_per_s: float
    source: str


_PROTOCOL = "data sheet, less 20 % for the protocol (github.com/NVIDIA/nccl-tests/issues/212)"
# The first whose pattern is in the name.
DEVICES = (
    Device(r"h[12]00|h800|gh200|h20\b", 476e9, 63e9, "github.com/NVIDIA/nccl-tests/issues/290 and 272"),
    Device(r"b[23]00", 720e9, 63e9, _PROTOCOL),
    Device(r"a100|a800", 240e9, 31.5e9, _PROTOCOL),
    Device(r"mi3\d\d", 336e9, 63e9, "7 links of 48 GB/s: rocm.blogs.amd.com, mi300x-rccl-xgmi, 2025-03-02"),
    Device(r"mi250", 100e9, 31.5e9, "data sheet: 2 links of 50 GB/s to the next device of a ring"),
    Device(r"v100|titan v", 120e9, 15.75e9, _PROTOCOL),
    Device(r"p100", 64e9, 15.75e9, _PROTOCOL),
    Device(r"50[89]0|rtx pro", 0.0, 63e9, "PCIe 5.0 x16: data sheet"),
    Device(r"k80|k520|m60|p40|t4\b|1080|20[78]0|titan", 0.0, 15.75e9, "PCIe 3.0 x16: data sheet"),
)


def bytes_per_s(bus: Bus, device: str) -> float:
    """Return the rate of a bus between devices of this name; 0 if the device is unknown or has no such bus."""
    known = next((one for one in DEVICES if re.search(one.pattern, device.lower())), None)
    if known is None or bus not in ("pcie", "nvlink", "nvswitch"):
        return 0.0
    return known.pcie_bytes_per_s if bus == "pcie" else known.links_bytes_per_s


def is_known_device(device: str) -> bool:
    return any(re.search(one.pattern, device.lower()) for one in DEVICES)


# published series that the priors were learned from and tested on
COVERED = re.compile(r"v100|a100|h[12]00|p100|k80|k520|t4\b|2080|3090|4090|mi250|b200")
# cards that are sold without NVLink
UNLINKED = re.compile(r"rtx ?(30[5-8]|40|50|6000 ada|pro)|gtx|k80|k520|m60|p40|t4\b|l40?s?\b|a10\b|a2\b|a16\b")


# ---------------------------------------------------------------- networks

GBIT_BYTES = 1e9 / 8
# words of --network
RDMA, TCP = ("ib", "roce", "rdma"), ("tcp", "eth", "ipoib")
# Gb/s of one card and cards of a node: Fast Ethernet to twice what is sold
SLOWEST_GBIT, FASTEST_GBIT, MOST_CARDS = 0.1, 1600, 16


class Wires(NamedTuple):
    """A network between nodes, in the words of `Setting`."""

    link: Link
    line_bytes_per_s: float
    cards: int = 1


def tcp_link(gbit: float, *, infiniband: bool = False) -> Link:
    """Return the kind of TCP over a card of this rate: up to 10 Gb/s a host keeps up with its line."""
    if gbit <= 10:
        return "tcp10"
    return "ipoib" if infiniband else "tcp"


def network(words: str, *, emulated: bool = False, verbs: bool = True) -> Wires:
    """Parse `ib:200` or `tcp:25x2`. Raises UsageError. Without verbs, InfiniBand carries TCP."""
    parsed = re.fullmatch(r"([a-z]+):(\d{1,6}(?:\.\d{1,6})?)(?:x(\d{1,3}))?", words.strip().lower())
    if not parsed:
        raise UsageError(f"--network {words}: write KIND:GBIT or KIND:GBITxCARDS, such as ib:200 or tcp:25x2")
    kind, gbit, cards = parsed[1], float(parsed[2]), int(parsed[3] or 1)
    if kind not in (*RDMA, *TCP):
        raise UsageError(f"--network {words}: unknown kind; {near(kind, (*RDMA, *TCP))}")
    if not (SLOWEST_GBIT <= gbit <= FASTEST_GBIT and 1 <= cards <= MOST_CARDS):
        limits = f"{SLOWEST_GBIT:g} to {FASTEST_GBIT:,} Gb/s of one card, 1 to {MOST_CARDS} cards of a node"
        raise UsageError(f"--network {words}: give {limits}")
    line = gbit * cards * GBIT_BYTES
    if emulated:
        return Wires("tcp10", line, cards)
    if kind in RDMA and verbs:
        return Wires("rdma_several" if cards > 1 else "rdma", line, cards)
    return Wires(tcp_link(gbit, infiniband=kind in ("ib", "ipoib")), line, cards)
