"""Texts about GPUs, energy and GPU libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, log10

from scaling.analysis.measured.device_use import DeviceUse, MachineUse
from scaling.analysis.table.rows import PERCENT
from scaling.records.point import Workload
from scaling.records.run import PointRecord
from scaling.report import quantities
from scaling.report.parts import Phrase, Quantity

GIB = 1 << 30
_NAMES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}
# A device is named as slow if its clock is below this fraction of the mean.
SLOWER = 0.98


def device(use: DeviceUse, work: Workload) -> Phrase:
    """Return `SM 1,395 MHz (1,410 at most), 412 W, 98 % busy, 31.2 GiB, 0.432 J/image, 2.31 images/s/W`. `~` marks
    energy that was integrated from readings of power."""
    said: list[Phrase] = [_clock(use)]
    if use.power_w is not None:
        said.append((_whole(use.power_w, "W"),))
    if use.utilisation_percent is not None:
        said.append((_whole(use.utilisation_percent, PERCENT), " busy"))
    if use.peak_memory_bytes is not None:
        said.append((Quantity(value=use.peak_memory_bytes / GIB, digits=1, unit="GiB"),))
    if use.j_per_sample:
        said.append((*(("~",) if use.energy_is_integral else ()), *energy(use.j_per_sample, work)))
    return quantities.listed(filter(None, said))


def _clock(use: DeviceUse) -> Phrase:
    mean, slowest, highest = use.sm_clock_mhz, use.slowest_sm_clock_mhz, use.max_sm_clock_mhz
    if mean is None or slowest is None or highest is None:
        return ()
    slow: Phrase = (", the slowest ", _whole(slowest)) if slowest < SLOWER * mean else ()
    return "SM ", _whole(mean, "MHz"), " (", _whole(highest), " at most", *slow, ")"


def machine(use: MachineUse, work: Workload) -> Phrase:
    """Return `182 W, 0.36 J/image, 2.78 images/s/W`; `-` if the counters cannot be read."""
    if use.power_w is None or not use.j_per_sample:
        return ("-",)
    return (_whole(use.power_w, "W"), ", ", *energy(use.j_per_sample, work))


def energy(j_per_sample: float, work: Workload) -> Phrase:
    """Return the energy of one image or token, and its inverse."""
    of_one = j_per_sample / work.units_per_sample
    return (
        Quantity(value=of_one, digits=_three(of_one), unit=f"J/{work.unit.removesuffix('s')}"),
        ", ",
        Quantity(value=1 / of_one, digits=_three(1 / of_one), unit=f"{work.unit}/s/W"),
    )


def _three(value: float) -> int:
    return max(0, 2 - floor(log10(value)))


def _whole(value: float, unit: str = "") -> Quantity:
    return Quantity(value=value, digits=0, unit=unit, grouped=True)


# ---------------------------------------------------------------- libraries


def libraries(records: Iterable[PointRecord]) -> str:
    """Return `torch 2.13.0+cu130: CUDA 13.0, cuDNN 9.20.0, NCCL 2.29.7`; "" without GPUs. The version in NCCL's
    own log wins: Horovod may link another NCCL than the framework."""
    found = []
    for rank in (rank for record in records for rank in record.ranks if rank.ready):
        versions = dict(rank.ready.versions) if rank.ready else {}
        if rank.nccl and rank.nccl.version:
            versions["nccl"] = rank.nccl.version
        framework = next(iter(versions), "")
        known = {key: versions[key] for key in _NAMES if versions.get(key, "None") != "None"}
        told = [f"{_NAMES[key]} {cudnn(one) if key == 'cudnn' else one}" for key, one in known.items()]
        found += [f"{framework} {versions[framework]}: {', '.join(told)}"] if told else []
    return "; ".join(dict.fromkeys(found))


def cudnn(version: str) -> str:
    """Return `9.20.0` for 92000, `8.9.2` for 8902 (cudnn_version.h); other texts unchanged."""
    if not version.isdecimal() or len(version) < 4:
        return version
    number = int(version)
    scale = 10_000 if number >= 90_000 else 1_000
    parts: Sequence[int] = (number // scale, number % scale // 100, number % 100)
    return ".".join(map(str, parts))
