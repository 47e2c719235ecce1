"""Prices, cost, energy and operations per second of a row."""

from __future__ import annotations

import csv as csv_module
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.analysis.measured.device_use import MachineUse
from scaling.analysis.statistics.intervals import Estimate
from scaling.analysis.table import cell_rows, cost
from scaling.analysis.table.analyse import analyse, rows
from scaling.analysis.table.cost import (
    Base,
    Bill,
    Match,
    Price,
    Prices,
    Pricing,
    bill,
    knee,
    paid,
    relative,
    why_not,
)
from scaling.analysis.table.rows import Row
from scaling.errors import UsageError
from scaling.records.host import Gpu
from scaling.records.run import Header, HelperRecord, PointRecord
from scaling.records.telemetry import MachineEnergy, Telemetry
from scaling.report.formats import csv
from scaling.report.material import Material
from scaling.tools.compare.found import METRICS
from scaling.workloads import data
from tests.support.compared_runs import without_noise
from tests.support.golden import check_golden
from tests.support.golden_rows import check_rows, figures
from tests.support.gpu_records import GIB, sample, with_gpus
from tests.support.report_scenes import SCENES
from tests.support.scripted_records import by_one_worker, close, failed, header, host, mean, point, record, warning

# What training costs: the studies' own figures, whole machines, intervals turned over, the knee.

V100 = Price(
    name="p3.2xlarge", match=Match(cpu="Test CPU*"), devices=1, per_hour={"on_demand": 3.06, "spot": 0.92}
)


def pricing(*found: Price, **changes: Any) -> Pricing:
    return Pricing(Prices(currency="USD", price=found or (V100,)), **changes)


def row(n: int, **changes: Any) -> Row:
    """Of `fake:a` on N devices: 100 samples/s per device, efficiency 0.8."""
    (found,) = [one for one in rows(without_noise()[1]) if (one.strategy, one.world_size) == ("fake:a", n)]
    rate = Estimate(mean=100.0 * n, low=80.0 * n, high=125.0 * n, n=3, df=2)
    return replace(
        found, samples_per_s=rate, efficiency=Estimate(mean=0.8, low=0.64, high=1.0, n=3, df=2), **changes
    )


def billed(of: Row, asked: Pricing, **of_header: Any) -> Bill:
    found = bill(of, header(**of_header), asked)
    assert isinstance(found, Bill), found
    return found


@pytest.mark.parametrize(("minutes", "per_hour", "dollars"), [(12.8, 3.06, 0.65), (51.6, 0.90, 0.77)])
def test_the_studies_own_bills(minutes: float, per_hour: float, dollars: float) -> None:
    """Domino's comparison of cloud GPUs (2018): a training's minutes times the price of its instance."""
    assert round(paid(minutes * 60, per_hour), 2) == dollars


GPU = Gpu(index=0, name="Tesla V100-SXM2-16GB", uuid="u", memory_bytes=1)
NEVER = replace(V100, name="never", match=Match(gpu="H100"))


def priced(**match: str) -> Price:
    return replace(V100, match=Match(**match))


def of_nodes(*prices: Price) -> tuple[Row, Pricing, Header]:
    return row(2), pricing(*prices), header([host("node1", gpus=(GPU,)), host("node2", gpus=(GPU,))])


def with_servers(kind: str) -> Row:
    found = rows(SCENES["servers"]()[1])
    return next(one for one in found if (one.world_size, one.servers, one.server_hosts) == (2, 2, kind))


def changed(of: Row, name: str, **fields: Any) -> Row:
    return replace(of, **{name: replace(getattr(of, name), **fields)})


def bills() -> dict[str, tuple[Row, Pricing] | tuple[Row, Pricing, Header]]:
    """Rows, prices and headers of bills; `row` has 100 samples/s per device."""
    base = Base("own N=1", row(1), {(row(4).curve, 4): Estimate(mean=0.3, low=None, high=None, n=1)})
    return {
        # 1e6 / 100 per second = 10,000 s of one instance; the interval is that of the rate, turned over
        "a million samples": (row(1), pricing()),
        "an epoch of 1000": (row(1), pricing(epoch_samples=1000)),
        "an unknown epoch": (changed(row(1), "workload", data="synthetic"), pricing()),
        # machines are paid whole
        **{
            f"N={n} on {nodes} nodes, {devices} devices a machine": (
                row(n, nodes=nodes), pricing(replace(V100, devices=devices)),
            )
            for n, devices, nodes in ((1, 8, 1), (4, 8, 1), (4, 4, 1), (4, 3, 1), (4, 1, 1), (4, 8, 2))
        },
        **{
            f"{kind} nodes of servers": (with_servers(kind), pricing(replace(V100, devices=2)))
            for kind in ("shared", "dedicated")
        },
        **{flag: (row(2, flags=(flag,)), pricing()) for flag in ("FAILED", "OVERSUBSCRIBED", "MISLABELLED")},
        # the first price that matches holds
        "by GPU": of_nodes(NEVER, priced(gpu="Tesla V100*")),
        "by host": of_nodes(NEVER, priced(host="node*")),
        "by CPU": of_nodes(NEVER, priced(cpu="Test*")),
        "another GPU": of_nodes(NEVER, priced(gpu="A100*")),
        "an emulated device alone": of_nodes(priced(emulated="p100")),
        "no pattern": of_nodes(priced()),
        "hosts of several prices": of_nodes(priced(host="node1"), priced(host="node2")),
        **{
            f"emulated, {match}": (
                changed(row(2), "hardware", device="emulated", profile="p100"), pricing(priced(**match))
            )
            for match in ({"emulated": "p100"}, {"cpu": "Test*"})
        },
        # by the run's own date
        **{f"seen {day}": (row(1), pricing(replace(V100, seen=day))) for day in ("2026-07-01", "2018-02-01")},
        "over a base": (row(4), Pricing(None, base=base)),
        "a row that learnt less": (row(4, learnt_less=True), Pricing(None, base=base)),
        "no prices": (row(4), Pricing(None)),
    }  # fmt: skip


def test_bills_are_those_of_the_golden_file() -> None:
    lines = []
    for name, (of, asked, *headers) in bills().items():
        found = bill(of, headers[0] if headers else header(), asked)
        told = msgspec.json.encode(figures(msgspec.to_builtins(found))).decode()
        lines.append(f"{name}: {found if isinstance(found, str) else told}\n")
    check_golden("bills.txt", "".join(lines))


def test_known_bills() -> None:
    per_million = billed(row(1), pricing()).per_million
    dollars = {"on_demand": 3.06, "spot": 0.92}
    assert {how: one.mean for how, one in per_million.items()} == {
        how: close(10_000 / 3600 * price) for how, price in dollars.items()
    }
    one = per_million["on_demand"]
    assert (one.low, one.high) == (close(8_000 / 3600 * 3.06), close(12_500 / 3600 * 3.06))
    assert billed(row(1), pricing()).per_epoch["spot"].mean == close(1437 / 100 / 3600 * 0.92)
    # Four devices of a machine of eight do 3.2 times what it does with one.
    found = billed(row(4), pricing()).relative
    assert found and (found.mean, found.low, found.high) == (close(1.25), close(1.0), close(1 / 0.64))
    assert relative(row(4)) == found and relative(row(2, flags=("MISLABELLED",))) is None
    assert mean(billed(row(4), pricing(replace(V100, devices=8))).relative) == close(1 / 3.2)
    assert why_not(row(4, learnt_less=True)) == "its samples teach less" and why_not(row(4)) == ""


def test_an_epoch_is_what_is_trained_on() -> None:
    published = {name: one.splits["train"] for name, one in data.CATALOGUE.items() if "train" in one.splits}
    assert published == cost.EPOCHS


# ---------------------------------------------------------------- the knee


def curve(*rates: float) -> list[Row]:
    made = (Estimate(mean=rate, low=None, high=None, n=1) for rate in rates)
    return [replace(row(1), world_size=2**at, samples_per_s=rate) for at, rate in enumerate(made)]


@pytest.mark.parametrize(
    ("rates", "found", "asked"),
    [
        ((100, 200, 400), 4, pricing()),  # as cheap as the first
        ((100, 190, 340), 4, pricing()),  # added samples: 2/150 against a mean of 4/340: 1.13
        ((100, 180, 240), 2, pricing()),  # 2/60 against 4/240: 2
        ((100, 180, 240), 4, pricing(knee=2.5)),
        ((100, 120, 130), 4, pricing(replace(V100, devices=4))),  # devices that are paid anyway cost nothing more
        ((100, 101, 400), 1, pricing()),
        ((100, 90), 1, pricing()),
        ((100,), None, pricing()),
        ((), None, pricing()),
    ],
)
def test_the_knee(rates: tuple[float, ...], found: int | None, asked: Pricing) -> None:
    assert knee(curve(*rates), header(), asked) == found


# A user's file of prices: read whole, or refused in one line.

GOOD = """
currency = "USD"
[[price]]
name = "p3.2xlarge"
provider = "AWS"
match = { gpu = "Tesla V100-SXM2-16GB" }
devices = 1
per_hour = { on_demand = 3.06, spot = 0.92 }
minimum_s = 60
seen = 2018-02-01
source = "seeds/000 (Domino)"
"""


def read(tmp_path: Path, text: str) -> cost.Prices:
    path = tmp_path / "FILE.toml"
    path.write_text(text)
    return cost.read_prices(path)


def test_a_file_as_it_should_be(tmp_path: Path) -> None:
    (price,) = read(tmp_path, GOOD).price
    assert (price.hourly, price.seen, price.devices) == (3.06, "2018-02-01", 1)
    assert price.match.holds(gpu="Tesla V100-SXM2-16GB", cpu="any")
    assert not price.match.holds(gpu="Tesla P100") and not cost.Match().holds(gpu="any")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("on_demand = 3.06", "on_demand = -1", "p3.2xlarge: on_demand = -1: must be 0 or more"),
        ("on_demand = 3.06", "on_demand = nan", "on_demand = nan: must be 0 or more"),
        ("devices = 1", "devices = 0", "devices = 0: must be 1 or more"),
        ("devices = 1", "device = 1", "unknown field `device`"),
        ("{ on_demand = 3.06, spot = 0.92 }", "{}", "per_hour is empty"),
        ("gpu =", "gpus =", "unknown field `gpus`"),
        ('{ gpu = "Tesla V100-SXM2-16GB" }', "{}", "p3.2xlarge: match is empty and matches no machine"),
        ("minimum_s = 60", "minimum_s = -60", "p3.2xlarge: minimum_s = -60: must be 0 or more"),
        (
            "seen = 2018-02-01",
            'seen = "last year"',
            "p3.2xlarge: seen = last year: not a day; use one like 2018-02-01",
        ),
        ("seen = 2018-02-01", "seen = 2018-02-01T12:00:00", "seen = 2018-02-01T12:00:00: not a day"),
        ('currency = "USD"', 'currency = " "', 'currency is empty; use currency = "USD"'),
        ('currency = "USD"', "", "missing required field `currency`"),
        ("[[price]]", "[[price", "FILE.toml: not TOML: "),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, GOOD.replace(old, new))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# Energy of processors and memory: power over rate, of all of a row's machines or none, and of nobody else.

NODES = ("node1", "node2")
FIRST = "/sys/class/powercap/intel-rapl:0/energy_uj: Permission denied"
BOTH = {"node1": MachineEnergy(joules=100.0, seconds=1.0), "node2": MachineEnergy(joules=400.0, seconds=2.0)}
UNREADABLE = MachineEnergy(unreadable=FIRST)


def counted(made: PointRecord, by_host: Mapping[str, MachineEnergy]) -> PointRecord:
    hosts = [rank.host for rank in made.ranks]
    return replace(
        made,
        ranks=tuple(
            replace(rank, telemetry=replace(rank.telemetry, machine_energy=by_host.get(rank.host)))
            if rank.host not in hosts[: rank.rank]
            else rank
            for rank in made.ranks
        ),
    )


def two_nodes(by_host: Mapping[str, MachineEnergy], number: int = 0) -> PointRecord:
    """Two ranks that do 64 images in 0.1 s."""
    return counted(record(point("exchange", 2, number), 0.1, hosts=NODES), by_host)


LESS = {**BOTH, "node2": MachineEnergy(joules=200.0, seconds=2.0)}
WHOLE = two_nodes(BOTH)
ENERGIES: dict[str, Sequence[PointRecord]] = {
    # 100 W and 200 W over 640 images/s
    "two nodes": [WHOLE],
    "the mean of rounds": [WHOLE, two_nodes(LESS, 1)],
    "a part is not the whole": [two_nodes({"node1": BOTH["node1"]})],
    "no counters": [two_nodes({})],
    "a counter that stands still": [two_nodes({**BOTH, "node2": MachineEnergy(joules=0.0, seconds=2.0)})],
    "a counter that cannot be read": [two_nodes({**BOTH, "node2": UNREADABLE})],
    # no energy is claimed on a shared machine
    "oversubscribed": [replace(WHOLE, oversubscribed=True)],
    "disturbed": [replace(WHOLE, warnings=(replace(warning("another program"), kind="foreign-load"),))],
    "emulated": [replace(WHOLE, point=point("exchange", 2, device="emulated", profile="p100"))],
}


def test_energy_of_a_sample_is_power_over_rate() -> None:
    (row,) = rows([record(point("solo", 1), 0.1), WHOLE])
    assert row.machine_energy == MachineUse(power_w=300.0, j_per_sample=close(300 / 640))
    found = METRICS["j_per_sample"].of(row)
    assert found is not None and found.mean == close(300 / 640)
    check_rows("energy", ENERGIES)


# ---------------------------------------------------------------- in the report


@pytest.mark.parametrize(
    ("by_host", "said", "power_w", "unreadable"),
    [
        (BOTH, "N=2 300 W, 0.469 J/image, 2.13 images/s/W", "300.0", ""),
        ({**BOTH, "node1": UNREADABLE}, "N=2 -", "", FIRST),
        ({}, None, None, None),
    ],
)
def test_the_report_says_it(
    by_host: Mapping[str, MachineEnergy], said: str | None, power_w: str | None, unreadable: str | None
) -> None:
    """A counter that cannot be read is a dash, and its cure a note; without counters there is no line and no
    column."""
    records = [record(point("solo", 1), 0.1), two_nodes(by_host)]
    made = Material(header(), records).doc
    told = {label: values[0] for section in made.sections for label, values in section.details}
    assert told.get("CPU and DRAM") == said
    read = dict(made.how_to_read)
    assert ("RAPL" in read.get("CPU and DRAM", "")) == (said is not None)
    cure = read.get("J, W: -", "")
    assert (cure.startswith(f"{FIRST}: cannot be read") and "udev rule" in cure) if unreadable else not cure
    columns = next(csv_module.DictReader(io.StringIO(csv.of_rows(rows(records)))))
    assert (columns.get("machine_power_w"), columns.get("machine_unreadable")) == (power_w, unreadable)


# How GPUs ran: means over devices, and the energy of all of them or none.


def two() -> PointRecord:
    """Two GPUs, each read twice: at 1,395 and at 1,410 MHz."""
    return with_gpus(record(point("exchange", 2), 0.1))


def with_telemetry(*found: Telemetry) -> PointRecord:
    made = two()
    ranks = (replace(rank, telemetry=one) for rank, one in zip(made.ranks, found, strict=False))
    return replace(made, ranks=tuple(ranks))


def helped() -> PointRecord:
    """Helpers that compute have their devices."""
    made = by_one_worker(two())
    computing = tuple(
        HelperRecord(
            name=f"worker-{n}", launch_rank=n, host="node1", outcome=rank.outcome, telemetry=rank.telemetry
        )
        for n, rank in enumerate(two().ranks)
    )
    return replace(made, ranks=(replace(made.ranks[0], telemetry=Telemetry()),), helpers=computing)


def by_one() -> PointRecord:
    both = Telemetry(samples=(sample(device_index=0), sample(device_index=1)), energy_j=2000.0)
    made = by_one_worker(two())
    return replace(made, ranks=(replace(made.ranks[0], telemetry=both),))


def uncounted() -> PointRecord:
    """A step that no window counts used energy too."""
    ranks = (
        replace(rank, windows=(replace(rank.windows[0], uncounted_samples=32), *rank.windows[1:]))
        for rank in two().ranks
    )
    return replace(two(), ranks=tuple(ranks))


OF_FIRST, OF_SECOND = (rank.telemetry for rank in two().ranks)
SAMPLES = 2 * 3 * 10 * 32
USES: dict[str, tuple[PointRecord, dict[str, float | None]]] = {
    "all": (two(), {"samples_per_j": SAMPLES / 2000, "peak_memory_bytes": 31 * GIB}),
    # means are over devices
    "a slow GPU": (
        with_telemetry(OF_FIRST, Telemetry(samples=(sample(device_index=1, sm_clock_mhz=800.0),))),
        {"sm_clock_mhz": 1101.25, "slowest_sm_clock_mhz": 800.0, "max_sm_clock_mhz": 1410.0},
    ),
    # an idle GPU shows no clock
    "an idle GPU": (
        with_telemetry(
            Telemetry(samples=(sample(sm_clock_mhz=210.0, utilisation_percent=0.0), sample(sm_clock_mhz=1400.0)))
        ),
        {"sm_clock_mhz": 1400.0, "slowest_sm_clock_mhz": 1400.0},
    ),
    # the energy of a part is not that of the whole
    "a GPU without a counter": (
        with_telemetry(OF_FIRST, replace(OF_SECOND, energy_j=None)), {"samples_per_j": None}
    ),
    "an uncounted step": (uncounted(), {"samples_per_j": 2 * 31 * 32 / 2000}),
    # each of them reads the counter of the whole GPU
    "ranks that share a GPU": (replace(two(), gpus=("GPU-a", "GPU-a")), {"samples_per_j": SAMPLES / 1000}),
    "ranks of two GPUs": (replace(two(), gpus=("GPU-a", "GPU-b")), {"samples_per_j": SAMPLES / 2000}),
    "one worker of two GPUs": (by_one(), {"samples_per_j": SAMPLES / 2000}),
    "helpers": (helped(), {"sm_clock_mhz": 1402.5, "samples_per_j": SAMPLES / 2000}),
    # the memory is a framework's own count, else that of NVML
    "no result": (
        replace(two(), ranks=tuple(replace(rank, result=None) for rank in two().ranks)),
        {"peak_memory_bytes": 40 * GIB},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_the_use_of_devices(name: str) -> None:
    made, values = USES[name]
    found, clocks = device_use.of([made]), device_use.clocks([made])
    assert {field: getattr(found, field) for field in values} == values
    assert found is not None and clocks is not None and clocks.sm_mhz == pytest.approx(found.sm_clock_mhz, rel=0.1)


def test_without_readings_nothing_is_known() -> None:
    assert device_use.of([record(point("exchange", 2), 0.1)]) is None
    assert device_use.of([failed(point("exchange", 2))]) is None


# Operations per second, and their part of what a device could do.


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H100 80GB HBM3", "fp32", 67.0),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA L40S", "fp16", 362.05),
        ("NVIDIA L4", "fp16", 121.0),
        ("Tesla V100-SXM2-16GB", "fp16", 125.0),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA A100 80GB PCIe", "bf16", 312.0),
        ("NVIDIA GH200 144G HBM3e", "bf16", 989.5),
        ("NVIDIA A1000", "fp32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "bf16", None),
        ("NVIDIA GeForce RTX 3090 Ti", "fp32", None),
        ("NVIDIA GeForce RTX 4090 D", "fp32", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
        ("NVIDIA A40-24Q", "bf16", None),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "fp32", None),
    ],
)
def test_a_devices_peak(device: str, precision: str, tflops: float | None) -> None:
    assert cell_rows.peak_tflops(device, precision) == tflops  # type: ignore[arg-type]


def test_every_peak_has_a_source_and_halves_are_no_slower_than_singles() -> None:
    for one in cell_rows.read_peaks():
        assert "NVIDIA" in one.source
        assert one.peaks["fp16"] >= one.peaks.get("tf32", 0) >= 0
        assert one.peaks["fp16"] >= one.peaks["fp32"] > 0


def on_h100(one: PointRecord, operations: int) -> PointRecord:
    """Ranks on H100s that count so many operations of a sample."""
    ranks = tuple(
        replace(rank, ready=rank.ready and replace(
            rank.ready, device_name="NVIDIA H100 80GB HBM3", operations_per_sample=operations
        ))
        for rank in one.ranks
    )  # fmt: skip
    return replace(one, ranks=ranks)


def test_a_row_says_what_one_device_computes_and_its_part_of_the_peak() -> None:
    """Batches of 32 in 0.1 s of 10^12 operations a sample: 320 TFLOP/s of 67 that fp32 has."""
    records = [on_h100(record(point(kind, size), 0.1), 10**11) for kind, size in (("solo", 1), ("exchange", 2))]
    (row,) = analyse(records).rows
    assert row.tflops == pytest.approx(32 / 0.1 / 10)
    assert row.mfu == pytest.approx(32 / 67.0)


def test_nothing_is_said_where_nothing_was_counted() -> None:
    (row,) = analyse([record(point("exchange", 2), 0.1)]).rows
    assert (row.tflops, row.mfu) == (None, None)
