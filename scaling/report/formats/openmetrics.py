"""The rows as metrics for Prometheus, in text that both of its formats take.

They are 0.0.4, for node_exporter's textfiles, and OpenMetrics. In 0.0.4 the lines UNIT and EOF are comments, and
there are no types `info` and `stateset`: all metrics are gauges. No two samples may have the same labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, isnan
from typing import get_args

from scaling.analysis.table.catalogue import unclaimed
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.records.run import Certificate, CertificateResult
from scaling.report.material import Material
from scaling.text import one_line, readable, rounded

# Metrics of a device alone, by the field of its rate: name, unit, meaning.
_DEVICE = {
    "matrix_flops_per_s": ("matrix", "flops_per_second", "Matrix product of one device."),
    "copy_bytes_per_s": ("copy", "bytes_per_second", "Copy in a device's memory, read and written."),
    "to_device_bytes_per_s": ("from_host", "bytes_per_second", "Copy from host memory to a device."),
    "from_device_bytes_per_s": ("to_host", "bytes_per_second", "Copy from a device to host memory."),
    "samples_per_s": ("step", "samples_per_second", "Training steps of one device alone."),
}


class Sample(Record, frozen=True, kw_only=True):
    """One value of a metric. `name` ends in `unit`, if it has one; samples of one name share their `help`."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = {}
    unit: str = ""


def render(material: Material) -> str:
    """Return the metrics of measured rows. Unknown and unclaimed values are left out.
    Raises UsageError for logs of other tools: nothing was measured."""
    if material.header.is_import:
        raise UsageError("RUN: is IMPORTED from logs of other tools: metrics are of measured points")
    return text(_samples(material))


def text(samples: Iterable[Sample]) -> str:
    """Return samples as text, the metrics in the order of their first samples."""
    families: dict[str, list[str]] = {}
    for sample in samples:
        if sample.name not in families:
            unit = [f"# UNIT {sample.name} {sample.unit}"] if sample.unit else []
            # 0.0.4 has no quotation marks in HELP, escaped or not.
            about = f"# HELP {sample.name} {_line(sample.help).replace(chr(34), chr(39))}"
            families[sample.name] = [f"# TYPE {sample.name} gauge", *unit, about]
        pairs = ((name, _line(value).replace('"', r"\"")) for name, value in sample.labels.items())
        labels = ",".join(f'{name}="{value}"' for name, value in pairs)
        braced = f"{{{labels}}}" if labels else ""
        families[sample.name].append(f"{sample.name}{braced} {_number(sample.value)}")
    return "".join(f"{line}\n" for family in families.values() for line in family) + "# EOF\n"


def _line(value: str) -> str:
    return one_line(readable(value)).replace("\\", r"\\")


def _number(value: float) -> str:
    if isfinite(value):
        return repr(rounded(float(value)))
    return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"


# ---------------------------------------------------------------- rows


def _samples(material: Material) -> Iterator[Sample]:
    run = {"run": str(material.header.config.get("name", ""))}
    began, about = material.header.created_unix_s, "When the run began, in seconds since 1970."
    yield Sample(name="scaling_run_timestamp_seconds", unit="seconds", help=about, labels=run, value=began)
    seen: Counter[tuple[str, ...]] = Counter()
    for row in material.rows:
        work, profile, device = row.workload, row.hardware.profile, row.hardware.device
        labels = {
            **run,
            "strategy": row.strategy,
            "interconnect": row.interconnect,
            "world_size": f"{row.world_size}",
            "model": work.model,
            "precision": work.precision,
            "batch_size": f"{work.batch_size}",
            "device": f"{device}:{profile}" if profile else device,
            "emulated": "true" if profile else "false",
            "row": material.label(row),
        }
        seen[key := tuple(labels.values())] += 1
        labels["row"] += f" ({seen[key]})" if seen[key] > 1 else ""
        yield from _of_row(row, labels)
    if material.certificate:
        emulated = any(row.hardware.profile for row in material.rows)
        yield from _of_certificate(material.certificate, {**run, "emulated": "true" if emulated else "false"})


def _of_row(row: Row, labels: dict[str, str]) -> Iterator[Sample]:
    efficiency, speedup = (None, None) if unclaimed(row) else (row.efficiency, row.speedup)
    of_one = "the plain loop on one device."
    for name, unit, found, about in (
        ("scaling_efficiency", "ratio", efficiency, f"Speedup / world size, against {of_one}"),
        ("scaling_speedup", "ratio", speedup, f"Rate over that of {of_one}"),
        ("scaling", "samples_per_second", row.samples_per_s, "Samples per second of all devices together."),
    ):  # fmt: skip
        ends = (("", found.mean), ("_low", found.low), ("_high", found.high)) if found else ()
        for end, value in ends:
            said = f"{about} The {end[1:]} end of its 95 % interval." if end else about
            if value is not None:
                yield Sample(name=f"{name}{end}_{unit}", unit=unit, help=said, labels=labels, value=value)
    about = "1 if a round of this point failed, else 0."
    yield Sample(name="scaling_point_failed", help=about, labels=labels, value=row.rounds < row.rounds_tried)
    about = "1 for each mark of a row, such as NOISY or MISLABELLED."
    for mark in row.flags:
        yield Sample(name="scaling_mark", help=about, labels={**labels, "mark": mark}, value=1)


def _of_certificate(found: Certificate, labels: dict[str, str]) -> Iterator[Sample]:
    about = "1 for the verdict of scaling certify, 0 for the others."
    for result in get_args(CertificateResult):
        of_result = {**labels, "verdict": result}
        yield Sample(name="scaling_verdict", help=about, labels=of_result, value=result == found.result)
    for one in found.devices:
        at = {**labels, "host": one.host, "device": one.name, "rank": f"{one.launch_rank}", "serial": one.serial}
        for field, (name, unit, meaning) in _DEVICE.items():
            if (rate := getattr(one, field)) is not None:
                full = f"scaling_device_{name}_{unit}"
                yield Sample(name=full, unit=unit, help=meaning, labels=at, value=rate)
