"""SweepConfig x hosts -> ordered, interleaved points. Pure; every refusal names its flag.

All points, baselines included, are measured in each round, in an order shuffled anew per round, so
that drift hits all alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from scaling import data, models, network, strategies
from scaling.config import SweepConfig
from scaling.errors import UsageError, near
from scaling.messages import Enrol
from scaling.records import Device, Point, Record
from scaling.seats import Seat, seat
from scaling.strategies.base import Strategy, read_options

STARTUP_GUESS_S = 3.0


class Plan(Record, frozen=True):
    """Everything decided before the first point. `cells` are the points of one round, not yet shuffled.

    `config` is the given one with every None that depends on the launch resolved.
    """

    config: SweepConfig
    device: Device
    seats: tuple[Seat, ...]
    places: dict[str, network.Place]
    missing: dict[str, str]
    why: str
    cells: tuple[Point, ...]

    def round(self, number: int) -> tuple[Point, ...]:
        """The points of one round, shuffled by the seed and the round."""
        points = [replace(point, round=number) for point in self.cells]
        random.Random(f"{self.config.seed}/{number}").shuffle(points)
        return tuple(points)

    @property
    def estimate_s(self) -> float:
        """About how long the planned rounds take: start-up, warm-up and measured windows."""
        config = self.config
        each_s = STARTUP_GUESS_S + (config.windows + 6) * config.window_s
        return len(self.cells) * config.rounds * each_s


# ---------------------------------------------------------------- what to measure


def make(config: SweepConfig, enrolled: Sequence[Enrol]) -> Plan:
    """Resolve the configuration on these hosts and list the cells.

    Raises UsageError for what this launch cannot run.
    """
    seats = seat(enrolled, config.cpus_per_rank)
    device, why = _device(config, seats)
    names = config.strategy or (("torch:nccl",) if device == "cuda" else ("torch:gloo",))
    missing = _missing(names, enrolled, device)
    sizes = config.world_sizes or default_world_sizes(len(seats))
    _check_sizes(sizes, seats, device)
    model = models.spec(config.model or models.default_model(device))
    feed = config.data or model.data
    data.check(feed, model.classes)
    _check_precision(config, device)
    resolved = _resolved(config, names, sizes, model.name, feed, device)
    if resolved.global_batch_size is None and resolved.batch_size is None:
        resolved = replace(resolved, batch_size=model.batch_size[device])
    return Plan(
        config=resolved,
        device=device,
        seats=seats,
        places=network.choose(enrol.host for enrol in enrolled),
        missing=missing,
        why=why,
        cells=_cells(resolved, device),
    )


def _resolved(
    config: SweepConfig, names: tuple[str, ...], sizes: tuple[int, ...], model: str, feed: str, device: Device
) -> SweepConfig:
    return replace(config, strategy=names, world_sizes=sizes, model=model, data=feed, device=device)


def default_world_sizes(size: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the launch's size."""
    powers = [2**power for power in range(size.bit_length()) if 2**power <= size]
    return tuple(sorted({*powers, size}))


def _device(config: SweepConfig, seats: Sequence[Seat]) -> tuple[Device, str]:
    bare = next((one for one in seats if not one.gpu), None)
    if config.device == "cpu":
        return "cpu", "--device cpu"
    if bare is None:
        return "cuda", "every host has GPUs"
    if config.device == "cuda":
        raise UsageError(f"--device cuda: {bare.host} has no NVIDIA GPU; use --device cpu")
    return "cpu", f"no NVIDIA GPU on {bare.host}"


def _missing(names: Iterable[str], enrolled: Sequence[Enrol], device: Device) -> dict[str, str]:
    """Why strategies cannot run on some host. Raises UsageError where another device is needed, or
    when nothing that was asked for can run."""
    found: dict[str, str] = {}
    for name in names:
        module = strategies.load(name)
        if device not in module.devices(name):
            needs = " or ".join(module.devices(name))
            host = enrolled[0].host.hostname
            raise UsageError(f"--strategy {name}: needs {needs}, this launch runs on {device} ({host})")
        for enrol in enrolled:
            if reason := enrol.missing.get(name):
                found.setdefault(name, f"{reason} (on {enrol.host.hostname})")
    if found and all(name in found for name in names):
        raise UsageError("; ".join(f"--strategy {name}: {why}" for name, why in found.items()))
    return found


def _check_sizes(sizes: Sequence[int], seats: Sequence[Seat], device: Device) -> None:
    if sizes[-1] > len(seats):
        raise UsageError(
            f"--world-sizes {','.join(map(str, sizes))}: {sizes[-1]} is more than the {len(seats)} ranks of this "
            f"launch; start it with mpirun -np {sizes[-1]}"
        )
    if device == "cuda":
        _check_gpus(seats)


def _check_gpus(seats: Sequence[Seat]) -> None:
    owner: dict[tuple[str, str], Seat] = {}
    for one in seats:
        other = owner.setdefault((one.host, one.gpu), one)
        if other is not one:
            raise UsageError(
                f"ranks {other.launch_rank} and {one.launch_rank} on {one.host} would share GPU {one.gpu}; "
                "start no more ranks there than it has GPUs, or use --device cpu"
            )


def _check_precision(config: SweepConfig, device: Device) -> None:
    if device == "cpu" and config.precision in ("tf32", "fp16"):
        raise UsageError(f"--precision {config.precision}: needs CUDA; on cpu use fp32 or bf16")


# ---------------------------------------------------------------- cells


def _cells(config: SweepConfig, device: Device) -> tuple[Point, ...]:
    """Every point of one round, once: strategies of a framework share its `solo` and `together`."""
    assert config.strategy is not None and config.world_sizes is not None
    found: dict[str, Point] = {}
    for name in config.strategy:
        for size in config.world_sizes:
            batch = _batch(config, size)
            for point in _of_size(config, device, name, size, batch):
                found.setdefault(point.cell, point)
    return tuple(found.values())


def _batch(config: SweepConfig, size: int) -> int:
    """Samples per device at this world size; raises UsageError where the global batch does not divide."""
    if config.global_batch_size is None:
        assert config.batch_size is not None
        return config.batch_size
    if config.global_batch_size % size:
        raise UsageError(
            f"--global-batch-size {config.global_batch_size}: not divisible by world size {size}; "
            f"{config.global_batch_size // size * size or size} would be"
        )
    return config.global_batch_size // size


def _of_size(config: SweepConfig, device: Device, name: str, size: int, batch: int) -> Iterable[Point]:
    plain = strategies.load(name).BASELINE
    wanted = config.kinds
    own, shared = _options(config, name), _options(config, plain)
    yield _point(config, device, name, "exchange", size, batch, own)
    if "comm" in wanted and size > 1:
        yield _point(config, device, name, "comm", size, batch, own)
    if "solo" in wanted:
        # Strong scaling compares with the whole batch on one device, and splits off what a smaller one costs.
        yield _point(config, device, plain, "solo", 1, config.global_batch_size or batch, shared)
        yield _point(config, device, plain, "solo", 1, batch, shared)
    if "together" in wanted and size > 1:
        yield _point(config, device, plain, "together", size, batch, shared)


def _point(
    config: SweepConfig, device: Device, name: str, kind: str, size: int, batch: int, options: dict[str, str]
) -> Point:
    assert config.model is not None and config.data is not None
    return Point(
        strategy=name,
        kind=kind,  # type: ignore[arg-type]
        world_size=size,
        round=0,
        model=config.model,
        data=config.data,
        device=device,
        batch_rule="weak" if config.global_batch_size is None else "strong",
        batch_size=batch,
        precision=config.precision,
        memory_format=config.memory_format,
        compile=config.compile,
        placement=config.placement,
        options=options,
    )


def _options(config: SweepConfig, name: str) -> dict[str, str]:
    """The `--option [STRATEGY.]key=value` that concern a strategy, checked against its own list.

    A key without a strategy concerns each that knows it; one that none knows is refused.
    """
    module = strategies.load(name)
    mine: dict[str, str] = {}
    for text in config.option:
        whole, equals, value = text.partition("=")
        target, _, key = whole.rpartition(".")
        if not equals or not key:
            raise UsageError(f"--option {text}: write key=value or STRATEGY.key=value")
        if target and target not in (*(config.strategy or ()), module.BASELINE):
            raise UsageError(f"--option {text}: {target} is not measured; {near(target, config.strategy or ())}")
        concerned = target == name if target else key in module.OPTIONS or not _known(config, key)
        if concerned:
            mine[key] = value
    read_options(module.OPTIONS, mine)
    return mine


def _known(config: SweepConfig, key: str) -> bool:
    modules: list[Strategy] = [strategies.load(name) for name in config.strategy or ()]
    return any(key in module.OPTIONS for module in modules)
