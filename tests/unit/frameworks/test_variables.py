"""Which environment variables runs record, and which children get."""

from __future__ import annotations

import pytest

from scaling.frameworks import variables

PLACING = ("OMP_THREAD_LIMIT", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME")
DEBUG = "TORCH_DISTRIBUTED_DEBUG"
ADDRESSING = ("DMLC_LOCAL", "DMLC_PS_VAN_TYPE", "DMLC_ROLE", "PORT")


@pytest.mark.parametrize("name", [*PLACING, *ADDRESSING])
def test_what_breaks_workers_is_dropped_and_said(name: str) -> None:
    environ = {name: "1", "HOME": "/h", "OMP_WAIT_POLICY": "active"}
    assert variables.for_children(environ) == {"HOME": "/h", "OMP_WAIT_POLICY": "active"}
    (said,) = variables.changed(environ)
    assert said.startswith(f"{name}=1 (dropped: ")
    assert variables.recorded(environ) == {"OMP_WAIT_POLICY": "active"}


@pytest.mark.parametrize("name", ["OMP_SCHEDULE", "PORTS", "MY_PORT", "XDMLC_ROLE"])
def test_other_variables_stay(name: str) -> None:
    assert variables.for_children({name: "1"}) == {name: "1"}
    assert variables.changed({name: "1"}) == ()


def test_a_debug_level_that_ends_torch_is_lowered_and_said() -> None:
    for level in ("DETAIL", "detail"):
        environ = {DEBUG: level}
        assert variables.for_children(environ) == variables.recorded(environ) == {DEBUG: "INFO"}
        assert variables.changed(environ)[0].startswith(f"{DEBUG}={level} (INFO for workers")
    for level in ("INFO", "OFF"):
        assert variables.for_children({DEBUG: level}) == {DEBUG: level}
        assert variables.changed({DEBUG: level}) == ()


@pytest.mark.parametrize(
    "name",
    [
        "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_VERBOSE", "TF_ENABLE_ONEDNN_OPTS", "HOROVOD_AUTOTUNE",
        "TORCH_NCCL_BLOCKING_WAIT", "NVIDIA_TF32_OVERRIDE", "CUDA_LAUNCH_BLOCKING", "NCCL_ALGO", "XLA_FLAGS",
        "LD_PRELOAD", "MALLOC_ARENA_MAX", "MXNET_ENGINE_TYPE", "GLOO_X", "UCX_TLS", "PYTORCH_CUDA_ALLOC_CONF",
        "KERAS_BACKEND", "MKL_CBWR",
    ],
)  # fmt: skip
def test_what_changes_rates_is_recorded(name: str) -> None:
    assert variables.recorded({name: "1", "PATH": "/bin"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        "KERAS_API_KEY", "TF_TOKEN", "TF_VAR_x", "NCCL_my_password", "HOROVOD_SECRET_KEY",
        "NCCL_PASSWORD", "UCX_AUTH", "MXNET_CREDENTIALS",
        "CUDA_HOME", "NCCL_VERSION", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TF_CONFIG",
    ],
)  # fmt: skip
def test_secrets_and_places_are_not_recorded(name: str) -> None:
    assert variables.recorded({name: "x"}) == {}


def test_a_dropped_secret_is_not_said() -> None:
    assert variables.changed({"DMLC_TOKEN": "x"}) == ()


def test_values_are_bounded_and_hide_passwords() -> None:
    found = variables.recorded({"XLA_FLAGS": "x" * 1000, "TF_PROXY": "http://me:hunter2@host/x"})
    assert len(found["XLA_FLAGS"]) == variables.MOST_CHARACTERS + len("...")
    assert found["TF_PROXY"] == "http://***@host/x"
