"""Device rates: who measures which device with which work, which answers count, what is said of slow devices."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.errors import Interrupted
from scaling.records.host import GpuHost
from scaling.records.messages import Signalled
from scaling.records.point import Device
from scaling.records.task import AskedDeviceRates, DeviceRates
from scaling.tools.check import measured, prober
from scaling.tools.check.facts import (
    LEAD_DECODER,
    RANK_DECODER,
    Facts,
    Go,
    RankFacts,
    Start,
    Told,
    ToLead,
    ToRank,
)
from scaling.tools.check.lead import Lead
from scaling.tools.check.verdicts.devices import outliers, spreads
from scaling.transport.base import Hub, Mailbox, send_news
from tests.support.check_facts import (
    A100,
    FOUR,
    H200,
    SOUND,
    TORCH,
    failed_gpu,
    gpu,
    node,
    on_cpus,
    on_gpu,
    rank,
    ranks,
    sound_gpu,
)  # fmt: skip
from tests.support.inline_child import Clock


def slow(rates: Sequence[DeviceRates]) -> list[tuple[int, str, float]]:
    return [(one.device.launch_rank, one.quantity.name, round(one.below, 3)) for one in outliers(rates)]


# ---------------------------------------------------------------- outliers


MANY = [on_gpu(number, samples_per_s=1000.0) for number in range(199)]
MIXED = [on_gpu(0), on_gpu(1), on_gpu(2, name=A100, of_sound=0.3), on_gpu(3, name=A100, of_sound=0.24)]


@pytest.mark.parametrize(
    ("rates", "found"),
    [
        ([], []),
        ([on_gpu(0)], []),
        ([on_gpu(number, of_sound=1 - number / 200) for number in range(8)], []),
        # The worst is first, and every slow rate is told.
        ([on_gpu(0), on_gpu(1), on_gpu(2, of_sound=0.8, samples_per_s=1375.0), on_gpu(3, of_sound=0.7)],
         [(2, "training step", 0.5), (3, "matrix product", 0.3), (2, "matrix product", 0.2)]),
        # 5 % is slow among many alike, less is not.
        ([*MANY, on_gpu(199, samples_per_s=951.0)], []),
        ([*MANY, on_gpu(199, samples_per_s=950.0)], [(199, "training step", 0.05)]),
        # Of two devices the slower one is held against the faster one.
        ([on_gpu(0, of_sound=0.8), on_gpu(1)], [(0, "matrix product", 0.2)]),
        # A slow half is named.
        ([on_gpu(number, of_sound=0.85 if number < 4 else 1) for number in range(8)],
         [(number, "matrix product", 0.15) for number in range(4)]),
        # Devices are compared among their kind, half of the cores are another.
        ([*MIXED, on_cpus(4)], [(3, "matrix product", 0.2)]),
        ([on_cpus(0), on_cpus(1, 40e9, cpus=(2,))], []),
        # Unknown rates are not compared.
        ([on_gpu(0), on_gpu(1), failed_gpu(2)], []),
        ([failed_gpu(2), failed_gpu(3)], []),
    ],
)  # fmt: skip
def test_slow_devices(rates: list[DeviceRates], found: list[tuple[int, str, float]]) -> None:
    assert slow(rates) == found


@pytest.mark.parametrize("count", [2, 4, 16])
@pytest.mark.parametrize("sd", [0.01, 0.02, 0.03])
def test_healthy_devices_are_named_in_one_check_of_a_hundred(count: int, sd: float) -> None:
    dice, named = Random(count), 0
    for _ in range(300):
        varied = [
            replace(on_gpu(number), **{name: rate * dice.lognormvariate(0, sd) for name, rate in SOUND.items()})
            for number in range(count)
        ]
        named += bool(outliers(varied))
    assert named <= 8  # 3 are meant; more than 8 in 300 has a chance of 0.4 %


def test_a_device_without_rates_widens_nothing() -> None:
    assert spreads([on_gpu(0), on_gpu(1), failed_gpu(2)]) == spreads([on_gpu(0), on_gpu(1)])


# ---------------------------------------------------------------- who measures what


def gpus_of(name: str, count: int = 2, **changes: Any) -> dict[str, Any]:
    return {name: {"gpus": tuple(gpu(index, of=count, name=H200, **changes) for index in range(count))}}


CUDA = {"built_for_cuda": "13.0"}


def test_each_rank_measures_its_gpu() -> None:
    health = GpuHost(
        gpus=(
            replace(sound_gpu(0), uuid="GPU-0-node1", index=4, serial="111"),
            sound_gpu(1, uuid="GPU-1-node1"),
        )
    )
    told = ranks(FOUR[:1], each=2, hosts=gpus_of("node1"), told={"node1": {**CUDA, "driver": health}})
    first, second = measured.seats(told)
    assert (first.device.place, second.device.place) == ("node1 GPU 4 (serial 111)", "node1 GPU 1")
    assert [(seat.device.launch_rank, seat.device.uuid, seat.device.name) for seat in (first, second)] == [
        (0, "GPU-0-node1", H200), (1, "GPU-1-node1", H200),
    ]  # fmt: skip
    assert [measured.task(seat).device_index for seat in (first, second)] == [0, 1]


def test_the_first_rank_on_a_shared_gpu_measures_it() -> None:
    told = ranks(FOUR[:2], each=3, hosts=gpus_of("node1") | gpus_of("node2"), told=dict.fromkeys(FOUR, CUDA))
    assert [(seat.device.launch_rank, seat.device.uuid) for seat in measured.seats(told)] == [
        (0, "GPU-0-node1"), (1, "GPU-1-node1"), (3, "GPU-0-node2"), (4, "GPU-1-node2"),
    ]  # fmt: skip


def test_ranks_measure_their_own_cores_as_workers_have_them() -> None:
    told = ranks(FOUR[:1], each=2, told=TORCH)
    found = measured.seats(told)
    tasks = [measured.task(seat) for seat in found]
    assert [task.cpus for task in tasks] == [seat.device.cpus for seat in found]
    assert set(tasks[0].cpus).isdisjoint(tasks[1].cpus)
    assert all(task.threads == len(told[0].host.cores) // 2 for task in tasks)
    assert [(task.point.strategy, task.point.kind, task.point.world_size) for task in tasks] == [
        ("torch:plain", "solo", 1)
    ] * 2


def test_more_ranks_than_cores_measure_each_core_once() -> None:
    one = node("node1", 1, cores=((0,), (1,)), core_ids=(0, 1))
    told = [rank(one, number, **TORCH["node1"]) for number in range(5)]
    assert [seat.device.cpus for seat in measured.seats(told)] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("asked", "built", "kinds", "left_out"),
    [
        (None, "13.0", ["cuda", "cuda"], ""),
        (None, "", ["cpu", "cpu"], ""),  # the framework is built without CUDA
        ("cpu", "13.0", ["cpu", "cpu"], ""),
        ("cuda", "", ["cuda", "cuda"], "torch is built without CUDA"),
        ("emulated", "13.0", ["emulated", "emulated"], "emulated devices compute nothing"),
        (None, None, ["cpu", "cpu"], "torch is missing in this environment"),
    ],
)
def test_the_kind_of_device(asked: Device | None, built: str | None, kinds: list[str], left_out: str) -> None:
    told = ranks(FOUR[:1], each=2, hosts=gpus_of("node1"), told={"node1": {"built_for_cuda": built}})
    found = [seat.device for seat in measured.seats(told, asked)]
    assert [one.device for one in found] == kinds
    assert {one.left_out for one in found} == {left_out}


def test_a_gpu_that_was_asked_for_and_is_not_there() -> None:
    (seat,) = measured.seats(ranks(FOUR[:1], told=dict.fromkeys(FOUR, CUDA)), "cuda")
    assert seat.device.left_out == "no GPU on this host"


@pytest.mark.parametrize(
    ("device", "capability", "words"),
    [
        ("cpu", None, ("digits-cnn", 32, "fp32", "contiguous")),
        ("cuda", (9, 0), ("resnet50", 64, "bf16", "channels_last")),
        ("cuda", (7, 5), ("resnet50", 64, "fp16", "channels_last")),
        ("cuda", (6, 0), ("resnet50", 64, "fp32", "contiguous")),
        ("cuda", None, ("resnet50", 64, "fp32", "contiguous")),
    ],
)
def test_the_step_is_that_of_a_run_without_flags(
    device: Device, capability: tuple[int, int] | None, words: tuple[object, ...]
) -> None:
    work = measured.workload(device, capability)
    assert (work.model, work.batch_size, work.precision, work.memory_format) == words


# ---------------------------------------------------------------- what is made of answers

Answers = Callable[[ToRank, Start], Sequence[ToLead]]


class Scripted:
    """Ranks that answer an order as their script says, on a virtual clock; `orders` are those of each rank."""

    def __init__(self, told: Sequence[RankFacts], scripts: Mapping[int, Answers]) -> None:
        self._hub, self._clock = Hub(len(told)), Clock()
        self._scripts = scripts
        self._asked: dict[int, Start] = {}
        self.orders: dict[int, list[str]] = {number: [] for number in range(len(told))}
        self.said: list[str] = []
        mailbox = Mailbox[ToRank, ToLead](
            self._hub.rank(0),
            LEAD_DECODER,
            turn=self._turn,
            wait=lambda: self._clock.sleep(1.0),
            clock=self._clock,
        )
        self.lead = Lead(mailbox)
        self.lead.say = self.said.append
        self.facts = Facts(ranks=tuple(told))

    def _turn(self) -> None:
        for number in self.orders:
            cluster = self._hub.rank(number)
            while (message := cluster.receive("agent")) is not None:
                order = RANK_DECODER.decode(message[1])
                self.orders[number].append(type(order).__name__)
                if isinstance(order, Start):
                    self._asked[number] = order
                for answer in self._scripts.get(number, sound)(order, self._asked[number]):
                    send_news(cluster, answer)

    def rates(self) -> tuple[DeviceRates, ...]:
        found = self.lead.rated(self.facts).device_rates
        self._turn()
        return found


def told(asked: Start, number: int | None = None, **changes: object) -> Told:
    assert isinstance(asked.asked, AskedDeviceRates)
    line = msgspec.json.encode(replace(asked.asked.device, **changes))
    return Told(number=asked.number if number is None else number, line=line)


def sound(order: ToRank, asked: Start) -> Sequence[ToLead]:
    """The answers of a sound rank."""
    match order:
        case Start():
            return [told(asked)]
        case Go():
            return [told(asked, matrix_flops_per_s=95e9)]
    return []


def silent_at(kind: type[ToRank]) -> Answers:
    return lambda order, asked: [] if isinstance(order, kind) else sound(order, asked)


def three(**scripts: Answers) -> Scripted:
    told = ranks(FOUR[:3], told=TORCH)
    return Scripted(told, {int(name.removeprefix("rank")): script for name, script in scripts.items()})


def test_all_are_built_before_any_measures() -> None:
    cluster = three()
    assert [(one.launch_rank, one.host, one.matrix_flops_per_s) for one in cluster.rates()] == [
        (0, "node1", 95e9), (1, "node2", 95e9), (2, "node3", 95e9),
    ]  # fmt: skip
    assert set(map(tuple, cluster.orders.values())) == {("Start", "Go", "EndProcess")}
    assert cluster.said == ["rates of 3 devices, each alone, about 15 s"]


def test_a_device_that_does_not_answer_has_an_error_and_the_others_their_rates() -> None:
    cluster = three(rank1=silent_at(Go))
    assert [one.error for one in cluster.rates()] == ["", "no answer within 30 s", ""]


def test_a_process_that_does_not_start_is_not_waited_for_twice() -> None:
    cluster = three(rank1=silent_at(Start))
    assert [one.error for one in cluster.rates()] == ["", "no answer within 90 s", ""]
    assert cluster.orders[1] == ["Start", "EndProcess"]


def test_a_process_that_fails_at_its_start_does_not_measure() -> None:
    def fails(order: ToRank, asked: Start) -> Sequence[ToLead]:
        assert not isinstance(order, Go)
        return [told(asked, error="no CUDA")] if isinstance(order, Start) else []

    assert [one.error for one in three(rank2=fails).rates()] == ["", "", "no CUDA"]


def test_answers_of_an_earlier_measurement_do_not_count() -> None:
    def late(order: ToRank, asked: Start) -> Sequence[ToLead]:
        return [told(asked, number=-1, matrix_flops_per_s=1.0), *sound(order, asked)]

    cluster = three(rank0=late)
    assert [one.matrix_flops_per_s for one in cluster.rates()] == [95e9] * 3
    assert [one.matrix_flops_per_s for one in cluster.rates()] == [95e9] * 3  # and it can be repeated


def test_a_signal_ends_the_processes() -> None:
    def signalled(order: ToRank, _: Start) -> Sequence[ToLead]:
        return [Signalled(signal=2)] if isinstance(order, Start) else []

    cluster = three(rank1=signalled)
    with pytest.raises(Interrupted):
        cluster.rates()
    cluster._turn()
    assert all(orders[-1] == "EndProcess" for orders in cluster.orders.values())


def test_nothing_is_started_where_nothing_can_be_measured() -> None:
    cluster = Scripted(ranks(FOUR[:2]), {})
    rates = cluster.lead.rated(cluster.facts).device_rates
    assert [one.left_out for one in rates] == ["torch is missing in this environment"] * 2
    assert cluster.said == []


def test_rates_are_kept_as_json() -> None:
    kept = Facts(ranks=ranks(FOUR[:1]), device_rates=(on_gpu(0), on_cpus(1)))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Facts) == kept
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(on_gpu(0)).replace(b"2750.0", b"-1"), type=DeviceRates)


def test_a_process_that_a_driver_holds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        pid, stdin, stdout = 1, None, None

        def poll(self) -> None:
            """It runs."""

        def wait(self, seconds: float) -> None:
            raise subprocess.TimeoutExpired("python", seconds)

    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "killpg", lambda *given: killed.append(given))
    rater = prober.Processes()
    monkeypatch.setattr(rater, "_process", Held())
    rater.end(0)
    rater.end(prober.FOR_GOOD)
    assert killed == [(1, signal.SIGKILL)]
