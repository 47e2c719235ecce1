"""What CPUs did beside the training: parameter servers' use of a core, an emulating machine's of all. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from scaling.analysis.rows import ServerUse
from scaling.records.events import Finished
from scaling.records.point import SERVER
from scaling.records.run import HelperRecord, PointRecord


def server_use(records: Iterable[PointRecord]) -> tuple[ServerUse, ...]:
    """The parameter servers of the rounds that ended well, by number."""
    found: dict[tuple[int, str, str], list[HelperRecord]] = defaultdict(list)
    for record in records:
        for helper in record.helpers if isinstance(record.outcome, Finished) else ():
            number = helper.name.removeprefix(SERVER)
            if helper.name.startswith(SERVER) and number.isdecimal():
                found[int(number), helper.name, helper.host].append(helper)
    return tuple(
        ServerUse(name=name, host=host, cpu_percent=_mean(helper.telemetry.cpu_percent for helper in helpers))
        for (_, name, host), helpers in sorted(found.items(), key=lambda item: item[0])
    )


def of_servers(servers: Iterable[ServerUse]) -> float | None:
    """Of one core, the mean of the servers whose use is known."""
    return _mean(server.cpu_percent for server in servers)


def of_machine(records: Iterable[PointRecord]) -> float | None:
    """Of all cores of the busiest machine while it emulated, mean over rounds; None for real devices."""
    by_round = (
        [used for rank in record.ranks if (used := rank.telemetry.machine_cpu_percent) is not None]
        for record in records
    )
    return _mean(max(known, default=None) for known in by_round)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
