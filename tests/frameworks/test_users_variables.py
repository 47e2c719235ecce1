"""Ranks find each other and train, whatever the user's environment says of proxies, ps-lite, debugging and JAX."""

from __future__ import annotations

import pytest

from scaling import frameworks
from tests.support import ranks

NOBODY = "http://127.0.0.1:9"  # the port of `discard`


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("tensorflow:ring", {"http_proxy": NOBODY, "https_proxy": NOBODY}),
        ("tensorflow:ring", {"grpc_proxy": NOBODY, "no_proxy": "example.org"}),
        ("mxnet:dist_sync", {"DMLC_LOCAL": "1", "DMLC_PS_VAN_TYPE": "ibverbs", "PORT": "tcp://10.0.0.1:80"}),
        ("torch:gloo", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
        ("jax:psum", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}),
        ("jax:psum", {"JAX_NUM_CPU_DEVICES": "8", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"}),
        (
            "jax:psum",
            {"JAX_DISABLE_JIT": "1", "JAX_TRANSFER_GUARD": "disallow", "JAX_NUMPY_RANK_PROMOTION": "raise"},
        ),
    ],
    ids=["proxies", "grpc_proxy", "ps-lite", "debug", "devices of XLA", "devices of JAX", "guards of JAX"],
)
def test_ranks_train(name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    first, second = ranks.run(ranks.tasks(name, "exchange", 2))
    assert first.digest == second.digest is not None


def test_a_transport_that_torch_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands: the user may want encryption."""
    pytest.importorskip("torch")
    monkeypatch.setenv("GLOO_DEVICE_TRANSPORT", "NONE_SUCH")
    with pytest.raises(AssertionError, match="this torch has no GLOO_DEVICE_TRANSPORT=NONE_SUCH; unset it"):
        ranks.run(ranks.tasks("torch:gloo", "exchange", 2))
