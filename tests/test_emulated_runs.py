"""Emulated devices in a sweep: flags, plan, records, reports."""

from __future__ import annotations

import io
import json as json_module
import os
import sys
from csv import DictReader
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from scaling import analysis, cells, cli, counters, joining, plan, verdict
from scaling.collector import PointState, RankState
from scaling.emulated import links
from scaling.emulated.choose import Setting
from scaling.errors import UsageError
from scaling.fabric import Entry
from scaling.plan import Plan
from scaling.records import Ended, Finished, Header, Nic, PointRecord, Telemetry
from scaling.report import csv, json, markdown, table
from scaling.view_plain import headline
from tests.inline import enrol, host
from tests.ranks import tasks
from tests.scripted_records import close, header, mean, point, record

STEP_S = 0.1
EMULATED: dict[str, Any] = {
    "device": "emulated", "profile": "p100", "model": "resnet50", "data": "synthetic", "batch_size": 64,
}  # fmt: skip


def planned(*argv: str, lab: tuple[float, ...] = (), nodes: int = 1, size: int = 4) -> Plan:
    """The plan of a launch of `size` ranks dealt out over `nodes` of one machine with two cores."""
    rate = {"ib": Entry(interface="ib0", rate_gbit=100.0)}
    hosts = [
        host(
            f"node{number}", cores=2, boot_id="one",
            nics=(Nic(name="ib0", address=f"10.10.0.{number}", netmask="255.255.255.0", up=True, mtu=1500),),
        )
        for number in range(1, nodes + 1)
    ]  # fmt: skip
    enrolled = [enrol(hosts[rank * nodes // size]) for rank in range(size)]
    return plan.make(cli.resolve(cli.parse(argv)), enrolled, rate, lab_bits_per_s=lab)


# ---------------------------------------------------------------- flags and plan


def test_a_profile_brings_model_batch_and_strategy() -> None:
    made = planned("--device", "emulated:p100")
    assert made.device == "emulated"
    assert made.config.device == "emulated:p100"
    assert (made.config.model, made.config.batch_size, made.config.strategy) == ("resnet50", 64, ("torch:gloo",))
    assert {point.profile for point in made.cells} == {"p100"}
    assert all("p100" in point.cell for point in made.cells)


def test_on_a_real_network_nothing_is_shrunk_or_dilated() -> None:
    (setting,) = {(point.shrink, point.dilate) for point in planned("--device", "emulated:p100").cells}
    assert setting == (1.0, 1.0)
    given = planned("--device", "emulated:p100", "--shrink", "10", "--dilate", "2")
    assert {(point.shrink, point.dilate) for point in given.cells} == {(10.0, 2.0)}


def test_in_a_lab_both_are_chosen_for_the_machine_and_kept_for_a_resumed_run() -> None:
    made = planned("--device", "emulated:p100", lab=(1e11, 1e10), nodes=4, size=16)
    (setting,) = {(point.shrink, point.dilate) for point in made.cells}
    assert setting == (made.config.shrink, made.config.dilate)
    assert setting[0] > 1
    assert setting[1] > 1
    given = planned("--device", "emulated:p100", "--dilate", "30", lab=(1e11, 1e10), nodes=4, size=16)
    assert {point.dilate for point in given.cells} == {30.0}


def test_settings_are_part_of_what_a_point_is() -> None:
    one = point(**EMULATED)
    assert len({one.cell, replace(one, shrink=2.0).cell, replace(one, dilate=2.0).cell, point().cell}) == 4
    assert "p100" not in point().cell


def test_the_estimate_counts_the_sleeps() -> None:
    short, long = (planned("--device", "emulated:p100", "--dilate", dilate) for dilate in ("1", "10"))
    assert long.estimate_s > 3 * short.estimate_s
    assert planned("--strategy", "fake:a").slept_s == 0.0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--device", "emulated"), ("'emulated'", "emulated:p100")),
        (("--device", "emulated:"), ("'emulated:'", "emulated:p100")),
        (("--device", "emulated:p10"), ("emulated:p10", "'p100'")),
        (("--device", "emulatd:p100"), ("'emulatd:p100'", "did you mean 'emulated:p100'")),
        (("--device", "emulated:p100", "--batch-size", "7"), ("batch 7", "batch 64, 32")),
        (("--device", "emulated:p100", "--global-batch-size", "64"), ("resnet50 at batch 16", "64, 32")),
        (("--device", "emulated:p100", "--model", "digits-cnn"), ("--model digits-cnn", "googlenet")),
        (("--device", "emulated:p100", "--precision", "bf16"), ("--precision bf16", "fp32")),
        (("--device", "emulated:p100", "--compile"), ("--compile",)),
        (("--device", "emulated:p100", "--shrink", "0.5"), ("--shrink 0.5", "from 1")),
        (("--device", "emulated:p100", "--dilate", "nan"), ("--dilate nan", "from 1")),
        (("--dilate", "2"), ("--dilate 2", "--device emulated:PROFILE")),
        (("--device", "emulated:p100", "--strategy", "mxnet:dist_sync"), ("mxnet:dist_sync", "torch:gloo")),
        (("--device", "emulated:p100", "--strategy", "torch:nccl"), ("torch:nccl", "torch:ps-async")),
    ],
)
def test_what_cannot_be_emulated_gets_one_line(argv: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        planned(*argv)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_another_model_or_device_displaces_the_settings_of_an_older_run() -> None:
    older = {"device": "emulated:p100", "model": "resnet50", "shrink": 20.0, "dilate": 4.0}
    assert not {"shrink", "dilate"} & set(cli.merge(older, {"model": "vgg16"}))
    assert not {"shrink", "dilate"} & set(cli.merge(older, {"device": "cpu"}))
    assert cli.merge(older, {"rounds": 5})["dilate"] == 4.0


def test_emulated_ranks_take_no_cpus_of_their_own_and_are_never_oversubscribed() -> None:
    made = planned("--device", "emulated:p100", size=4)
    (exchange,) = (point for point in made.cells if point.kind == "exchange" and point.world_size == 4)
    assert not cells.refused([exchange], made.seats)
    for task in tasks("torch:gloo", "exchange", 4, **EMULATED):
        assert task.cpus == ()


# ---------------------------------------------------------------- the lab's links


class Lab:
    """Stands for scaling.lab's state and shaping: one card at 100 Gb/s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shaped: list[dict[str, float]] = []
        self.is_up = True
        self.now_bits_per_s = 1e11
        state, shaping, package = (ModuleType(f"scaling.lab{end}") for end in (".state", ".shaping", ""))
        state.__dict__["load"] = self.load
        shaping.__dict__["shape"] = self.shape
        package.__dict__.update(state=state, shaping=shaping)
        for name, module in (("", package), (".state", state), (".shaping", shaping)):
            monkeypatch.setitem(sys.modules, f"scaling.lab{name}", module)

    def load(self, name: str) -> Any:
        if not self.is_up:
            raise UsageError(f"no lab {name!r} is up")
        nic = type("Nic", (), {})()
        nic.name, nic.rate_bits_per_s, nic.shaped_bits_per_s = "ib0", 1e11, self.now_bits_per_s
        return type("Lab", (), {"nics": (nic,), "name": name})()

    def shape(self, _lab: Any, rates: dict[str, float]) -> None:
        self.shaped.append(rates)
        self.now_bits_per_s = rates["ib0"]


def test_links_are_slowed_while_a_run_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with pytest.raises(KeyboardInterrupt), links.shaped(Setting(shrink=10, dilate=4), {links.VARIABLE: "one"}):
        assert lab.shaped == [{"ib0": 1e11 / 40}]
        raise KeyboardInterrupt
    assert lab.shaped[1:] == [{"ib0": 1e11}]


def test_what_a_broken_run_left_is_mended_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    lab.now_bits_per_s = 1e9
    with links.shaped(Setting(shrink=1, dilate=1), {links.VARIABLE: "one"}):
        assert lab.shaped == [{"ib0": 1e11}]
    assert lab.shaped == [{"ib0": 1e11}], "nothing is shaped that is right already"


def test_a_lab_that_goes_down_meanwhile_is_no_further_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with links.shaped(Setting(shrink=2, dilate=1), {links.VARIABLE: "one"}):
        lab.is_up = False
    assert len(lab.shaped) == 1


def test_without_a_lab_no_link_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    with links.shaped(Setting(shrink=2, dilate=2), {}):
        pass
    assert lab.shaped == []


def test_the_header_tells_what_was_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    Lab(monkeypatch)
    setting = Setting(shrink=10, dilate=4)
    told = links.told("emulated:p100", "resnet50", 64, setting, {links.VARIABLE: "one"})
    for words in ("NVIDIA Tesla P100", "219 images/s of resnet50 at batch 64", "https://", "/ 10", "x 4", "2.5"):
        assert words in told
    assert "40 times as fast" in links.told("emulated:p100", "resnet50", 64, setting, {})
    assert links.told("cpu", "resnet50", 64, setting, {}) == ""


# ---------------------------------------------------------------- records and reports


def emulated_run(dilate: float = 4.0, **changes: Any) -> tuple[Header, list[PointRecord]]:
    """A cluster on which 2 devices lose a tenth, as the clock of a machine `dilate` times as slow showed it."""
    fields = {**EMULATED, "shrink": 10.0, "dilate": dilate, **changes}
    records = []
    for number in range(2):
        drift = 1 + number / 1000
        for kind, n, step_s in (
            ("solo", 1, STEP_S), ("exchange", 1, STEP_S), ("exchange", 2, STEP_S / 0.9), ("together", 2, STEP_S),
            ("comm", 2, STEP_S / 2),
        ):  # fmt: skip
            made = record(point(kind, n, number, **fields), step_s * dilate * drift)
            ranks = tuple(
                replace(rank, cpus=(), telemetry=Telemetry(machine_cpu_percent=30.0 + rank.rank))
                for rank in made.ranks
            )
            records.append(replace(made, ranks=ranks))
    config = {"rounds": 2, "device": "emulated:p100", "shrink": 10.0, "dilate": dilate}
    return header(device="emulated", config=config, emulation="Tesla P100, computing nothing"), records


def test_rates_are_those_of_the_cluster_that_is_emulated() -> None:
    _, records = emulated_run()
    one, two = analysis.rows(records)
    assert mean(one.images_per_s) == pytest.approx(64 / STEP_S, rel=0.001)
    assert mean(two.images_per_s) == pytest.approx(2 * 64 * 0.9 / STEP_S, rel=0.001)
    assert mean(two.efficiency) == close(0.9)
    assert two.loss is not None
    assert two.loss.exposed == close(0.1)
    assert two.machine_cpu_percent == close(31.0)
    (base,) = analysis.baselines(records)
    assert mean(base.images_per_s) == pytest.approx(64 / STEP_S, rel=0.001)


def test_records_keep_what_the_clock_showed() -> None:
    _, records = emulated_run(dilate=4.0)
    (solo,) = (one for one in records if one.point.kind == "solo" and one.point.round == 0)
    assert solo.ranks[0].windows[0].seconds / solo.ranks[0].windows[0].steps == close(4 * STEP_S)


def test_every_row_of_every_export_is_stamped() -> None:
    head, records = emulated_run()
    for row in analysis.rows(records):
        assert "EMULATED" in row.flags
        assert not any("control is" in note for note in row.footnotes)
    text = table.render(head, records, color=False)
    assert "! EMULATED: no device computed anything" in text
    rows = [line for line in text.splitlines() if line.split()[:1] in (["1"], ["2"]) and "EMULATED" in line]
    assert len(rows) == 2, text
    assert "one device" in text
    for line in text.splitlines():
        if "one device" in line or "one rank" in line:
            assert "EMULATED" in line or "against" in line, line
    assert markdown.render(head, records).count("EMULATED") >= 5
    lines = list(DictReader(io.StringIO(csv.render(records))))
    assert [(one["flags"], one["profile"], one["shrink"], one["dilate"]) for one in lines] == [
        ("EMULATED", "p100", "10.0", "4.0")
    ] * 2
    found = json_module.loads(json.render(head, records))
    for entry in (*found["rows"], *found["baselines"]):
        assert (entry["device"], entry["profile"]) == ("emulated", "p100")
    assert found["run"]["emulation"] == "Tesla P100, computing nothing"


def test_emulated_and_measured_runs_are_joined_only_when_asked() -> None:
    head, _ = emulated_run()
    other, _ = emulated_run(dilate=8.0)
    assert any("devices differ" in reason for reason in joining.joinable([head, header()]))
    assert any("times x 8" in reason for reason in joining.joinable([head, other]))
    assert joining.joinable([head, head]) == ()


def test_controls_of_another_setting_or_of_real_devices_explain_nothing() -> None:
    _, records = emulated_run()
    exchange = [one for one in records if one.point.kind == "exchange"]
    _, others = emulated_run(dilate=8.0)
    controls = [one for one in others if one.point.kind != "exchange"]
    assert all(row.efficiency is None for row in analysis.rows([*exchange, *controls]))


def test_a_busy_machine_is_warned_of() -> None:
    of = tasks("torch:gloo", "exchange", 2, **EMULATED)
    for used, warned in ((79.0, False), (81.0, True), (None, False)):
        ended = Ended(outcome=Finished(), telemetry=Telemetry(machine_cpu_percent=used))
        ranks = tuple(RankState(task=task, ended=ended) for task in of)
        state = PointState(point=of[0].point, ranks=ranks, expected=3, started_s=0.0, started_unix_s=0.0)
        found = verdict.record(state, ended_s=1.0).warnings
        assert bool([text for text in found if "CPUs were over 80 % busy" in text]) == warned


class Times(NamedTuple):
    """psutil's, as far as they count."""

    user: float
    idle: float
    iowait: float
    guest: float = 0.0
    guest_nice: float = 0.0


def test_the_machine_is_watched_where_devices_are_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([Times(100.0, 50.0, 1.0, guest=10.0), Times(106.0, 57.0, 2.0, guest=14.0)])
    monkeypatch.setattr("psutil.cpu_times", lambda: next(readings))
    probe = counters.DeviceProbe.open("emulated", 0, os.getpid())
    probe.start()
    # Of 14 s, 6 busy; a guest's are in the user's already.
    assert probe.stop().machine_cpu_percent == pytest.approx(100 * 6 / 14)
    assert counters.DeviceProbe.open("cpu", 0, os.getpid()).stop().machine_cpu_percent is None


def test_the_view_tells_the_devices() -> None:
    head, _ = emulated_run()
    assert "emulated:p100 EMULATED" in headline(head)
