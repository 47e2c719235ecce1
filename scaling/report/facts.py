"""What ran: the block above the tables, as (label, text) lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scaling.analysis.rows import Row
from scaling.records import network
from scaling.records.point import Point
from scaling.records.run import Header, PointRecord, RankRecord
from scaling.report import labels, words
from scaling.report.labels import Context
from scaling.text import counted, date, several, spread

Fact = tuple[str, str]


def facts(header: Header, records: Sequence[PointRecord], rows: Sequence[Row], known: Context) -> tuple[Fact, ...]:
    """Return the lines in reading order; what a run does not have is left out."""
    points = [record.point for record in records if record.point.kind == "exchange"]
    found = (
        ("model", _each(_model(point) for point in points)),
        ("options", words.knobs(known.shared)),
        ("batch", _each(_batch(point) for point in points)),
        ("devices", _devices(header, records)),
        ("emulated", header.emulation),
        ("why", header.why_default),
        ("hosts", _hosts(header)),
        ("network", _each(map(network.describe, header.networks)) if _crosses(header) else ""),
        ("servers", labels.servers(rows)),
        ("measured", _measured(records)),
        ("software", _software(header)),
        ("started", date(header.created_unix_s)),
    )
    return tuple((label, text) for label, text in found if text)


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _model(point: Point) -> str:
    layout = "" if point.workload.memory_format == "contiguous" else f", {point.workload.memory_format}"
    compiled = ", compiled" if point.workload.compile else ""
    return f"{point.workload.model} on {point.workload.data}, {point.workload.precision}{layout}{compiled}"


def _batch(point: Point) -> str:
    """The rule, and with it the batch per device and the global batch of every row."""
    if point.workload.batch_rule == "weak":
        return f"{point.workload.batch_size} per device, {point.workload.batch_size} x N in all (weak scaling)"
    total = point.global_batch_size
    return f"{total} in all, {total} / N per device (strong scaling)"


def _devices(header: Header, records: Sequence[PointRecord]) -> str:
    if header.device == "cuda":
        gpus = Counter(gpu.name for host in header.hosts for gpu in host.gpus)
        return _each(f"cuda: {count} x {name}" for name, count in gpus.items())
    if header.device == "emulated":
        return f"{header.config.get('device')}: none is there, each sleeps as long as it would compute"
    cores = {_cores(record, rank) for record in records for rank in record.ranks if rank.cpus}
    each = f", {spread(sorted(cores), 'core')} per rank" if cores else ""
    return f"cpu: {_each(host.cpu_model for host in header.hosts)}{each}"


def _cores(record: PointRecord, rank: RankRecord) -> int:
    """Cores of one device; a single worker that drives all devices has those of all on its host."""
    driven = record.hosts.count(rank.host) if len(record.ranks) < record.point.world_size else 1
    return len(rank.cpus) // max(1, driven)


def _hosts(header: Header) -> str:
    names = list(dict.fromkeys(host.hostname for host in header.hosts))
    virtual = _each(host.virtual for host in header.hosts if host.virtual)
    where = f", virtual: {virtual}" if virtual else ""
    machines = {host.boot_id for host in header.hosts}
    where += ", all on one machine" if len(names) > 1 and len(machines) == 1 and machines != {""} else ""
    ranks = counted(header.launch_size, "rank")
    return f"{several(names)} ({counted(len(names), 'host')}, {ranks}{where})"


def _crosses(header: Header) -> bool:
    return len({host.hostname for host in header.hosts}) > 1


def _measured(records: Sequence[PointRecord]) -> str:
    exchanges = [record for record in records if record.point.kind == "exchange"]
    if not exchanges:
        return ""
    rounds = len({record.point.round for record in exchanges})
    windows = [len(rank.windows) for record in exchanges for rank in record.ranks if rank.windows]
    each = f" of {spread(windows, 'window')}" if windows else ""
    return f"{counted(rounds, 'round')}{each}, points in shuffled order"


def _software(header: Header) -> str:
    return ", ".join(dict.fromkeys(_versions(header)))


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
