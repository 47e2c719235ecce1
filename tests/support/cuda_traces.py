"""Traces of GPUs in the words of torch.profiler, made by hand: no GPU recorded them.

Fields are those that Kineto writes of a CUDA device (`ts` and `dur` in microseconds, `pid` the device, `tid` the
stream); recorded ones stand in tests/traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from scaling.records.telemetry import TRACED

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_cublas"
COPY = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<2>>"
# Where clocks stand in a trace: microseconds since a base of the trace's own.
BASE_US = 4477169876029.5


def kernel(
    name: str, begin_us: float, length_us: float, *, cat: str = "kernel", stream: int = 7
) -> dict[str, Any]:
    """One that runs from `begin_us` after the beginning of the traced steps."""
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": BASE_US + begin_us, "dur": length_us,
        "args": {
            "External id": 1630, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": 5321,
            "registers per thread": 32, "shared memory": 0, "blocks per SM": 4.0, "warps per SM": 16.0,
            "grid": [528, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 25,
        },
    }  # fmt: skip


def nccl(begin_us: float, length_us: float, name: str = ALL_REDUCE) -> dict[str, Any]:
    """A collective on its own stream."""
    return kernel(name, begin_us, length_us, stream=20)


def annotation(begin_us: float, length_us: float, cat: str = "user_annotation") -> dict[str, Any]:
    """What the worker writes around the traced steps; on a GPU it comes a second time, around its kernels."""
    return {
        "ph": "X", "cat": cat, "name": TRACED, "pid": 4711, "tid": 4711, "ts": BASE_US + begin_us,
        "dur": length_us, "args": {"External id": 1630, "Record function id": 0, "Ev Idx": 611},
    }  # fmt: skip


def trace(events: Iterable[dict[str, Any]], span_us: float = 1000.0) -> bytes:
    """A file with these events in traced steps of so long, and others around them."""
    before, after = kernel(GEMM, -50.0, 30.0), kernel(GEMM, span_us + 1, 9)
    around = [
        {"ph": "M", "name": "process_name", "ts": BASE_US, "pid": 0, "tid": 0, "args": {"name": "python"}},
        before,
        annotation(2.0, span_us - 4.0, "gpu_user_annotation"),
        annotation(0.0, span_us),
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711, "ts": BASE_US,
         "dur": 5.0, "args": {"correlation": 5321}},
    ]  # fmt: skip
    return msgspec.json.encode({"schemaVersion": 1, "traceEvents": [*around, *events, after]})
