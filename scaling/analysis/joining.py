"""Several runs in one table: whether they may be joined, and how their rounds are kept apart. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from scaling.records.host import joined_variables
from scaling.records.run import Header, PointRecord


def joinable(headers: Sequence[Header]) -> tuple[str, ...]:
    """Return the reasons why runs cannot share a table: what differs, as each run has it. Empty: they can."""
    return tuple(f"{what} differ: {values}" for what, values in differing(headers).items())


def differing(headers: Sequence[Header]) -> dict[str, str]:
    """Return what of their launches is not the same for all runs, and what each has: `{"hosts": "a | b"}`."""
    launches = [launch(header) for header in headers]
    if not all(map(_knows_variables, headers)):
        launches = [{what: of for what, of in one.items() if not what.startswith(VALUES)} for one in launches]
    known = [*_COMPARED, *sorted({what for one in launches for what in one} - _COMPARED.keys())]
    found = {what: list(dict.fromkeys(one.get(what, "none") for one in launches)) for what in known}
    return {what: " | ".join(values) for what, values in found.items() if len(values) > 1}


def launch(header: Header) -> dict[str, str]:
    """Return what a run was launched with, by what it is called: hosts, devices, code, versions, variables."""
    own = {what: of(header) for what, of in _COMPARED.items()}
    versions = {f"versions of {name}": version for name, version in _versions(header).items()}
    values = joined_variables(header.hosts)
    return own | versions | {f"{VALUES}{name}": value for name, value in values.items()}


def _knows_variables(header: Header) -> bool:
    """Older runs did not record them."""
    return all(host.variables is not None for host in header.hosts)


def _hosts(header: Header) -> str:
    return " ".join(sorted({host.hostname for host in header.hosts}))


def _devices(header: Header) -> str:
    models = {gpu.name for host in header.hosts for gpu in host.gpus} if header.device == "cuda" else set()
    models = models or {host.cpu_model for host in header.hosts}
    return ", ".join((_emulation(header) or header.device, *sorted(models)))


def _emulation(header: Header) -> str:
    """`emulated:p100, sizes / 10, times x 4`; nothing for real devices."""
    config = header.config
    if header.device != "emulated":
        return ""
    return f"{config.get('device')}, sizes / {config.get('shrink', 1):g}, times x {config.get('dilate', 1):g}"


VALUES = "values of "
HOSTS, VERSION, CODE = "hosts", "versions of scaling", "revisions of its code"
# What two launches may differ in and still be compared: a change of the code is what is looked for, and a CI's
# runners have new names each time.
EXPECTED = frozenset({HOSTS, VERSION, CODE})
_COMPARED: Mapping[str, Callable[[Header], str]] = {
    HOSTS: _hosts,
    "devices": _devices,
    VERSION: lambda header: header.version,
    CODE: lambda header: header.code,
    "MPI libraries": lambda header: header.mpi,
}


def _versions(header: Header) -> dict[str, str]:
    """Library -> version; several where the run's own hosts differ."""
    found: dict[str, set[str]] = {}
    for host in header.hosts:
        for name, version in {**host.versions, "Python": host.python}.items():
            found.setdefault(name, set()).add(version)
    return {name: "/".join(sorted(versions)) for name, versions in found.items()}


def join(runs: Sequence[Sequence[PointRecord]]) -> tuple[PointRecord, ...]:
    """Return the records of all runs, the rounds of each numbered after those of the run before.

    So an exchange is only ever measured against the controls of its own run and round, cells that several
    runs have pool their rounds, and a pair of strategies that never shared a round is not compared.
    """
    joined: list[PointRecord] = []
    first = 0
    for records in runs:
        joined += [_in_round(record, first + record.point.round) for record in records]
        first += 1 + max((record.point.round for record in records), default=-1)
    return tuple(joined)


def _in_round(record: PointRecord, number: int) -> PointRecord:
    return replace(record, point=replace(record.point, round=number))
