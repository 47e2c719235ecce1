"""Defaults of time: rounds, windows and their seconds, the soak, warm-up and timeouts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.plan.config import SweepConfig
from scaling.plan.validation import check_max_rounds
from scaling.records.host import Gpu
from scaling.records.point import Device, Point

# Rounds, windows and their seconds, where they are not given: by simulation for the same wall time
# (python -m tests.bench.intervals). On machines whose noise is as large over a second as over a tenth of it, as on
# many virtual ones, many short windows tell more than few long ones (python -m tests.bench.pace).
PACE_SIDE_BY_SIDE = (6, None, 0.1)
# Where a framework runs ahead: the end of a window empties its queue, which is a part of a short one.
PACE_OF_QUEUES = (6, None, 0.3)
# Where points take turns, each has as many windows in a round as take so long on average, within these bounds: a
# window is a step at least, and steps of a hundredth of a second and of ten shall both end in a bearable time.
# With 1.7 s and the soak a default run took 115 s where a step takes 83 ms, with 1.3 s 95 to 102; its interval of
# ± 1.1 to 1.8 had room.
TURNS_S, FEWEST_TURNS, MOST_TURNS = 1.15, 5, 12
# How long some of them train on in the first round, to see whether it lasts: what a warm-up that takes twenty
# seconds leaves in windows of the first two is found so (tests/unit/analysis/test_lasting.py). Less in short runs.
SOAK_S, SOAK_PART = 12.0, 1 / 5
# Five starts find 5 % between any two of eight exchanges in 81 % of tables, four did in 60
# (python -m tests.bench.comparisons). Of four windows a cold first one was kept in 2 of 4 planted runs.
PACE_ALONE = (5, 5, 0.5)
PACE_ON_GPUS = (5, 5, 1.0)
# The least and the most seconds of a warm-up, and its fewest windows. A GPU at its power limit starts above the
# clock that it keeps, for 10 to 30 s as users report.
WARM_UP_S, WARM_UP_ON_GPUS_S, WARM_UP_WINDOWS = (0.0, 8.0), (10.0, 16.0), 4

# Seconds until a worker is ready, and for its first step; a framework that compiles kernels takes longer.
STARTUP_S, STARTUP_ON_GPUS_S, POINT_S = 300.0, 600.0, 1800.0
# Of a training to an accuracy, which may take days: it says something now and then, or is stalled.
TRAINING_S = 30 * 86_400.0
COMPILING = 2
# Of --dry-run, beyond what the import takes: a CUDA context, cuDNN's search, NCCL's connections. Guesses.
ON_GPU_S, COMPILE_S = 8.0, 60.0


# ---------------------------------------------------------------- pace and clocks


def paced(config: SweepConfig, device: Device, *, side_by_side: bool) -> SweepConfig:
    """The configuration with its rounds, windows and their length, where these are not given. How many windows
    stays open where points take turns: the time of a step says it."""
    rounds, windows, window_s = _pace(config, device, side_by_side=side_by_side)
    rounds = 1 if config.epochs else rounds
    check_max_rounds(config, config.rounds or rounds)
    settled = replace(
        config,
        rounds=rounds if config.rounds is None else config.rounds,
        windows=windows if config.windows is None else config.windows,
        window_s=window_s if config.window_s is None else config.window_s,
    )
    _check_patience(settled)
    return settled


def soak_s(planned_s: float) -> float:
    """How long exchanges train on in a run that is planned to take so long without that."""
    return min(SOAK_S, SOAK_PART * planned_s)


def turns_in_round(turn_s: float) -> int:
    """How many windows a point has in a round where points take turns, each of so many seconds with what precedes
    it."""
    return max(FEWEST_TURNS, min(MOST_TURNS, round(TURNS_S / turn_s)))


def _pace(config: SweepConfig, device: Device, *, side_by_side: bool) -> tuple[int, int | None, float]:
    if not side_by_side:
        return PACE_ON_GPUS if device == "cuda" else PACE_ALONE
    baselines = (frameworks.load(name).baseline for name in config.strategy or ())
    queues = device == "cuda" or any(device in frameworks.named(name).returns_early for name in baselines)
    return PACE_OF_QUEUES if queues else PACE_SIDE_BY_SIDE


def _check_patience(config: SweepConfig) -> None:
    """Refuse windows that the clocks of healthy workers do not last for; raises UsageError."""
    assert config.window_s is not None and config.point_timeout_s is not None
    if config.window_s >= config.stall_timeout_s:
        raise UsageError(
            f"--window-s {config.window_s:g}: a worker says nothing in a window, and is ended when it said "
            f"nothing for --stall-timeout-s {config.stall_timeout_s:g}; raise that, or take shorter windows"
        )
    if config.soak_s is not None and config.soak_s >= config.point_timeout_s:
        raise UsageError(
            f"--soak-s {config.soak_s:g}: takes longer than a point may, --point-timeout-s "
            f"{config.point_timeout_s:g}; raise that, or let it go on for less"
        )
    windows = config.windows or MOST_TURNS
    if windows * config.window_s >= config.point_timeout_s:
        raise UsageError(
            f"--windows {windows} of --window-s {config.window_s:g}: take longer than a point may, "
            f"--point-timeout-s {config.point_timeout_s:g}; raise that"
        )


def warm_up_s(device: Device) -> tuple[float, float]:
    """Return the least and the most seconds that a point alone warms up."""
    return WARM_UP_ON_GPUS_S if device == "cuda" else WARM_UP_S


def with_clocks(config: SweepConfig, device: Device, gpus: Sequence[Gpu]) -> SweepConfig:
    """The configuration with the clocks of its children, where these are not given."""
    startup_s = config.startup_timeout_s or _startup_s(config, device, gpus)
    deadline_s = (TRAINING_S if config.epochs else POINT_S) + max(0.0, startup_s - STARTUP_S)
    return replace(config, startup_timeout_s=startup_s, point_timeout_s=config.point_timeout_s or deadline_s)


def _startup_s(config: SweepConfig, device: Device, gpus: Sequence[Gpu]) -> float:
    seconds = STARTUP_ON_GPUS_S if device == "cuda" else STARTUP_S
    if config.compile:
        seconds *= COMPILING
    if device != "cuda":
        return seconds
    newest = max((gpu.compute_capability or (0, 0) for gpu in gpus), default=(0, 0))
    used = map(frameworks.named, config.strategy or ())
    translating = (one.translation_s for one in used if one.kernels_up_to and newest > one.kernels_up_to)
    return max((seconds, *translating))


def startup_guess_s(point: Point) -> float:
    """About how long a worker of a point takes to be ready, for --dry-run."""
    on_gpu_s = ON_GPU_S if point.hardware.device == "cuda" else 0.0
    return frameworks.startup_s(point.strategy) + on_gpu_s + (COMPILE_S if point.workload.compile else 0.0)
