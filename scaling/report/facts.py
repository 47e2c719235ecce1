"""The facts above the tables: what ran, on what, and with which versions."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from scaling.analysis.measured import device_use
from scaling.analysis.table import accuracy
from scaling.analysis.table.rows import Row
from scaling.quiet import canary
from scaling.records import network
from scaling.records.burn_in import MOST_ROUNDS, asked_s
from scaling.records.events import Finished
from scaling.records.host import Gpu, HostInfo
from scaling.records.point import WANTED, Point
from scaling.records.run import IN_LAB, ZEROMQ, Header, PointRecord
from scaling.report import imported, labels, quantities
from scaling.report.labels import Context
from scaling.report.parts import Entry
from scaling.text import counted, date, day, duration, percent, plural, several

# ---------------------------------------------------------------- facts

# Standard deviation of a core's speed, as a fraction; smaller ones are not reported.
WANDERING = 0.05
# Facts that an import lacks, since it has no hosts.
_MEASURED = frozenset({"devices", "hosts", "heap"})


def facts(
    header: Header, records: Sequence[PointRecord], rows: Sequence[Row], context: Context
) -> tuple[Entry, ...]:
    """Return the facts in reading order; empty ones are omitted."""
    points = [record.point for record in records if record.point.kind in WANTED]
    nccl = header.device == "cuda"
    networks = [network.describe(one, nccl=nccl) for one in header.networks] if len(_names(header)) > 1 else ()
    results = [rank.result for record in records for rank in record.ranks if rank.result]
    clocks = device_use.clocks(records)
    said = (
        ("model", _each(_model(point) for point in points)),
        ("data", header.config.get("data_dir") or ""),
        ("options", labels.options(context.shared)),
        ("batch", _batches(points)),
        ("devices", _devices(header, records)),
        ("emulated", header.emulation),
        ("why", header.why_default),
        ("hosts", _hosts(header)),
        ("network", _each(networks)),
        ("servers", labels.servers(rows)),
        ("measured", _measured(records)),
        ("burn-in", _burn_in(header)),
        ("trained", _trained(records)),
        ("weights", _each(f"saved to {one.saved}" for one in results if one.saved)),
        ("heap", _heap(header)),
        ("cores", _wandering(records)),
        ("clocks", device_use.describe(clocks) if clocks else ""),
        ("variables", _by_hosts(header.hosts, _variables)),
        ("changed", _each(one for host in header.hosts for one in host.changed_variables)),
        ("software", ", ".join(dict.fromkeys(_versions(header)))),
        ("GPU libraries", libraries(records)),
        ("started" if header.hosts else "read", date(header.created_unix_s)),
    )
    shown = (one for one in said if one[1] and (header.hosts or one[0] not in _MEASURED))
    return (*imported.facts(header), *shown)


# ---------------------------------------------------------------- one line


def setting(header: Header, records: Sequence[PointRecord]) -> tuple[str, ...]:
    """Return `digits-cnn, fp32, 32 a device (weak)`, other works, devices, hosts and start. A script decides its
    precision, and its batch is known once it has run."""
    works, shares = [], {"weak": "a device", "strong": "in all", "node": "a node"}
    for record in records:
        work, size = record.point.workload, record.point.reference.batch_size
        batch = f"{size} {shares[work.batch_rule]} ({work.batch_rule})"
        is_known = work.unit != "steps" and (not work.script or record.outcome == Finished())
        if record.point.kind in WANTED:
            shown = ("" if work.script else work.precision, batch if is_known else "")
            works.append(", ".join(filter(None, (work.model, *shown))))
    works, names = list(dict.fromkeys(works)), _names(header)
    hosts = f"{plural(len(names), 'host')} {several(names, 4)}" if names else ""
    more = f"and {counted(len(works) - 1, 'other')}" if len(works) > 1 else ""
    return tuple(filter(None, (*works[:1], more, devices_of(header), hosts, date(header.created_unix_s))))


def devices_of(header: Header) -> str:
    """Return `4 x NVIDIA H100`, `2 x AMD EPYC core`, or the emulated device; "" without hosts."""
    if header.device == "emulated":
        return f"EMULATED {str(header.config.get('device')).removeprefix('emulated:')}"
    if header.device == "cuda":
        gpus = Counter(gpu.name for gpu in _gpus(header))
        return ", ".join(f"{count} x {name}" for name, count in gpus.items())
    models = dict.fromkeys(host.cpu_model for host in header.hosts)
    return f"{header.launch_size} x {_each(models)} core" if models else ""


def heading(header: Header, rows: Sequence[Row]) -> str:
    """Return `torch:nccl on 4 nodes x 4 NVIDIA H100 (node1 to node4), 26 Nov 2026`, the title of a page."""
    strategies, names = list(dict.fromkeys(row.strategy for row in rows)), _names(header)
    what = ", ".join(strategies) if len(strategies) < 3 else f"{len(strategies)} strategies"
    if header.is_import and not header.hosts:
        what = f"Logs of {', '.join(imported.tools(header))}"
    ends = " to ".join(dict.fromkeys((*names[:1], *names[-1:])))
    on = f" on {_nodes(header, len(names))} ({ends})" if names else ""
    return f"{what or 'No result'}{on}, {day(header.created_unix_s)}"


def _names(header: Header) -> list[str]:
    return list(dict.fromkeys(host.hostname for host in header.hosts))


def _nodes(header: Header, nodes: int) -> str:
    """Return `4 nodes x 4 NVIDIA H100`; the devices of all nodes if nodes differ."""
    found = devices_of(header)
    if nodes < 2 or header.device == "emulated":
        return found
    cores = Counter({plural(header.launch_size // nodes, "core"): header.launch_size})
    total = Counter(gpu.name for gpu in _gpus(header)) if header.device == "cuda" else cores
    if any(count % nodes for count in total.values()):
        return f"{nodes} nodes, {found}"
    return f"{nodes} nodes x {', '.join(f'{count // nodes} {name}' for name, count in total.items())}"


def _gpus(header: Header) -> Iterable[Gpu]:
    """Hosts that share a GPU list it twice, with the same UUID."""
    return {gpu.uuid or (host.hostname, gpu.index): gpu for host in header.hosts for gpu in host.gpus}.values()


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _model(point: Point) -> str:
    work = point.workload
    parts = (
        f"{work.model}{f' at {work.sample_size}' if work.sample_size else ''} on {work.data}",
        work.precision,
        "" if work.memory_format == "contiguous" else work.memory_format,
        "compiled" if work.compile else "",
        # The line about trainings to an accuracy contains the optimizer.
        work.optimizer if point.regime is None else "",
        "" if work.trains else labels.PASSES[work.pass_],
        "" if work.feed == "reference" and not work.drop_caches else labels.feed(work),
    )
    return ", ".join(filter(None, parts))


def _batches(points: Iterable[Point]) -> str:
    """Return the batches of all points, the smallest first; a weak sweep over batches is one list."""
    ordered = sorted(points, key=lambda point: point.workload.batch_size)
    swept = dict.fromkeys(point.workload.batch_size for point in ordered)
    if len(swept) < 2 or any(point.workload.is_strong for point in ordered):
        return _each(map(_batch, ordered))
    return f"{', '.join(map(str, swept))} per device, each x N in all (weak scaling)"


def _batch(point: Point) -> str:
    whole, size = point.reference.batch_size, point.workload.batch_size
    if point.workload.unit == "steps":
        return "unknown: steps are counted"
    return {
        "strong": f"{whole} in all, {whole} / N per device (strong scaling)",
        "node": f"{whole} per node, shared by its participating devices (node rule)",
        "weak": f"{size} per device, {size} x N in all (weak scaling)",
    }[point.workload.batch_rule]


def _devices(header: Header, records: Sequence[PointRecord]) -> str:
    if header.device == "cuda":
        names = Counter(gpu.name for gpu in _gpus(header))
        listed = "; ".join(f"cuda: {count} x {name}" for name, count in names.items())
        for beside in [record for record in records if record.point.hardware.cores][:1]:
            name = next((host.cpu_model for host in header.hosts if host.hostname in beside.hosts), "a CPU")
            listed += f"; also {name}, all {beside.point.hardware.cores} cores"
        return listed
    if header.device == "emulated":
        return f"{header.config.get('device')}: not present; each device sleeps as long as it would compute"
    cores = set()
    for record in records:
        # A worker that drives several devices shares its cores among them.
        drives_several = len(record.ranks) < record.point.world_size
        for rank in filter(lambda rank: rank.cpus, record.ranks):
            cores.add(len(rank.cpus) // max(1, record.hosts.count(rank.host) if drives_several else 1))
    per_rank = f", {quantities.spread(sorted(cores), 'core')} per rank" if cores else ""
    return f"cpu: {_each(host.cpu_model for host in header.hosts)}{per_rank}"


PROGRAM = re.compile(r"scaling[. ][a-z]+")  # after `python -m`


def command(header: Header, words: str, program: str = "") -> str:
    """Return the command that starts the run's ranks with other words, and its own program or another one, by the
    launcher of the run. Words of a record that anybody may have written are quoted."""
    program = program or header.program
    program = program if PROGRAM.fullmatch(program) else shlex.quote(program)
    ranks, without_mpi = header.launch_size, header.mpi.startswith(ZEROMQ)
    own, (by, _, lab) = f"{program} {words}".rstrip(), header.started.partition(IN_LAB)
    match by.split(maxsplit=2)[:2]:
        case ["by", "scaling"]:
            return f"python -m {program} --ranks {ranks} {words}".rstrip()
        case ["by", "torchrun"] if len(header.hosts) == 1:
            return f"torchrun --nproc-per-node {ranks} -m {own}"
        case ["by", "srun"]:
            return f"srun --mpi={'none' if without_mpi else 'pmix'} -n {ranks} python -m {own}"
    if without_mpi:
        return f"python -m {own}  # {counted(ranks, 'rank')}, started as before"
    mpirun = f"python -m scaling lab run --name {shlex.quote(lab)} --" if lab else "mpirun"
    return f"{mpirun} -np {ranks} python -m {own}"


def _hosts(header: Header) -> str:
    names, machines = _names(header), {host.boot_id for host in header.hosts}
    virtual = _each(host.virtual for host in header.hosts if host.virtual)
    where = f", virtual: {virtual}" if virtual else ""
    where += ", all on one machine" if len(names) > 1 and len(machines) == 1 and machines != {""} else ""
    return f"{several(names)} ({counted(len(names), 'host')}, {counted(header.launch_size, 'rank')}{where})"


def _measured(records: Sequence[PointRecord]) -> str:
    exchanges = [record for record in records if record.point.kind == "exchange"]
    if not exchanges:
        return ""
    rounds = counted(len({record.point.round for record in exchanges}), "round")
    windows = [len(rank.windows) for record in exchanges for rank in record.ranks if rank.windows]
    per_rank = f" of {quantities.spread(windows, 'window')}" if windows else ""
    turns = any(record.epoch is not None for record in exchanges)
    return f"{rounds}{per_rank}, {'taking turns side by side' if turns else 'points in shuffled order'}"


def _burn_in(header: Header) -> str:
    for_s = asked_s(header.config)
    rest = f"of more than {MOST_ROUNDS} rounds the table has evenly spaced ones, times over the run have all"
    return f"rounds for {duration(for_s)}; {rest}" if for_s else ""


def _trained(records: Sequence[PointRecord]) -> str:
    regimes = [record.point.regime for record in records if record.point.regime]
    if not regimes:
        return ""
    one = regimes[0]
    whole = {split: f" of {count:,}" for split, count in accuracy.data_samples(records).items()}
    parts_of_data = (
        ("on", one.train_samples, whole.get("train", "")),
        ("held-out top-1 on", one.test_samples, whole.get("test", "")),
    )
    parts = (
        counted(one.epochs, "epoch"),
        _each(regime.optimizer for regime in regimes),
        f"seeds {', '.join(map(str, sorted({each.seed for each in regimes})))}",
        f"{counted(one.warmup_epochs, 'epoch')} of warm-up" if one.warmup_epochs else "",
        f"rate / 10 from {', '.join(map(str, one.lr_steps))} on" if one.lr_steps else "",
        f"the last {one.augment_epochs} augmented" if one.augment_epochs else "",
        f"until {100 * one.target_top1:g} %" if one.target_top1 is not None else "",
        f"from {one.weights}" if one.weights else "",
        *(f"{said} {count:,}{of} samples" for said, count, of in parts_of_data if count),
    )
    return ", ".join(filter(None, parts))


def _heap(header: Header) -> str:
    """Name the allocator of CPU workers, and whether it keeps freed memory; older runs have no record of it."""
    kept = header.config.get("malloc")
    has_cpu_workers = header.device != "cuda" or header.config.get("baseline_device")
    if not has_cpu_workers or kept is None or header.config.get("script"):
        return ""
    own = "kept by CPU workers (--malloc keep)" if kept == "keep" else "unchanged (--malloc system)"

    def allocated(host: HostInfo) -> Iterator[str]:
        if host.allocator:
            yield f"{host.allocator}, by {host.allocator_by}" if host.allocator_by else host.allocator
        else:
            yield f"with the user's {', '.join(host.heap_settings)}, else {own}" if host.heap_settings else own

    return _by_hosts(header.hosts, allocated) or own


def _variables(host: HostInfo) -> Iterator[str]:
    """Yield `NCCL_ALGO=Ring`, ...: variables of workers that change rates."""
    return (f"{name}={value}" for name, value in (host.variables or {}).items())


def _by_hosts(hosts: Sequence[HostInfo], texts: Callable[[HostInfo], Iterable[str]]) -> str:
    """Join the texts of all hosts; a text that some hosts lack names its hosts."""
    said: dict[str, list[str]] = {}
    for host in hosts:
        for text in texts(host):
            said.setdefault(text, []).append(host.hostname)
    return "; ".join(
        text if len(names) == len(hosts) else f"{text} on {several(names)}" for text, names in said.items()
    )


def _wandering(records: Sequence[PointRecord]) -> str:
    """Report how much the speed of the worst core varied, for whatever reason; "" if little."""
    by_seat: dict[int, list[float]] = {}
    for rank in chain.from_iterable(record.ranks for record in records):
        known_s = [window.canary_s for window in rank.windows if window.canary_s is not None]
        by_seat.setdefault(rank.launch_rank, []).extend(known_s)
    worst = max(map(canary.spread, by_seat.values()), default=0.0)
    if worst < WANDERING:
        return ""
    return f"their speed varied by {percent(worst)} between windows; more --rounds narrow the intervals"


def _versions(header: Header) -> Iterator[str]:
    git = f" (git {header.git})" if header.git else ""
    yield f"scaling {header.version}{git}"
    for host in header.hosts:
        yield f"Python {host.python}"
        yield from (f"{name} {version}" for name, version in sorted(host.versions.items()) if name != "scaling")
        if host.gpu_driver:
            yield f"driver {host.gpu_driver}"
    if header.mpi:
        yield header.mpi


_LIBRARIES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL"}


def libraries(records: Iterable[PointRecord]) -> str:
    """Return `torch 2.13.0+cu130: CUDA 13.0, cuDNN 9.20.0, NCCL 2.29.7`; "" without GPUs. The version in NCCL's
    own log wins: Horovod may link another NCCL than the framework."""
    found = []
    for rank in chain.from_iterable(record.ranks for record in records):
        versions = dict(rank.ready.versions) if rank.ready else {}
        if rank.nccl and rank.nccl.version and rank.ready:
            versions["nccl"] = rank.nccl.version
        framework = next(iter(versions), "")
        known = {key: versions[key] for key in _LIBRARIES if versions.get(key, "None") != "None"}
        told = [f"{_LIBRARIES[key]} {cudnn(one) if key == 'cudnn' else one}" for key, one in known.items()]
        found += [f"{framework} {versions[framework]}: {', '.join(told)}"] if told else []
    return _each(found)


def cudnn(version: str) -> str:
    """Return `9.20.0` for 92000, `8.9.2` for 8902 (cudnn_version.h); other texts unchanged."""
    if not version.isdecimal() or len(version) < 4:
        return version
    number = int(version)
    scale = 10_000 if number >= 90_000 else 1_000
    return f"{number // scale}.{number % scale // 100}.{number % 100}"
