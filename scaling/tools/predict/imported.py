"""Builds a case from logs of other tools: their rates are measured, all else is of flags."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.analysis.table import imported
from scaling.analysis.table.imported import Imported
from scaling.errors import UsageError
from scaling.records.run import Header
from scaling.tools.predict import cold
from scaling.tools.predict.evidence import ONE_ROUND, noise
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.forecast import Case, Measured
from scaling.tools.predict.setting import At, Known, Observed


def case(asked: Asked, header: Header) -> Case:
    """Build the case of the longest curve of the asked model and batch. Raises UsageError."""
    if not asked.devices_per_node:
        raise UsageError("RUN: is IMPORTED, and a log does not say where devices are: give --devices-per-node D")
    base, curve = _chosen(asked, header)
    own = asked if asked.model or asked.parameters else replace(asked, model=base.model)
    known, length = cold.known_by_name(own), asked.sequence_length or 1
    rate, batch = base.rate.mean / base.world_size / length if base.rate else 0.0, base.batch_size
    setting, assumed = cold.data_sheet(asked, known, batch / rate)
    found = Case(
        setting=setting, known=Known(At(world_size=1, nodes=1)), rate=rate, batch_size=batch, unit=base.unit,
        units_per_sample=length, devices_per_node=asked.devices_per_node, largest=curve[-1].world_size,
        rates=((known.name, batch, rate),), model=known.name, device=asked.device, strategy=base.tool,
        interconnect=asked.network or "one node", command="python -m scaling.run",
        notes=(f"IMPORTED, not measured by scaling; assumed: {', '.join(assumed)}",),
    )  # fmt: skip
    places = [found.layout(one.world_size) for one in curve]
    anchor = found.layout(base.world_size)
    several = [(at, one) for at, one in zip(places, curve, strict=True) if one is not base and one.efficiency]
    seen = tuple(Observed(at=at, value=one.efficiency or 1.0, noise=_noise(one)) for at, one in several)
    measured = tuple(
        Measured(
            at=at, samples_per_s=one.rate.mean / length if one.rate else 0.0, efficiency=one.efficiency or 1.0
        )
        for at, one in zip(places, curve, strict=True)
    )
    return found._replace(known=Known(anchor, seen), measured=measured).titled()


def _chosen(asked: Asked, header: Header) -> tuple[Imported, list[Imported]]:
    asks = (asked.model, asked.batch_size, asked.up_to)
    found = []
    for curve in imported.curves(imported.cells(header.imported)):
        wanted = [one for one in curve if one.efficiency and one.world_size <= (asked.up_to or one.world_size)]
        alike = not asks[1] or curve[0].batch_size == asks[1]
        if alike and len(wanted) > 1 and not {"FAILED", "AUDIT", "ASYNC"} & set(curve[0].flags):
            found.append(wanted)
    if not found:
        raise UsageError("RUN: its logs have no efficiency of several devices; import the log of the fewest, too")
    curve = max(found, key=len)
    return next(one for one in curve if one.world_size == curve[0].base_world_size), curve


def _noise(one: Imported) -> float:
    return noise(one.rate) if one.rate and len(one.logs) > 1 else ONE_ROUND
