"""Horovod: its rendezvous as a real process, and what training with options comes to."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent.child import Child
from scaling.agent.environment import child_environ
from scaling.frameworks.horovod import strategy as hvd
from scaling.plan import tasks
from scaling.records.events import Announce
from tests.support import ranks
from tests.support.ranks import one_task
from tests.support.waiting import eventually

rendezvous = pytest.importorskip("scaling.frameworks.horovod.rendezvous", exc_type=ImportError)

STRATEGIES = {name: frameworks.load(name) for name in frameworks.NAMES if name.endswith(":horovod")}


every_binding = pytest.mark.parametrize("name", STRATEGIES)


def need(name: str) -> None:
    """Skip the test where the binding is not installed."""
    if reason := STRATEGIES[name].missing(name):
        pytest.skip(reason)


@every_binding
def test_horovod_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name)
    monkeypatch.setattr(hvd, "find_spec", lambda _: None)
    assert STRATEGIES[name].missing(name) == "horovod is not installed: ./launch/install horovod"


# ---------------------------------------------------------------- the rendezvous


@every_binding
def test_the_rendezvous_listens_at_its_address_and_ends_on_term(name: str, tmp_path: Path) -> None:
    """It answers before it announces itself, at that address alone, and has imported no framework."""
    need(name)
    of = [replace(task, log=f"{tmp_path}/{task.rank}.log") for task in ranks.tasks(name, "exchange", 2)]
    (port,) = of[0].ports
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        task = tasks.helper_task(of, STRATEGIES[name].helpers(of[0])[0])
        child = Child(task, child_environ(os.environ, task, STRATEGIES[name].environ(task, {})))
        try:
            said = eventually(lambda: [one for one in child.events() if isinstance(one, Announce)])
            assert said == [Announce(values={"RENDEZVOUS": f"127.0.0.1:{port}"})]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            with socket.socket() as elsewhere:
                assert elsewhere.connect_ex(("127.0.0.2", port)) != 0
            mapped = Path(f"/proc/{child.pid}/maps").read_text()
            assert not [word for word in ("/torch/", "/tensorflow/", "/mxnet/", "libmpi") if word in mapped]
        finally:
            os.kill(child.pid, signal.SIGTERM)
            assert eventually(child.ended)
            seen = child.reap()
    assert seen.code == -signal.SIGTERM
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_taken_port_is_recognised(tmp_path: Path) -> None:
    need("torch:horovod")
    task = replace(one_task("torch:horovod", "exchange"), role="rendezvous", log=f"{tmp_path}/0.log")
    with socket.socket() as other:
        other.bind(("127.0.0.1", task.ports[0]))
        other.listen()
        with pytest.raises(OSError, match="Address already in use"):
            rendezvous.serve(task, lambda _: None)


# ---------------------------------------------------------------- training


@every_binding
def test_all_begin_with_the_weights_of_rank_0(name: str) -> None:
    """Though each has drawn its own."""
    need(name)
    of = ranks.tasks(name, "exchange", 2)
    first, second = ranks.run([replace(task, seed=task.seed + task.rank) for task in of])
    (alone,) = ranks.run(ranks.tasks(STRATEGIES[name].baseline, "solo", 1))
    for key, start in alone.before.items():
        np.testing.assert_array_equal(first.before[key], start)
        np.testing.assert_array_equal(second.before[key], start)


@pytest.mark.parametrize(
    ("name", "fields", "tolerance"),
    [
        ("torch:horovod", {"options": {"accumulate": "2"}}, 1e-3),
        ("torch:horovod", {"memory_format": "channels_last", "options": {"compression": "fp16"}}, 1e-2),
        ("tensorflow:horovod", {"options": {"accumulate": "2", "compression": "fp16"}}, 1e-2),
        ("mxnet:horovod", {"options": {"accumulate": "2", "compression": "fp16"}}, 1e-2),
    ],
)
def test_options_do_not_change_the_update(name: str, fields: dict[str, Any], tolerance: float) -> None:
    """Half precision on the way costs half precision, and nothing else."""
    need(name)
    first, second = ranks.run(ranks.tasks(name, "exchange", 2, **fields), 2)
    (plain,) = ranks.run(ranks.tasks(STRATEGIES[name].baseline, "solo", 1), joined=2)
    assert first.digest == second.digest
    assert first.versions["horovod"]
    for key, start in plain.before.items():
        error = np.linalg.norm(first.after[key] - plain.after[key])
        assert error < tolerance * np.linalg.norm(plain.after[key] - start), key
