"""What is said of traces that GPUs recorded, against a count of their microseconds one by one.

tests/traces/README.md says whose they are. Times in them are whole microseconds, and NCCL has a stream of its own:
which kernels communicate is known here by their stream, in the code under test by their names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.analysis.measured.trace_split import Event, gpu_time
from scaling.analysis.measured.traces import split
from scaling.records.telemetry import TRACED, GpuTime

RECORDED = Path(__file__).parents[2] / "traces"
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


def us(seconds: float) -> int:
    assert 1e6 * seconds == pytest.approx(round(1e6 * seconds), abs=0.01)
    return round(1e6 * seconds)


@pytest.mark.parametrize("by_us", [0, -1500, -600, -31, 47, 700, 1900])
@pytest.mark.parametrize("name", [LAYER_0, LAYER_1, LOSS])
def test_the_parts_are_those_that_its_microseconds_have(name: str, by_us: int) -> None:
    whole = moved(excerpt(name), by_us)
    busy, exchanging = whole.moments(COMPUTING), whole.moments(COMMUNICATING)
    found = whole.split()
    assert us(found.span_s) == whole.end_us - whole.begin_us
    assert us(found.compute_s) == len(busy)
    assert us(found.exposed_s) == len(exchanging - busy)
    assert us(found.idle_s) == whole.end_us - whole.begin_us - len(busy | exchanging)
    assert bool(exchanging & busy) is bool(by_us)  # as recorded nothing overlaps, moved it does


@pytest.mark.parametrize("by_us", [0, -600])
@pytest.mark.parametrize("name", [LAYER_0, LAYER_1, LOSS])
def test_collectives_are_what_runs_on_the_stream_of_nccl(name: str, by_us: int) -> None:
    """All of each run, whatever hides it."""
    whole = moved(excerpt(name), by_us)
    found = whole.split()
    assert [(one.name, us(one.run_s)) for one in found.collectives] == [
        (event["name"], event["dur"]) for event in whole.on(COMMUNICATING)
    ]
    runs: Counter[str] = Counter()
    for event in whole.on(COMPUTING):
        runs[event["name"]] += event["dur"]
    assert {one.name: us(one.run_s) for one in found.kernels} == runs
    assert sum(one.count for one in found.kernels) == len(whole.on(COMPUTING))


def test_copies_and_fills_are_among_what_computes() -> None:
    found = {one.name: (one.count, us(one.run_s)) for one in excerpt(LOSS).split().kernels}
    assert found["Memcpy DtoD (Device -> Device)"] == (2, 4)
    assert found["Memset (Device)"] == (1, 2)


def test_who_comes_last_to_a_collective_does_not_wait_in_it() -> None:
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
    assert us(found.transfer_s) == 587 + 6673


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
    assert [us(one.exposed_s) for one in found.collectives] == [13729, 24, 27]
    assert us(found.idle_s) == us(whole.split().idle_s)


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
