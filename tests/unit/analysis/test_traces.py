"""Profiled steps: which record has them, how a step on GPUs is split, and recorded traces of real GPUs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling.analysis.measured.device_use import Event, GpuSplit, gpu_time, split, traced
from scaling.analysis.table.analyse import rows
from scaling.records.telemetry import TRACED, GpuTime, Kernels
from tests.support.cuda_traces import ALL_REDUCE, COPY, GEMM, kernel, nccl, trace
from tests.support.scripted_records import point, record
from tests.support.traced_records import STEPS_TRACED, gpu, of_two_devices, runs, with_traces

# The profiled steps of a cell: which record has them, and the split of a step on GPUs, by hand.


def whole(found: GpuSplit) -> float:
    parts: list[float | None] = [getattr(found, name) for name in GpuSplit.__struct_fields__]
    return sum(part for part in parts if part is not None)


def test_the_parts_add_up_to_the_traced_step() -> None:
    alone = [gpu(compute_s=0.100, idle_s=0.010, kernels=[runs("gemm", 10, 0.010)])] * 2
    beside = [runs("gemm", 10, 0.011), runs("copy", 2, 0.001)]
    # Rank 1 comes last: it does not wait.
    ranks = [
        gpu(compute_s=0.112, idle_s=0.013, runs=[(0.020, 0.020), (0.050, 0.030)], kernels=beside),
        gpu(compute_s=0.112, idle_s=0.013, runs=[(0.020, 0.000), (0.012, 0.012)], kernels=beside),
    ]
    found = split(ranks, alone)
    assert found is not None
    assert found.compute_s == pytest.approx(0.100)
    assert found.slowed_s == pytest.approx(0.010)
    assert found.other_s == pytest.approx(0.002)
    # The first collective takes 20 ms on both, and rank 0 shows it all. The second takes 12; rank 0 shows 30.
    assert found.waiting_s == pytest.approx((0.030 - 0.012) / 2)
    assert found.transfer_s == pytest.approx((0.020 + 0.012 + 0.012) / 2)
    assert found.idle_s == pytest.approx(0.010)
    assert found.host_s == pytest.approx(0.003)
    assert whole(found) == pytest.approx(sum(one.span_s for one in ranks) / 2 / STEPS_TRACED)


GEMMS = runs("gemm", 5, 0.010)


@pytest.mark.parametrize(
    ("alone", "beside", "slowed_s", "other_s"),
    [
        # cuDNN chooses another algorithm by trying, in each process anew
        ([GEMMS, runs("fft", 1, 0.050)], [GEMMS, runs("winograd", 1, 0.060)], 0, 0.010),
        # the exchange's wrapper runs two more of the same name: as many runs as both have are compared
        ([runs("copy", 4, 0.010)], [runs("copy", 6, 0.011)], 4 * 0.001, 2 * 0.011),
    ],
)
def test_other_kernels_are_no_slowing(
    alone: list[Kernels], beside: list[Kernels], slowed_s: float, other_s: float
) -> None:
    steps_s = (sum(one.run_s for one in of) / STEPS_TRACED for of in (beside, alone))
    own, base = (gpu(compute_s=t, idle_s=0.0, kernels=of) for t, of in zip(steps_s, (beside, alone), strict=True))
    found = split([own], [base])
    assert found is not None and [found.slowed_s, found.other_s] == pytest.approx([slowed_s, other_s])


def test_without_the_plain_loops_trace_nothing_is_said_of_what_changed() -> None:
    found = split([gpu(compute_s=0.1, idle_s=0.01, runs=[(0.02, 0.005)])] * 2, [])
    assert found is not None
    assert (found.slowed_s, found.other_s, found.host_s) == (None, None, None)
    assert whole(found) == pytest.approx(0.1 + 0.01 + 0.005)
    assert split([], []) is None


def test_collectives_that_are_not_the_same_ones_are_not_compared() -> None:
    one = gpu(compute_s=0.1, idle_s=0.0, runs=[(0.02, 0.02)])
    two = gpu(compute_s=0.1, idle_s=0.0, runs=[(0.02, 0.02), (0.01, 0.01)])
    found = split([one, two], [])
    assert found is not None
    assert found.waiting_s is None
    assert found.transfer_s == pytest.approx((0.02 + 0.03) / 2)


# ---------------------------------------------------------------- of records


def test_a_row_has_the_traced_step_beside_that_of_the_same_record() -> None:
    (row,) = rows(of_two_devices(0.21, [], []))
    assert row.traced is not None
    assert row.traced.step_s == pytest.approx(0.21)
    assert row.traced.untraced_s == pytest.approx(0.2)
    assert row.traced.slowed == pytest.approx(0.05)
    assert not row.traced.is_faithful
    assert row.traced.files == ("traces/0001-fake-a-exchange-n2-r0.*",)
    assert row.traced.gpu is None
    assert row.samples_per_s is not None and row.samples_per_s.mean == pytest.approx(2 * 32 / 0.2)


def test_a_row_is_split_against_the_plain_loops_of_as_many_devices() -> None:
    alone = [gpu(compute_s=0.1, idle_s=0.0, kernels=[runs("gemm", 1, 0.1)])] * 2
    gpus = [gpu(compute_s=0.11, idle_s=0.0, runs=[(0.09, 0.09)], kernels=[runs("gemm", 1, 0.11)])] * 2
    (row,) = rows(of_two_devices(0.2, gpus, alone))
    assert row.traced is not None and row.traced.is_faithful and row.traced.gpu is not None
    assert row.traced.gpu.slowed_s == pytest.approx(0.01)
    assert row.traced.gpu.transfer_s == pytest.approx(0.09)


def test_a_rank_without_a_trace_leaves_the_others_unsplit() -> None:
    made = with_traces(record(point("exchange", 2), 0.2), 0.2, [gpu(compute_s=0.1, idle_s=0.1)] * 2)
    lost: dict[str, Any] = {"traced": (), "traces": (), "gpu": None}
    ranks = (made.ranks[0], replace(made.ranks[1], **lost))
    found = traced([replace(made, ranks=ranks)])
    assert found is not None and found.step_s is None and not found.is_faithful and found.gpu is None
    assert found.files == ("traces/0001-fake-a-exchange-n2-r0.*",)
    assert traced([record(point(), 0.1)]) is None


# What a trace says of a GPU: by hand on traces in torch.profiler's words that no GPU recorded, and on a recorded
# one of a CPU.

RECORDED = Path(__file__).parents[2] / "traces"


def of(*events: dict[str, object], span_us: float = 1000.0) -> GpuTime:
    found = gpu_time(trace(events, span_us), steps=5)
    assert found is not None
    return found


def us(seconds: float) -> float:
    """Traces have a resolution of a nanosecond."""
    return round(1e6 * seconds, 2)


def test_each_moment_of_the_span_counts_once() -> None:
    found = of(
        kernel(GEMM, 100, 200),  # 100..300
        kernel(COPY, 250, 100, stream=8),  # beside it: 250..350
        nccl(300, 300),  # 300..600, of which 350..600 alone
        kernel("Memcpy HtoD (Pinned -> Device)", 900, 50, cat="gpu_memcpy"),
        kernel("Memset (Device)", 960, 20, cat="gpu_memset"),
    )
    assert (found.steps, us(found.span_s)) == (5, 1000)
    assert us(found.compute_s) == 250 + 50 + 20
    assert us(found.exposed_s) == 250
    assert us(found.idle_s) == 1000 - 320 - 250
    assert found.compute_s + found.exposed_s + found.idle_s == pytest.approx(found.span_s)


def test_two_collectives_at_once_are_exposed_once() -> None:
    found = of(nccl(0, 100), nccl(50, 100, "ncclDevKernel_Broadcast_RING_LL"))
    assert [(us(one.run_s), us(one.exposed_s)) for one in found.collectives] == [(100, 100), (100, 50)]
    assert us(found.exposed_s) == 150


@pytest.mark.parametrize("seed", range(20))
def test_what_computing_hides_is_what_both_have_in_common(seed: int) -> None:
    """Of any layout, moment by moment."""
    dice = random.Random(seed)
    kernels, collectives = (
        [(dice.randrange(900), dice.randrange(1, 60)) for _ in range(dice.randrange(1, 40))] for _ in range(2)
    )
    found = of(*(kernel(GEMM, *one) for one in kernels), *(nccl(*one) for one in collectives))
    busy, communicating = (
        {moment for begin, length in each for moment in range(begin, begin + length)}
        for each in (kernels, collectives)
    )
    assert us(found.compute_s) == len(busy)
    assert us(found.exposed_s) == len(communicating - busy)
    assert us(found.idle_s) == 1000 - len(busy | communicating)


def test_a_large_trace_is_read() -> None:
    """Five steps of a large network, sharded: each collective is compared with what it meets, not with all."""
    kernels, collectives = 40_000, 4_000
    planted = [
        *(kernel(GEMM, 10.0 * each, 5.0) for each in range(kernels)),
        *(nccl(100.0 * each + 1.0, 8.0) for each in range(collectives)),
    ]
    found = of(*planted, span_us=10.0 * kernels)
    assert len(found.collectives) == collectives
    assert us(found.compute_s) == 5 * kernels
    assert us(found.exposed_s) == 4 * collectives


def test_kernels_are_told_by_name_and_collectives_in_their_order() -> None:
    found = of(nccl(600, 40), kernel(GEMM, 0, 100), nccl(500, 60), kernel(COPY, 150, 10), kernel(GEMM, 200, 110))
    assert [(one.name, one.count, us(one.run_s)) for one in found.kernels] == [(GEMM, 2, 210), (COPY, 1, 10)]
    assert [(one.name, us(one.run_s)) for one in found.collectives] == [(ALL_REDUCE, 60), (ALL_REDUCE, 40)]


@pytest.mark.parametrize("name", ["torch-gloo-cpu.json"])
def test_a_recorded_trace_without_a_gpu_has_no_split(name: str) -> None:
    """It does have the span: with a kernel put into it, it is read."""
    recorded = (RECORDED / name).read_bytes()
    assert gpu_time(recorded, steps=5) is None
    events = msgspec.json.decode(recorded)
    (span,) = (event for event in events["traceEvents"] if event["name"] == "scaling: traced steps")
    planted = {"ph": "X", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": span["ts"] + 10, "dur": 100.0}
    events["traceEvents"].append(planted)
    found = gpu_time(msgspec.json.encode(events), steps=5)
    assert found is not None
    assert (us(found.compute_s), us(found.span_s)) == (100, round(span["dur"], 2))


def test_a_trace_without_the_span_tells_nothing() -> None:
    assert gpu_time(b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 2}]}', 5) is None


@pytest.mark.parametrize(
    "broken",
    [
        b"[",
        b'{"traceEvents": [{"name": "\xff"}]}',
        b'{"traceEvents": [{"cat": "kernel", "name": "a", "ts": 1, "dur": "long"}]}',
        trace([{**kernel(GEMM, 0, 10), "ts": "abc"}]),
    ],
    ids=["no JSON", "no UTF-8", "no duration", "no time"],
)
def test_what_is_no_trace_is_refused_as_one(broken: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        gpu_time(broken, 5)


def test_times_may_stand_in_quotes() -> None:
    event = kernel(GEMM, 0, 10)
    assert us(of({**event, "ts": str(event["ts"])}).compute_s) == 10


# What is said of traces that GPUs recorded, against a count of their microseconds one by one.
# tests/traces/README.md says whose they are. Times in them are whole microseconds, and NCCL has a stream of its
# own: which kernels communicate is known here by their stream, in the code under test by their names.

LAYER_0, LAYER_1, LOSS = (f"torch-nccl-a100-{name}.json" for name in ("layer-0", "layer-1", "loss-0"))
COMPUTING, COMMUNICATING = 7, 24  # streams


@dataclass(frozen=True)
class Excerpt:
    events: list[dict[str, Any]]
    begin_us: int
    end_us: int

    def on(self, stream: int) -> list[dict[str, Any]]:
        return [event for event in self.events if event["tid"] == stream]

    def moments(self, stream: int) -> set[int]:
        return {moment for event in self.on(stream) for moment in range(event["ts"], event["ts"] + event["dur"])}

    def split(self, more: Iterable[dict[str, Any]] = ()) -> GpuTime:
        window = {"ph": "X", "cat": "user_annotation", "name": TRACED, "pid": 4711, "tid": 4711}
        span = {**window, "ts": self.begin_us, "dur": self.end_us - self.begin_us}
        found = gpu_time(msgspec.json.encode({"traceEvents": [span, *self.events, *more]}), steps=1)
        assert found is not None
        return found


def excerpt(name: str) -> Excerpt:
    """From its first kernel to the end of the step where the file has it, or else to that of the last kernel."""
    events = msgspec.json.decode((RECORDED / name).read_bytes())["traceEvents"]
    ends = [event["ts"] + event["dur"] for event in events]
    on_gpu = [event for event in events if event["cat"] != "user_annotation"]
    return Excerpt(on_gpu, min(event["ts"] for event in on_gpu), max(ends))


def moved(whole: Excerpt, by_us: int) -> Excerpt:
    """With NCCL's stream earlier or later beside the computing one: an exchange that overlaps."""
    if not by_us:
        return whole
    events = [
        {**event, "ts": event["ts"] + by_us} if event["tid"] == COMMUNICATING else event for event in whole.events
    ]
    return Excerpt(events, whole.begin_us - 2000, whole.end_us + 2000)


def recorded_gpu_traces_us(seconds: float) -> int:
    assert 1e6 * seconds == pytest.approx(round(1e6 * seconds), abs=0.01)
    return round(1e6 * seconds)


@pytest.mark.parametrize("by_us", [0, -1500, -600, -31, 47, 700, 1900])
@pytest.mark.parametrize("name", [LAYER_0, LAYER_1, LOSS])
def test_the_parts_are_those_that_its_microseconds_have(name: str, by_us: int) -> None:
    whole = moved(excerpt(name), by_us)
    busy, exchanging = whole.moments(COMPUTING), whole.moments(COMMUNICATING)
    found = whole.split()
    assert recorded_gpu_traces_us(found.span_s) == whole.end_us - whole.begin_us
    assert recorded_gpu_traces_us(found.compute_s) == len(busy)
    assert recorded_gpu_traces_us(found.exposed_s) == len(exchanging - busy)
    assert recorded_gpu_traces_us(found.idle_s) == whole.end_us - whole.begin_us - len(busy | exchanging)
    assert bool(exchanging & busy) is bool(by_us)  # as recorded nothing overlaps, moved it does


@pytest.mark.parametrize("by_us", [0, -600])
@pytest.mark.parametrize("name", [LAYER_0, LAYER_1, LOSS])
def test_collectives_are_what_runs_on_the_stream_of_nccl(name: str, by_us: int) -> None:
    """All of each run, whatever hides it."""
    whole = moved(excerpt(name), by_us)
    found = whole.split()
    assert [(one.name, recorded_gpu_traces_us(one.run_s)) for one in found.collectives] == [
        (event["name"], event["dur"]) for event in whole.on(COMMUNICATING)
    ]
    runs: Counter[str] = Counter()
    for event in whole.on(COMPUTING):
        runs[event["name"]] += event["dur"]
    assert {one.name: recorded_gpu_traces_us(one.run_s) for one in found.kernels} == runs
    assert sum(one.count for one in found.kernels) == len(whole.on(COMPUTING))


def test_the_last_rank_of_a_collective_does_not_wait_in_it() -> None:
    """The two ranks share a machine's clock, which shows who came last; the code compares no clocks."""
    ranks = [excerpt(LAYER_0), excerpt(LAYER_1)]
    pairs = list(zip(*(one.on(COMMUNICATING) for one in ranks), strict=True))
    by_clock_us = sum(max(one["ts"] for one in pair) - each["ts"] for pair in pairs for each in pair)
    assert by_clock_us == (405089 - 404036) + (407085 - 407082)
    found = split([one.split() for one in ranks], [])
    assert found is not None and found.waiting_s is not None
    # Their ends differ by 1 and 16 us.
    assert 1e6 * 2 * found.waiting_s == pytest.approx(by_clock_us, abs=17)
    # Six of eight ranks are not there: what both of these wait for one of them is taken for transfer.
    assert recorded_gpu_traces_us(found.transfer_s) == 587 + 6673


@pytest.mark.parametrize(
    "written",
    [str, lambda ts: f"{ts}.000", lambda ts: ts - 1706850000000000 + 0.25],
    ids=["text", "ns", "since a base"],
)
def test_times_of_other_versions_say_the_same(written: Any) -> None:
    whole = excerpt(LOSS)
    span = {"cat": "user_annotation", "name": TRACED, "ts": written(whole.begin_us), "dur": 24530}
    events = [{**event, "ts": written(event["ts"])} for event in whole.events]
    assert whole.end_us - whole.begin_us == 24530
    found = gpu_time(msgspec.json.encode({"traceEvents": [span, *events]}), steps=1)
    assert found is not None
    assert found.kernels == whole.split().kernels
    assert [recorded_gpu_traces_us(one.exposed_s) for one in found.collectives] == [13729, 24, 27]
    assert recorded_gpu_traces_us(found.idle_s) == recorded_gpu_traces_us(whole.split().idle_s)


@pytest.mark.parametrize("cat", ["gpu_user_annotation", "user_annotation", "cpu_op"])
def test_annotations_of_a_collective_are_no_communication(cat: str) -> None:
    """PyTorch's own, which Kineto puts around the kernel on the GPU, too."""
    whole = excerpt(LAYER_0)
    annotations = [{**event, "cat": cat, "name": "nccl:all_reduce"} for event in whole.on(COMMUNICATING)]
    assert whole.split(annotations) == whole.split()


@pytest.mark.parametrize(
    "name",
    [
        # NCCL, oldest first
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
        "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclWorkElem)",
        "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC",
        # RCCL: one kernel for all collectives; in older versions MSCCL's and MSCCL++'s beside it
        "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)",
        "mscclKernel_Sum_hip_bfloat16_Simple_false",
        "void allreduce7<float>(float*, float*, float*, mscclpp::DeviceHandle<mscclpp::SmChannel>*, unsigned long,"
        " unsigned long, int, int, int, unsigned long, unsigned int)",
    ],
)
def test_kernels_of_all_libraries_communicate(name: str) -> None:
    """Names in profiles and sources that others published; the last is what the signature in MSCCL++ makes."""
    assert Event(name=name, cat="kernel").communicates
