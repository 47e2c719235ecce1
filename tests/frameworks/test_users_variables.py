"""Ranks find each other and train, whatever the user's environment says of proxies, ps-lite and debugging."""

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
    ],
    ids=["proxies", "grpc_proxy", "ps-lite", "debug"],
)
def test_ranks_train(name: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := frameworks.load(name).missing(name):
        pytest.skip(reason)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    first, second = ranks.run(ranks.tasks(name, "exchange", 2))
    assert first.digest == second.digest is not None
