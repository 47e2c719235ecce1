"""What hands over batches: whether the data, the device and the strategy can be fed so. Pure."""

from __future__ import annotations

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.records.point import Device, Point
from scaling.workloads import data


def check(config: SweepConfig, device: Device, name: str) -> None:
    """Refuse a native feed, its workers or files dropped from the page cache where they would change nothing.

    Raises UsageError naming the flag and what would be right.
    """
    native = config.feed == "native"
    if config.feed_workers is not None and not native:
        raise UsageError(f"--feed-workers {config.feed_workers}: of the native feed alone; add --feed native")
    if config.drop_caches:
        _check_files("--drop-caches", device, name)
        if config.interleave:
            raise UsageError(
                "--interleave: points that take turns read the same pictures, and the second finds them in the "
                "page cache; leave it out with --drop-caches"
            )
    if native:
        _check_files("--feed native", device, name)
        if config.epochs is not None:
            raise UsageError(
                "--feed native: --epochs trains on the reference feed, whose epochs are exact; leave it out"
            )


def _check_files(flag: str, device: Device, name: str) -> None:
    if device == "emulated":
        raise UsageError(f"{flag}: emulated devices are not fed; leave it out")
    if data.spec(name).format not in data.DECODED:
        files = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in data.DECODED)
        raise UsageError(
            f"{flag}: --data {name} is held in memory; leave it out, or choose --data that is decoded from files: "
            f"{files}"
        )


def refusal(point: Point) -> str | None:
    """Why its framework cannot feed the point by itself, naming the flag; None when it can, or need not."""
    work = point.workload
    strategy = frameworks.load(point.strategy)
    drives = strategy.traits(point.strategy).drives
    if work.drop_caches and drives == "point":
        return "--drop-caches: what computes for it holds its samples in memory; leave it out"
    if work.feed != "native":
        return None
    read, found = strategy.native_formats, data.spec(work.data).format
    if not read:
        return "--feed native: it has no pipeline of its own for its trainers; leave it out"
    if found in read:
        return None
    names = ", ".join(one.name for one in data.CATALOGUE.values() if one.format in read)
    hint = f", {strategy.native_hint}" if strategy.native_hint else ""
    return f"--feed native: its own pipeline does not read --data {work.data}; leave it out, or take {names}{hint}"
