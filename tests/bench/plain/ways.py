"""Which processes a plain script has, and the environment variables that its framework is launched by."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from tests.support.ranks import free_ports

HOST = "127.0.0.1"


class Way(NamedTuple):
    """A script, its MODE, and whose environment variables launch it. `single`: one process drives the devices
    of all ranks; `asynchronous`: ranks do not wait for each other."""

    script: str
    family: str
    mode: str = ""
    single: bool = False
    asynchronous: bool = False


WAYS: dict[str, Way] = {
    "torch:gloo": Way("torch_ddp", "torch"),
    "torch:fsdp2": Way("torch_fsdp", "torch"),
    "torch:horovod": Way("torch_horovod", "horovod"),
    "torch:ps-sync": Way("torch_ps", "rpc", "sync"),
    "torch:ps-async": Way("torch_ps", "rpc", "async", asynchronous=True),
    "tensorflow:ring": Way("tf_ring", "workers"),
    "tensorflow:ps": Way("tf_ps", "coordinator", single=True, asynchronous=True),
    "tensorflow:horovod": Way("tf_horovod", "horovod"),
    "jax:psum": Way("jax_psum", "jax"),
    "jax:fsdp": Way("jax_fsdp", "jax"),
    "mxnet:local": Way("mxnet_devices", "alone", "local", single=True),
    "mxnet:device": Way("mxnet_devices", "alone", "device", single=True),
    "mxnet:dist_sync": Way("mxnet_kvstore", "dmlc", "dist_sync"),
    "mxnet:dist_device_sync": Way("mxnet_kvstore", "dmlc", "dist_device_sync"),
    "mxnet:dist_async": Way("mxnet_kvstore", "dmlc", "dist_async", asynchronous=True),
    "mxnet:horovod": Way("mxnet_horovod", "horovod"),
}


class Process(NamedTuple):
    """One process of a script, pinned to `cpus` (() for none). Only one that `measures` prints a result; one
    that `serves` never ends by itself."""

    name: str
    rank: int
    environ: Mapping[str, str]
    cpus: tuple[int, ...] = ()
    measures: bool = True
    serves: bool = False


@contextmanager
def processes(way: Way, ranks: int) -> Iterator[list[Process]]:
    """In the order in which to start them. Their addresses are good while the context lasts."""
    cpus = sorted(os.sched_getaffinity(0))
    workers = [Process(f"worker {rank}", rank, {}, (cpus[rank % len(cpus)],)) for rank in range(ranks)]
    match way.family:
        case "horovod":
            with _rendezvous(ranks) as port:
                yield [each._replace(environ=_horovod(each.rank, ranks, port)) for each in workers]
        case "alone":
            yield [workers[0]._replace(cpus=tuple(cpu for each in workers for cpu in each.cpus))]
        case family:
            yield LAUNCHERS[family](workers)


def _torch(workers: Sequence[Process]) -> list[Process]:
    (port,) = free_ports(1)
    meet = {"MASTER_ADDR": HOST, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(workers))}
    meet |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    return [each._replace(environ={**meet, "RANK": str(each.rank)}) for each in workers]


def _rpc(workers: Sequence[Process]) -> list[Process]:
    """The same; the server is the rank after the last."""
    made = _torch(workers)
    return [Process("server", len(made), made[0].environ, measures=False), *made]


def _dmlc(workers: Sequence[Process]) -> list[Process]:
    """What MXNet's tools/launch.py sets: a scheduler, one server, the workers."""
    (port,) = free_ports(1)
    meet = {
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": HOST,
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(len(workers)),
    }
    roles = ("scheduler", "server")
    return [
        *(Process(role, 0, {**meet, "DMLC_ROLE": role}, measures=False) for role in roles),
        *(each._replace(environ={**meet, "DMLC_ROLE": "worker"}) for each in workers),
    ]


def _workers(workers: Sequence[Process]) -> list[Process]:
    cluster = {"worker": [f"{HOST}:{port}" for port in free_ports(len(workers))]}
    return [each._replace(environ=_tf_config(cluster, "worker", each.rank)) for each in workers]


def _coordinator(workers: Sequence[Process]) -> list[Process]:
    """TF_CONFIG of a coordinator, which measures, one parameter server and the workers."""
    chief, server, *others = (f"{HOST}:{port}" for port in free_ports(len(workers) + 2))
    cluster = {"chief": [chief], "ps": [server], "worker": others}
    serving = [
        each._replace(environ=_tf_config(cluster, "worker", each.rank), measures=False, serves=True)
        for each in workers
    ]
    return [
        Process("server", 0, _tf_config(cluster, "ps", 0), measures=False, serves=True),
        *serving,
        Process("coordinator", 0, _tf_config(cluster, "chief", 0)),
    ]


def _jax(workers: Sequence[Process]) -> list[Process]:
    """One thread each, as the project's workers, and where ranks meet."""
    meet = {"COORDINATOR": f"{HOST}:{free_ports(1)[0]}", "NPROC": "1"}
    return [each._replace(environ=meet) for each in workers]


LAUNCHERS = {
    "torch": _torch,
    "jax": _jax,
    "rpc": _rpc,
    "dmlc": _dmlc,
    "workers": _workers,
    "coordinator": _coordinator,
}


def _tf_config(cluster: Mapping[str, Sequence[str]], kind: str, index: int) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def _horovod(rank: int, ranks: int, port: int) -> dict[str, str]:
    place = {
        "RANK": rank,
        "SIZE": ranks,
        "LOCAL_RANK": rank,
        "LOCAL_SIZE": ranks,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
    }
    return {
        **{f"HOROVOD_{key}": str(value) for key, value in place.items()},
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": HOST,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": "lo",
    }


@contextmanager
def _rendezvous(ranks: int) -> Iterator[int]:
    """Horovod's store, as `horovodrun` has it: its port."""
    hosts: Any = import_module("horovod.runner.common.util.hosts")
    http: Any = import_module("horovod.runner.http.http_server")
    server = http.RendezvousServer(0)
    port = server.start()
    try:
        server.init(hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{ranks}"), ranks))
        yield port
    finally:
        server.stop()
