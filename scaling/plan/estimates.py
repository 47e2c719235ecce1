"""Estimate how long a group of points takes. Constants of GPUs are those of one NVIDIA H200 (November 2026)."""

from __future__ import annotations

from scaling import frameworks
from scaling.plan import defaults
from scaling.plan.config import SweepConfig
from scaling.plan.groups import Group, seats
from scaling.records.point import Point
from scaling.workloads import models

# Points that take turns on CPUs: seconds until all forks are ready, windows of warm-up, seconds before a window.
GROUP_STARTUP_S, WARMING, UNCOUNTED_S = 1.5, 1.5, 0.1
# On GPUs: set up CUDA, cuDNN and NCCL and build the model; leave.
ON_GPU_S, LEAVE_GPU_S = 5.3, 0.5
# On GPUs: seconds of a first step with convolutions, for which cuDNN tries its algorithms (ResNet-50 took 2.9 to
# 3.4 s), of another first step (gpt2-tiny took 0.4 to 1.7 s), and before a window that has its turn: two steps.
FIRST_CONVOLUTIONS_S, FIRST_STEP_S, UNCOUNTED_ON_GPU_S = 3.2, 0.6, 0.15
# Seconds to compile a model, a guess; to profile steps and read the trace.
COMPILE_S, TRACE_S = 60.0, 2.5


def group_s(group: Group, config: SweepConfig, slept_s: float = 0.0) -> float:
    """Estimate the seconds of a group in one round. `slept_s`: of the longest step of an emulated device."""
    window_s = max(defaults.window_s(config, group.points), slept_s)
    if group.points[0].hardware.device == "cuda":
        return _on_gpus_s(group, config, window_s)
    windows = config.windows or defaults.turns_in_round(window_s + UNCOUNTED_S)
    if group.side_by_side:
        turns = sum(turns_of(point, windows) + WARMING for point in group.points)
        return GROUP_STARTUP_S + turns * (window_s + UNCOUNTED_S)
    point = group.points[0]
    seats_in_turn = point.world_size if point.kind == "each" else 1
    compile_s = COMPILE_S if point.workload.compile else 0.0
    warm_up_s = _warm_up_s(config, point, window_s)
    return frameworks.startup_s(point.strategy) + compile_s + seats_in_turn * windows * window_s + warm_up_s


def _on_gpus_s(group: Group, config: SweepConfig, window_s: float) -> float:
    windows = config.windows or defaults.turns_in_round(window_s + UNCOUNTED_ON_GPU_S)
    start_s = ON_GPU_S + max(_import_s(point, config) for point in group.points)
    first_s = sum(_first_step_s(point) for point in group.points)
    warm_up_s = _warm_up_s(config, group.points[0], window_s)
    if group.side_by_side and config.warm_up_s is None and config.rounds:  # later rounds find the GPUs warm
        again_s = (defaults.WARM_UP_WINDOWS + 2) * window_s
        warm_up_s = again_s + max(0.0, warm_up_s - again_s) / config.rounds
    turns_s = sum(
        (windows + 1) * (part_of_window(point) * window_s + UNCOUNTED_ON_GPU_S) if group.side_by_side
        else windows * window_s
        for point in group.points
    )  # fmt: skip
    return start_s + first_s + warm_up_s + turns_s + LEAVE_GPU_S


def _warm_up_s(config: SweepConfig, point: Point, window_s: float) -> float:
    least_s, _ = defaults.warm_up_s(point.hardware.device, config.warm_up_s)
    return max(least_s, defaults.WARM_UP_WINDOWS * window_s) + 2 * window_s


def _import_s(point: Point, config: SweepConfig) -> float:
    """Seconds until a worker has imported its framework; 0 for a fork of a process that has."""
    framework = frameworks.named(frameworks.load(point.strategy).baseline)
    return 0.0 if framework.forks(point.hardware.device, fresh=config.fresh_workers) else framework.startup_s


def _first_step_s(point: Point) -> float:
    computes = point.kind not in ("comm", "feed")
    if computes and point.workload.compile:
        return COMPILE_S
    images = computes and models.of(point.workload).reads_images
    return FIRST_CONVOLUTIONS_S if images else FIRST_STEP_S


def turns_of(point: Point, windows: int) -> int:
    """Return how many windows of a point are measured in a round."""
    if point.kind != "each":
        return windows
    return sum(len(seats(point.world_size, block, windows)) for block in range(windows))


# `comm` is in no efficiency: a part of a window is enough. Exchanges of several ranks are the noisiest points,
# because their steps stall now and then: longer windows average that.
COMM_PART, EXCHANGE_PART = 0.25, 2.0


def part_of_window(point: Point) -> float:
    """Return how long a window of a point that takes turns lasts, in windows."""
    of_exchange = EXCHANGE_PART if point.world_size > 1 else 1.0
    return {"exchange": of_exchange, "comm": COMM_PART}.get(point.kind, 1.0)
