"""Emulated clusters against what they stand for; needs root, makes a lab of its own (4 nodes of 4) and ends it.

16 emulated P100s train over 100 and 10 Gb/s at two settings of shrink and dilate that leave a core idle. Printed:
step time against max(compute, exchange) with its tail, within 6 %; the settings against each other, within 5 %;
the machine's CPU meanwhile. MODELS (resnet50,googlenet), ROUNDS, WINDOWS and SETTINGS (K:D,K:D; the first by
default what the tool chooses, the second half the shrink and twice the dilate) come from the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from scaling.analysis.measured.step_time import step_time
from scaling.records import store
from scaling.records.point import Point
from scaling.records.run import PointRecord
from scaling.tools.emulated import layers, profiles
from scaling.tools.emulated.layers import DEFAULT_BUCKET_MB, bucket_bytes

NAME = os.environ.get("LAB", "bench-emulated")
MODELS = os.environ.get("MODELS", "resnet50,googlenet").split(",")
SETTINGS = os.environ.get("SETTINGS", "")
RANKS = 16
RATES_BITS_PER_S = {"ib0": 100e9, "eth0": 10e9}
# What TCP/IP and Ethernet leave of a link's rate.
FRAMING = 0.956
SWEEP = (
    "--device", "emulated:p100", "--world-sizes", str(RANKS), "--kinds", "exchange", "--view", "none",
    "--interconnect", ",".join(RATES_BITS_PER_S),
    "--rounds", os.environ.get("ROUNDS", "1"), "--windows", os.environ.get("WINDOWS", "6"),
)  # fmt: skip


def expected_s(point: Point) -> float:
    """max(compute, exchange) with its tail: DDP's buckets, one after the other over the nodes' links, each once
    its last gradient is there. Inside a node bytes take no time."""
    work = point.workload
    rate = profiles.rate(point.hardware.profile, work.model, work.batch_size, work.image_size)
    spans = layers.spans(layers.of(work.model, work.image_size), rate.step_s)
    now_s = sum(span.forward_s for span in spans)
    ready: list[tuple[float, int]] = []
    for span in reversed(spans):
        now_s += span.backward_s
        ready += [(now_s, layers.FLOAT32_BYTES * size) for size in reversed(span.sizes)]
    done_s, index = 0.0, -1
    link_bytes_per_s = FRAMING * RATES_BITS_PER_S[point.interconnect] / 8
    for bucket in bucket_bytes((size for _, size in ready), DEFAULT_BUCKET_MB):
        left = bucket
        while left:
            index += 1
            left -= ready[index][1]
        wire_s = 2 * (point.world_size - 1) / point.world_size * bucket / link_bytes_per_s
        done_s = max(done_s, ready[index][0]) + wire_s
    return max(now_s, done_s)


def main() -> None:
    out = sys.stdout.write
    nics = [word for name, rate in RATES_BITS_PER_S.items() for word in ("--nic", f"{name}={rate / 1e9:g}gbit")]
    _lab("up", "--nodes", "4", "--slots", "4", *nics)
    try:
        for model in MODELS:
            first = measured(model, *_given(0))
            setting = first[0].point
            given = _given(1) or (max(1.0, setting.hardware.shrink / 2), 2 * setting.hardware.dilate)
            for line in compared(first, measured(model, *given)):
                out(line + "\n")
                sys.stdout.flush()
    finally:
        _lab("down")


def compared(first: list[PointRecord], second: list[PointRecord]) -> Iterable[str]:
    """Each network's two settings against what is expected, and against each other."""
    for name in RATES_BITS_PER_S:
        steps = []
        for records in (first, second):
            mine = [one for one in records if one.point.interconnect == name]
            point, expected = mine[0].point, expected_s(mine[0].point)
            step_s = fmean(_step_s(one) for one in mine)
            busy = fmean(rank.telemetry.machine_cpu_percent or 0.0 for one in mine for rank in one.ranks)
            steps.append(step_s)
            ratio = 100 * (step_s / expected - 1)
            yield (
                f"{point.workload.model:12} {name:5} "
                f"sizes / {point.hardware.shrink:<4g} times x {point.hardware.dilate:<4g} "
                f"step {1e3 * step_s:7.1f} ms, expected {1e3 * expected:7.1f}: {ratio:+5.1f} % (within 6 %); "
                f"CPU {busy:.0f} %"
            )
        yield f"{'':12} {name:5} second setting over first {100 * (steps[1] / steps[0] - 1):+.1f} % (within 5 %)"


def measured(model: str, *setting: float) -> list[PointRecord]:
    """A sweep in the lab, at shrink and dilate, or at what the tool chooses."""
    flags = [
        word
        for flag, value in zip(("--shrink", "--dilate"), setting, strict=False)
        for word in (flag, f"{value:g}")
    ]
    with TemporaryDirectory(dir=Path.cwd()) as folder:
        program = (sys.executable, "-m", "scaling.run", "--model", model, "--results", folder, *SWEEP, *flags)
        _lab("run", "--", "-np", str(RANKS), *program)
        (run,) = Path(folder).iterdir()
        return list(store.load(run)[1])


def _step_s(record: PointRecord) -> float:
    time = step_time(record)
    assert time is not None, record.outcome
    return time.step_s


def _given(index: int) -> tuple[float, ...]:
    """The setting of that number, nothing where the tool shall choose."""
    texts = SETTINGS.split(",") if SETTINGS else []
    return tuple(float(word) for word in texts[index].split(":")) if index < len(texts) else ()


def _lab(command: str, *words: str) -> None:
    called = [sys.executable, "-m", "scaling", "lab", command, "--name", NAME, *words]
    subprocess.run(called, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
