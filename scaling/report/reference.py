"""A reference: the rates and efficiencies that one machine reached, as a TOML file that others are judged by."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from scaling import files
from scaling.analysis.measured.controls import Controls
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.network import GBIT
from scaling.records.point import Amount, Hardware, Point, Record, Size, Workload
from scaling.records.run import Certificate, Header
from scaling.records.task import RATES
from scaling.report.labels import headline
from scaling.report.material import Material
from scaling.text import day, one_line

SCHEMA = 1
PACKAGED = Path(__file__).parent / "references"
# Networks of this relative difference in rate are alike.
LIKE_RATE = 0.1

# ---------------------------------------------------------------- format


class Value(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mean over rounds with its 95 % interval, on `df` degrees of freedom."""

    mean: Amount
    low: Amount
    high: Amount
    rounds: Size
    df: Size

    @property
    def estimate(self) -> Estimate:
        return Estimate(mean=self.mean, low=self.low, high=self.high, n=self.rounds, df=self.df)


class Machine(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hardware. `network_gbit_per_s`: 0 if unknown, or on one node."""

    device: str
    nodes: Size
    devices_per_node: Size
    network_gbit_per_s: Amount = 0.0


class Work(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was trained, and how gradients were exchanged."""

    strategy: str
    options: dict[str, str]
    workload: Workload


class Scaled(Value, frozen=True, kw_only=True):
    """The efficiency at a world size, a fraction of 1, and the machine's part that it used."""

    world_size: Size
    nodes: Size


class Reference(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rate`: samples/s of the plain loop on one device. `devices`: medians of the rates of a device alone, as
    scaling certify has them. `sum`: digest of all other fields."""

    schema: int
    source: str
    date: str
    command: str
    machine: Machine
    work: Work
    software: dict[str, str]
    rate: Value
    efficiency: tuple[Scaled, ...] = ()
    devices: dict[str, Amount] = {}
    sum: str = ""

    @property
    def digest(self) -> str:
        return sha256(msgspec.json.encode(replace(self, sum=""), order="deterministic")).hexdigest()

    def scaled(self, world_size: int) -> Scaled | None:
        return next((one for one in self.efficiency if one.world_size == world_size), None)


# ---------------------------------------------------------------- making


def of(material: Material) -> Reference:
    """Make a reference of a run. Raises UsageError if it has several curves, or no interval."""
    rows = material.rows
    first = headline(rows)
    if first is None or material.header.is_import:
        raise UsageError("--format reference: this run has measured no exchange")
    if names := {material.label(row) for row in rows} - {material.label(first)}:
        also = ", ".join(sorted(names))
        raise UsageError(
            f"--format reference: this run also has {also}; measure one --strategy and --interconnect"
        )
    alone = rate_alone(material, first)
    rate = value(alone) if alone else None
    if rate is None:
        raise UsageError("--format reference: no interval of one device alone; measure 2 rounds or more")
    made = Reference(
        schema=SCHEMA,
        source=f"scaling {material.header.version}, code {material.header.code}",
        date=day(material.header.created_unix_s),
        command=one_line(" ".join(material.header.command)),
        machine=machine(material.header, first.hardware, first.interconnect),
        work=Work(strategy=first.strategy, options=first.options, workload=first.workload),
        software=versions(material.header),
        rate=rate,
        efficiency=tuple(
            Scaled(**msgspec.structs.asdict(found), world_size=row.world_size, nodes=row.nodes)
            for row in rows
            if row.efficiency and (found := value(row.efficiency))
        ),
        devices=dict(_devices(material.certificate)),
    )
    return replace(made, sum=made.digest)


def machine(header: Header, hardware: Hardware, interconnect: str) -> Machine:
    """Return what a launch ran on."""
    nodes = len({host.hostname for host in header.hosts})
    rates = (network.rate_bits_per_s for network in header.networks if network.word == interconnect)
    device = next((host.cpu_model for host in header.hosts), "unknown CPU")
    if hardware.device == "cuda":
        device = next((gpu.name for host in header.hosts for gpu in host.gpus), "unknown GPU")
    return Machine(
        device=hardware.label if hardware.device != "cuda" and hardware.profile else device,
        nodes=nodes,
        devices_per_node=max(1, header.launch_size // max(1, nodes)),
        network_gbit_per_s=(next(rates, None) or 0.0) / GBIT if nodes > 1 else 0.0,
    )


def versions(header: Header) -> dict[str, str]:
    found = {name: version for host in header.hosts for name, version in host.versions.items()}
    driver = next((host.gpu_driver for host in header.hosts if host.gpu_driver), "")
    return {**found, "MPI": header.mpi, **({"driver": driver} if driver else {})}


def rate_alone(material: Material, row: Row) -> Estimate | None:
    """Return samples/s of the plain loop on one device that is the row's base; None if it was not measured."""
    plain, work = Controls(material.records).plain(row.strategy), row.workload.reference(row.world_size)
    found = (one for one in material.analysis.baselines if one.strategy == plain and one.workload == work)
    return next((one.samples_per_s for one in found), None)


def _devices(found: Certificate | None) -> Iterator[tuple[str, float]]:
    for field in RATES:
        rates = [getattr(one, field) for one in (found.devices if found else ())]
        if known := [rate for rate in rates if rate is not None]:
            yield field, median(known)


def value(found: Estimate) -> Value | None:
    """Return an estimate as a reference keeps it; None without an interval."""
    if found.low is None or found.high is None:
        return None
    return Value(mean=found.mean, low=found.low, high=found.high, rounds=found.n, df=found.df or found.n - 1)


# ---------------------------------------------------------------- TOML


def toml(reference: Reference) -> str:
    """Return the file's text."""
    plain = msgspec.to_builtins(reference)
    return "\n".join(_table("", plain)).lstrip("\n") + "\n"


def _table(path: str, table: Mapping[str, Any]) -> Iterator[str]:
    """Yield values, then tables, then lists of tables, as TOML needs them."""

    def kind(one: tuple[str, Any]) -> int:
        return isinstance(one[1], dict) + 2 * isinstance(one[1], list | tuple)

    for key, value in sorted(table.items(), key=kind):
        own = f"{path}{key if re.fullmatch(r'[A-Za-z0-9_]+', key) else json.dumps(key)}"
        if isinstance(value, dict):
            yield from ("", f"[{own}]", *_table(f"{own}.", value))
        elif isinstance(value, list | tuple):
            for one in value:
                yield from ("", f"[[{own}]]", *_table(f"{own}.", one))
        else:
            yield f"{own.removeprefix(path)} = {json.dumps(value)}"


# ---------------------------------------------------------------- reading


def read(name: str) -> Reference:
    """Read a reference: a file, or the name of one in the package. Raises UsageError that names what is wrong."""
    path, given = PACKAGED / f"{name}.toml" if name in packaged() else Path(name), f"--reference {name}"
    plain = files.toml(path, given, f"; in the package: {', '.join(packaged())}")
    schema = plain.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise UsageError(
            f"{given}: schema {schema}, this version reads up to {SCHEMA}; pip install -U scaling-bench"
        )
    try:
        found = msgspec.convert(plain, Reference)
    except msgspec.ValidationError as error:
        if lacking := next((end for end in ("low", "high") if f"`{end}`" in str(error)), ""):
            raise UsageError(f"{given}: a value without an interval ({lacking} is missing): {error}") from None
        raise UsageError(f"{given}: not a reference: {error}") from None
    if found.sum != found.digest:
        raise UsageError(f"{given}: was edited: its sum does not fit its content; make a new one of a run")
    return found


def packaged() -> tuple[str, ...]:
    """Return the names of the references in the package."""
    return tuple(sorted(path.stem for path in PACKAGED.glob("*.toml")))


# ---------------------------------------------------------------- matching


def differences(reference: Reference, header: Header, point: Point) -> tuple[str, ...]:
    """Return what differs between a reference and a launch's exchange, as `device: NVIDIA H200, here NVIDIA H100`.
    Nodes, network and exchange count only if the reference has the launch's world size."""
    there, here, work = reference.machine, machine(header, point.hardware, point.interconnect), reference.work
    pairs: list[tuple[str, object, object]] = [("device", there.device, here.device)]
    for field in Workload.__struct_fields__:
        name = field.rstrip("_").replace("_", " ")
        pairs.append((name, getattr(work.workload, field), getattr(point.workload, field)))
    if reference.scaled(point.world_size) and point.world_size > 1:
        pairs += [
            ("strategy", work.strategy, point.strategy),
            ("options", _options(work.options), _options(point.options)),
            ("devices per node", there.devices_per_node, here.devices_per_node),
        ]
        one, other = there.network_gbit_per_s, here.network_gbit_per_s
        if one and other and abs(one - other) > LIKE_RATE * max(one, other):
            pairs.append(("network in Gb/s", f"{one:g}", f"{other:g}"))
    return tuple(f"{what}: {one}, here {other}" for what, one, other in pairs if one != other)


def _options(options: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(options.items())) or "none"
