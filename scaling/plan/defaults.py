"""Defaults for rounds, windows, soak, warm-up and timeouts, and how long a group of points then takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.groups import Group, operations, seats
from scaling.plan.validation import BURN_IN_ROUNDS, check_max_rounds
from scaling.records.host import Gpu
from scaling.records.point import Device, Point, Workload
from scaling.workloads import models

# Defaults of (rounds, windows, seconds of a window). They were chosen by simulation for equal wall time
# (python -m tests.bench.intervals). Where noise is as large over 1 s as over 0.1 s, as on many virtual machines,
# many short windows give a narrower interval than few long ones (python -m tests.bench.pace).
PACE_SIDE_BY_SIDE = (6, None, 0.1)
# Windows of frameworks that run ahead: the end of a window empties their queue, a large part of a short window.
WINDOW_OF_QUEUES_S = 0.3
# Five rounds detect 5 % between two of eight exchanges in 73 to 79 % of tables, six in 92 to 94 %
# (python -m tests.bench.comparisons); many points take long.
MANY_POINTS, ROUNDS_OF_MANY_POINTS = 20, 5
# On GPUs starts differ by 0.1 to 0.5 % and windows by less (H200): few windows for each start. With a standard
# deviation of 0.26 % between starts, the mean interval (95 %, Student) of two points is ± 0.54 % after four rounds
# and ± 0.81 % after three, which many points have.
PACE_OF_GPUS_IN_TURNS = (3, 3, 0.3)
FEW_POINTS, ROUNDS_OF_FEW_POINTS = 4, 4
# Points that take turns have TURNS_S of windows each in a round, between FEWEST_TURNS and MOST_TURNS of them.
# A window is at least one step, and steps may take 0.01 s or 10 s.
TURNS_S, FEWEST_TURNS, MOST_TURNS = 1.15, 5, 12
# The soak, at most SOAK_PART of the planned time. It detects warm-up that lasts 20 s
# (tests/unit/analysis/test_lasting.py).
SOAK_S, SOAK_ON_GPUS_S, SOAK_PART = 12.0, 4.0, 1 / 5
PACE_ALONE = (5, 5, 0.5)
# Sleeping devices make little noise: if a plan of emulated ones takes longer than EMULATED_S, it has this pace,
# and times are multiplied by less.
EMULATED_S = 15 * 60.0
PACE_OF_EMULATED = (2, 3, 0.5)
# Warm-up: least and most seconds, fewest windows. A GPU's clock settles to its power limit within 10 to 30 s.
# Clock, power and temperature are read until they are steady.
WARM_UP_S, WARM_UP_ON_GPUS_S, WARM_UP_WINDOWS = (0.0, 8.0), (3.0, 30.0), 4

STARTUP_S, STARTUP_ON_GPUS_S, POINT_S = 300.0, 600.0, 1800.0
# A training may take days; the stall timeout ends it.
TRAINING_S = 30 * 86_400.0
COMPILING = 2


def paced(
    config: SweepConfig, device: Device, *, side_by_side: bool, points: int, is_brief: bool = False
) -> SweepConfig:
    """Fill in rounds of so many points, windows and their length if not given. `windows` and `window_s` stay None
    for points that take turns on CPUs: the time of a step and the framework decide. `is_brief`: with
    PACE_OF_EMULATED."""
    rounds, windows, window_s = PACE_OF_EMULATED if is_brief else _pace(device, points, side_by_side=side_by_side)
    rounds = 1 if config.epochs else BURN_IN_ROUNDS if config.for_ else rounds
    check_max_rounds(config, config.rounds or rounds)
    settled = replace(
        config,
        rounds=rounds if config.rounds is None else config.rounds,
        windows=windows if config.windows is None else config.windows,
        window_s=window_s if config.window_s is None else config.window_s,
    )
    _check_patience(settled)
    return settled


def soak_s(planned_s: float, device: Device) -> float:
    """Return the seconds of soak for a run that is planned to take `planned_s` without it."""
    return min(SOAK_ON_GPUS_S if device == "cuda" else SOAK_S, SOAK_PART * planned_s)


def turns_in_round(turn_s: float) -> int:
    """Return how many windows a point has in a round if one turn takes `turn_s`."""
    return max(FEWEST_TURNS, min(MOST_TURNS, round(TURNS_S / turn_s)))


def _pace(device: Device, points: int, *, side_by_side: bool) -> tuple[int, int | None, float | None]:
    if not side_by_side:
        return PACE_ALONE
    if device == "cuda":
        rounds, windows, window_s = PACE_OF_GPUS_IN_TURNS
        return ROUNDS_OF_FEW_POINTS if points <= FEW_POINTS else rounds, windows, window_s
    return ROUNDS_OF_MANY_POINTS if points > MANY_POINTS else PACE_SIDE_BY_SIDE[0], None, None


def window_s(config: SweepConfig, points: Iterable[Point]) -> float:
    """Return the least seconds of a window of these points, which take turns or are alone."""
    if config.window_s is not None:
        return config.window_s
    queues = (point.hardware.device in frameworks.running(point.strategy).returns_early for point in points)
    return WINDOW_OF_QUEUES_S if any(queues) else PACE_SIDE_BY_SIDE[2]


def _check_patience(config: SweepConfig) -> None:
    assert config.point_timeout_s is not None
    longest_s = config.window_s or WINDOW_OF_QUEUES_S
    if longest_s >= config.stall_timeout_s:
        raise UsageError(
            f"--window-s {longest_s:g}: a worker is silent in a window, and is ended after "
            f"--stall-timeout-s {config.stall_timeout_s:g}; raise that, or shorten the windows"
        )
    if config.soak_s is not None and config.soak_s >= config.point_timeout_s:
        raise UsageError(
            f"--soak-s {config.soak_s:g}: exceeds the time of a point, --point-timeout-s "
            f"{config.point_timeout_s:g}; raise that, or shorten the soak"
        )
    windows = config.windows or MOST_TURNS
    if windows * longest_s >= config.point_timeout_s:
        raise UsageError(
            f"--windows {windows} of --window-s {longest_s:g}: exceed the time of a point, "
            f"--point-timeout-s {config.point_timeout_s:g}; raise that"
        )


def warm_up_s(device: Device, least_s: float | None = None) -> tuple[float, float]:
    """Return the least and the most seconds of the warm-up of a point alone, or of the GPUs. The most is later by
    as much if a longer least is given."""
    least, most = WARM_UP_ON_GPUS_S if device == "cuda" else WARM_UP_S
    return (least, most) if least_s is None else (least_s, least_s + most - least)


def with_clocks(config: SweepConfig, device: Device, gpus: Sequence[Gpu]) -> SweepConfig:
    """Fill in the timeouts of workers if they are not given."""
    seconds = STARTUP_ON_GPUS_S if device == "cuda" else STARTUP_S
    if config.compile:
        seconds *= COMPILING
    if device == "cuda":
        newest = max((gpu.compute_capability or (0, 0) for gpu in gpus), default=(0, 0))
        used = map(frameworks.named, config.strategy or ())
        translating = (one.translation_s for one in used if one.kernels_up_to and newest > one.kernels_up_to)
        seconds = max((seconds, *translating))
    startup_s = config.startup_timeout_s or seconds
    deadline_s = (TRAINING_S if config.epochs else POINT_S) + max(0.0, startup_s - STARTUP_S)
    return replace(config, startup_timeout_s=startup_s, point_timeout_s=config.point_timeout_s or deadline_s)


# ---------------------------------------------------------------- estimated time
# Constants of GPUs are those of one NVIDIA H200 (November 2026).

# Points that take turns on CPUs: seconds until all forks are ready, windows of warm-up, seconds before a window.
GROUP_STARTUP_S, WARMING, UNCOUNTED_S = 1.5, 1.5, 0.1
# On GPUs: set up CUDA, cuDNN and NCCL and build the model; leave.
ON_GPU_S, LEAVE_GPU_S = 5.3, 0.5
# Seconds by which each further process of a host prolongs the start, a guess: a driver makes parts of contexts one
# after another. A whole cuCtxCreate took 0.45 s (nvprof in pocl/pocl#908); each of 16 processes on 16 V100 added
# 1.5 s with its imports (rapidsai/dask-cuda#198). No node of several GPUs was measured. The sweep's own estimate
# follows what is measured.
FURTHER_PROCESS_S = 0.25
# On GPUs: seconds of a first step with convolutions, for which cuDNN tries its algorithms (ResNet-50 took 2.9 to
# 3.4 s), of another first step (gpt2-tiny took 0.4 to 1.7 s), and before a window that has its turn: two steps.
FIRST_CONVOLUTIONS_S, FIRST_STEP_S, UNCOUNTED_ON_GPU_S = 3.2, 0.6, 0.15
# Seconds to compile a model, a guess; to profile steps and read the trace.
COMPILE_S, TRACE_S = 60.0, 2.5


# FLOP/s that training reaches, until steps are measured: of a thread (digits-cnn on one core of an EPYC: 85e9),
# and of a GPU (ResNet-50 on an H200: 110e12 in bf16).
THREAD_FLOP_S, GPU_FLOP_S, GPU_FLOP_S_IN_FP32 = 80e9, 100e12, 20e12


def step_s(work: Workload, device: Device, threads: int) -> float:
    """Estimate the seconds of one step of a real device by the model's operations."""
    flop = operations(work)
    if device == "cuda":
        return flop / (GPU_FLOP_S_IN_FP32 if work.precision == "fp32" else GPU_FLOP_S)
    return flop / (max(1, threads) * THREAD_FLOP_S)


def group_s(
    group: Group,
    config: SweepConfig,
    step_s: float = 0.0,
    *,
    processes: int = 1,
    fits: int = 1,
    seats_apart: bool = False,
) -> float:
    """Estimate the seconds of a group in one round, by the seconds of its longest step. `processes`: the most that
    one host starts. GPUs hold `fits` points at the same time: the others follow in further epochs. `seats_apart`:
    seats of GPUs run one after the other."""
    longest_s = max(window_s(config, group.points), step_s)
    if group.points[0].hardware.device == "cuda":
        epochs = ceil(len(group.points) / fits)
        further_s = FURTHER_PROCESS_S * max(0, processes - epochs)
        return _on_gpus_s(group, config, longest_s, epochs, seats_apart=seats_apart) + further_s
    turn_s = longest_s + max(UNCOUNTED_S, step_s)
    windows = config.windows or turns_in_round(turn_s)
    if group.side_by_side:
        turns = sum(turns_of(point, windows) + WARMING for point in group.points)
        return GROUP_STARTUP_S + turns * turn_s
    point = group.points[0]
    seats_in_turn = point.world_size if point.kind == "each" else 1
    compile_s = COMPILE_S if point.workload.compile else 0.0
    warm_up_s = _estimated_warm_up_s(config, point, longest_s)
    return frameworks.startup_s(point.strategy) + compile_s + seats_in_turn * windows * longest_s + warm_up_s


def _on_gpus_s(group: Group, config: SweepConfig, window_s: float, epochs: int, *, seats_apart: bool) -> float:
    windows = config.windows or turns_in_round(window_s + UNCOUNTED_ON_GPU_S)
    running = (frameworks.running(point.strategy) for point in group.points)
    fresh = (one.startup_s for one in running if not one.forks("cuda", fresh=config.fresh_workers))
    start_s = ON_GPU_S + max(fresh, default=0.0)  # a fork has imported its framework
    first_s = sum(_first_step_s(point) for point in group.points)
    warm_up_s = _estimated_warm_up_s(config, group.points[0], window_s)
    if group.side_by_side and config.warm_up_s is None and config.rounds:  # later rounds find the GPUs warm
        again_s = (WARM_UP_WINDOWS + 2) * window_s
        warm_up_s = again_s + max(0.0, warm_up_s - again_s) / config.rounds
    turns_s = sum(
        (_turns_on_gpus(point, windows, config, seats_apart=seats_apart) + 1)
        * (part_of_window(point) * window_s + UNCOUNTED_ON_GPU_S)
        if group.side_by_side
        else windows * window_s * (point.world_size if point.kind == "each" else 1)
        for point in group.points
    )
    return epochs * (start_s + warm_up_s + LEAVE_GPU_S) + first_s + turns_s


def _turns_on_gpus(point: Point, windows: int, config: SweepConfig, *, seats_apart: bool) -> float:
    """Turns of a point in a round. Seats run at the same time, but one after the other in the first block of the
    run (sweep/epoch.py)."""
    if point.kind != "each" or seats_apart:
        return turns_of(point, windows)
    return windows + (len(seats(point.world_size, 0, windows)) - 1) / (config.rounds or 1)


def _estimated_warm_up_s(config: SweepConfig, point: Point, window_s: float) -> float:
    if point.hardware.device == "emulated":
        return 3 * window_s
    least_s, _ = warm_up_s(point.hardware.device, config.warm_up_s)
    return max(least_s, WARM_UP_WINDOWS * window_s) + 2 * window_s


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
