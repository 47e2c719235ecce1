"""What is chosen for the devices at hand where nothing is given, and that what is given stays."""

from __future__ import annotations

from typing import Any

import pytest

from scaling.errors import UsageError
from scaling.plan import config, defaults, plan, validation
from scaling.plan.plan import Plan
from scaling.records.host import Gpu
from scaling.run import listing
from tests.support.inline import enrol, host

GB = 10**9
MODERN = (9, 0)
# As NVML tells them: an H100 of 80 GB, an A100 of 40, a V100 of 16, a T4 (nominally 16 GB), a card of 12.
MEMORY = {
    "h100": 85_520_809_984,
    "a100": 42_505_273_344,
    "v100": 16_945_512_448,
    "t4": 15_843_721_216,
    "12": 12 * GB,
}


def gpu(capability: tuple[int, int] | None = MODERN, memory_bytes: int = 80 * GB, index: int = 0) -> Gpu:
    return Gpu(
        index=index, name="GPU", uuid=f"GPU-{index}", memory_bytes=memory_bytes, compute_capability=capability
    )


def made(*gpus: Gpu, **fields: Any) -> Plan:
    ranks = [enrol(host(cores=16, memory_bytes=1 << 40, gpus=gpus))] * max(1, len(gpus))
    given = {"strategy": ["torch:nccl"], **fields} if gpus else fields
    wanted = config.build(given, source="test")
    validation.validate(wanted)
    return plan.make(wanted, ranks)


def chosen(found: Plan) -> tuple[str | None, str | None]:
    work = {(point.workload.precision, point.workload.memory_format) for point in found.cells}
    assert work == {(found.config.precision, found.config.memory_format)}  # baselines and rows alike
    return found.config.precision, found.config.memory_format


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((12, 0), ("bf16", "channels_last")),
        ((9, 0), ("bf16", "channels_last")),
        ((8, 0), ("bf16", "channels_last")),
        ((7, 5), ("fp16", "channels_last")),
        ((7, 0), ("fp16", "channels_last")),
        ((6, 0), ("fp32", "contiguous")),
        (None, ("fp32", "contiguous")),
    ],
)
def test_precision_goes_by_compute_capability(
    capability: tuple[int, int] | None, expected: tuple[str, str]
) -> None:
    found = made(gpu(capability))
    assert chosen(found) == expected
    version = "unknown" if capability is None else f"{capability[0]}.{capability[1]}"
    assert f"; {expected[0]}, {expected[1]}: compute capability {version}; " in found.why


def test_a_model_of_tokens_has_no_memory_format_of_images() -> None:
    found = made(gpu((9, 0)), model="gpt2-tiny")
    assert chosen(found) == ("bf16", "contiguous")


def test_the_oldest_gpu_of_all_decides() -> None:
    assert chosen(made(gpu(), gpu((7, 0), index=1))) == ("fp16", "channels_last")
    assert chosen(made(gpu(), gpu(None, index=1))) == ("fp32", "contiguous")


@pytest.mark.parametrize(
    ("strategies", "expected", "reason"),
    [
        (["torch:nccl", "tensorflow:nccl"], ("bf16", "channels_last"), ""),
        (["torch:nccl", "mxnet:nccl"], ("fp16", "contiguous"), "mxnet computes in fp32 (fp16 with CUDA)"),
        (["torch:ps-sync", "torch:nccl"], ("bf16", "channels_last"), ""),
        (["torch:ps-sync", "mxnet:nccl"], ("fp32", "contiguous"), "parameter servers take fp32, tf32 or bf16"),
    ],
)
def test_all_strategies_do_the_same_work(strategies: list[str], expected: tuple[str, str], reason: str) -> None:
    """What one of them refuses is chosen for none, and the header says who."""
    found = made(gpu(), strategy=strategies)
    assert chosen(found) == expected
    assert reason in found.why


def test_before_ampere_parameter_servers_get_fp32() -> None:
    assert chosen(made(gpu((7, 0)), strategy=["torch:ps-sync"])) == ("fp32", "contiguous")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"precision": "fp32"}, ("fp32", "contiguous")),
        ({"precision": "tf32"}, ("tf32", "contiguous")),
        ({"precision": "fp16"}, ("fp16", "channels_last")),
        ({"memory_format": "contiguous"}, ("bf16", "contiguous")),
        ({"precision": "fp32", "memory_format": "channels_last"}, ("fp32", "channels_last")),
    ],
)
def test_what_is_given_stays(given: dict[str, Any], expected: tuple[str, str]) -> None:
    assert chosen(made(gpu(), **given)) == expected


def test_what_is_given_and_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="--strategy mxnet:nccl: --precision bf16: mxnet computes in fp32"):
        made(gpu(), strategy=["mxnet:nccl"], precision="bf16")


def test_cpus_and_emulated_devices_keep_theirs() -> None:
    for fields in (
        {"device": "cpu", "strategy": ["fake:a"]},
        {"device": "emulated:p100", "strategy": ["torch:gloo"]},
    ):
        found = made(gpu(), **fields)
        assert chosen(found) == ("fp32", "contiguous")
        assert "capability" not in found.why and "memory" not in found.why


# ---------------------------------------------------------------- the batch


@pytest.mark.parametrize(("name", "batch"), [("h100", 256), ("a100", 256), ("v100", 128), ("t4", 128), ("12", 64)])
def test_the_batch_of_resnet50_goes_by_memory(name: str, batch: int) -> None:
    found = made(gpu(memory_bytes=MEMORY[name]))
    assert (found.config.model, found.config.batch_size) == ("resnet50", batch)
    assert found.why.endswith(f"; batch {batch}: {MEMORY[name] / GB:.0f} GB of memory")


def test_the_list_tells_of_all_of_them() -> None:
    told = listing.everything({}, [])
    assert " batch 256, 128 or 64 by memory on cuda, 4 on cpu; sgd 0.01 at batch 64; counts images;" in told
    assert "alexnet-towers       60,522,856  3x224x224, 1,000 classes; 3.69 GFLOP; convnet-benchmarks" in told


def test_the_smallest_memory_of_all_decides() -> None:
    assert made(gpu(), gpu(memory_bytes=12 * GB, index=1)).config.batch_size == 64


def test_a_gpu_whose_memory_nobody_tells_gets_the_batch_of_any() -> None:
    """Integrated ones share the host's."""
    found = made(gpu(memory_bytes=0))
    assert found.config.batch_size == 64
    assert found.why.endswith("; batch 64: memory unknown")


@pytest.mark.parametrize(
    ("given", "batch"),
    [
        ({"batch_size": 32}, 32),
        ({"global_batch_size": 96}, None),
        ({"model": "vgg16"}, 64),
        ({"model": "alexnet"}, 256),
    ],
)
def test_a_batch_that_is_given_or_the_model_s_stays(given: dict[str, Any], batch: int | None) -> None:
    found = made(gpu(), **given)
    assert found.config.batch_size == batch
    assert "GB of memory" not in found.why


def test_a_run_that_goes_on_has_what_it_began_with() -> None:
    """Its header holds what was chosen, which a resumed run gives itself."""
    first = made(gpu()).config
    again = made(gpu((6, 0), 8 * GB), precision=first.precision, memory_format=first.memory_format,
                 batch_size=first.batch_size)  # fmt: skip
    assert (chosen(again), again.config.batch_size) == (("bf16", "channels_last"), 256)


# ---------------------------------------------------------------- clocks


@pytest.mark.parametrize(
    ("gpus", "fields", "startup_s"),
    [
        ((), {"device": "cpu", "strategy": ["fake:a"]}, 300),
        ((gpu(),), {}, 600),
        ((gpu(),), {"compile": True}, 1200),
        ((gpu(),), {"strategy": ["tensorflow:nccl"]}, 600),
        ((gpu((12, 0)),), {"strategy": ["tensorflow:nccl"]}, 2700),
        ((gpu((12, 0)),), {}, 600),
        ((gpu((12, 0)),), {"strategy": ["tensorflow:nccl"], "startup_timeout_s": 50}, 50),
    ],
)
def test_the_start_has_time_to_compile(gpus: tuple[Gpu, ...], fields: dict[str, Any], startup_s: float) -> None:
    found = made(*gpus, **fields).config
    assert found.startup_timeout_s == startup_s
    assert found.point_timeout_s == 1800 + max(0, startup_s - 300)
    assert made(*gpus, **fields, point_timeout_s=7).config.point_timeout_s == 7


@pytest.mark.parametrize("window_s", [0.05, 0.3, 1.0, 2.5])
def test_the_estimate_has_the_seconds_that_a_gpu_warms_up(window_s: float) -> None:
    found = made(gpu(), window_s=window_s, windows=3, rounds=1, kinds=["exchange"])
    startup_s = defaults.startup_guess_s(found.cells[0])
    assert found.estimate_s == pytest.approx(startup_s + 10 + 2 * window_s + 3 * window_s)


def test_on_gpus_points_take_longer_to_start_and_windows_a_second() -> None:
    on_gpu, on_cpu = made(gpu()), made(device="cpu", strategy=["torch:gloo"], interleave=False)
    assert on_gpu.config.window_s == 1.0
    found = [defaults.startup_guess_s(one.cells[0]) for one in (on_gpu, made(gpu(), compile=True), on_cpu)]
    assert found[2] < found[0] < found[1]
    assert on_gpu.estimate_s > on_cpu.estimate_s


def test_the_estimate_of_points_that_take_turns_on_gpus_has_their_fresh_start() -> None:
    found = made(gpu(), interleave=True, rounds=3, soak_s=0.0)
    assert found.estimate_s > 3 * defaults.startup_guess_s(found.cells[0])


def test_a_dry_run_names_each_host_once() -> None:
    told = enrol(host("n1", gpus=(gpu(),)))
    lines = listing.dry_run(plan.make(config.build({"strategy": ["torch:nccl"]}, source="test"), [told]), [told])
    assert [line.split(",")[0] for line in lines.splitlines() if line.startswith("  n1")] == ["  n1: Test"]


# ---------------------------------------------------------------- torch.compile


def test_compile_needs_a_compiler_on_every_host() -> None:
    hosts = [enrol(host(compile_lacks=lacks)) for lacks in ("", "C compiler and Python.h")]
    wanted = {"device": "cpu", "compile": True, "strategy": ["torch:gloo"]}
    with pytest.raises(UsageError, match=r"^--compile: node1 has no C compiler and Python\.h, .* leave it out$"):
        plan.make(config.build(wanted, source="test"), hosts)
    for fields in ({"strategy": ["fake:a"]}, {"compile": False}):
        plan.make(config.build({**wanted, **fields}, source="test"), hosts)
