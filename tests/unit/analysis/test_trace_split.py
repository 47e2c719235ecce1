"""What a trace says of a GPU: by hand on traces in torch.profiler's words that no GPU recorded, and on a recorded
one of a CPU."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from scaling.analysis.measured.trace_split import gpu_time, union
from scaling.records.telemetry import Collective, GpuTime, Kernels
from tests.support.cuda_traces import ALL_REDUCE, COPY, GEMM, kernel, nccl, trace

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


def test_a_collective_that_computing_hides_is_not_exposed() -> None:
    found = of(kernel(GEMM, 0, 500), nccl(100, 300))
    assert [(us(one.run_s), us(one.exposed_s)) for one in found.collectives] == [(300, 0)]
    assert us(found.compute_s) == 500


def test_two_collectives_at_once_are_exposed_once() -> None:
    found = of(nccl(0, 100), nccl(50, 100, "ncclDevKernel_Broadcast_RING_LL"))
    assert [(us(one.run_s), us(one.exposed_s)) for one in found.collectives] == [(100, 100), (100, 50)]
    assert us(found.exposed_s) == 150


def test_a_collective_within_another_exposes_nothing() -> None:
    found = of(nccl(0, 100), nccl(20, 40), kernel(GEMM, 10, 80))
    assert [us(one.exposed_s) for one in found.collectives] == [20, 0]


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


def test_what_lies_outside_of_the_traced_steps_does_not_count() -> None:
    """The trace has a kernel before its span, one after it, and annotations on the GPU."""
    assert us(of(kernel(GEMM, 10, 20)).compute_s) == 20


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


def test_union() -> None:
    assert union([(5, 6), (1, 2), (1.5, 3), (3, 4)]) == [(1, 4), (5, 6)]


def test_it_is_kept_as_short_as_it_can_be() -> None:
    """A record holds one per rank: names of thousands of kernels once each."""
    found = of(*(kernel(GEMM, 10 * each, 5) for each in range(90)), nccl(950, 40))
    assert len(msgspec.json.encode(found)) < 500
    assert found.kernels == (Kernels(name=GEMM, count=90, run_s=found.kernels[0].run_s),)
    assert isinstance(found.collectives[0], Collective)
