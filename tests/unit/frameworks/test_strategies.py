"""All strategies on the agent's side: a golden file of their facts, missing packages, options, refused points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.errors import UsageError
from scaling.frameworks.base import read_options
from scaling.plan.tasks import helper_task
from scaling.records.network import Place
from scaling.records.point import Device, Kind
from scaling.records.task import Clocks, Server, Task
from scaling.workloads import models
from tests.support import paper_tasks
from tests.support.golden import check_golden
from tests.support.points import changed, placed

EVERY = (*frameworks.NAMES, *frameworks.BASELINES)
LOOPS = {
    "torch": "pytorch.installed", "tensorflow": "tf.strategies", "mxnet": "mx.strategies", "jax": "jax.strategies",
}  # fmt: skip
every_strategy = pytest.mark.parametrize("name", EVERY)

# ---------------------------------------------------------------- facts


def tasks_on_two_hosts(name: str, kind: Kind, device: Device, hca: str = "") -> list[Task]:
    """Return the tasks of four ranks, two on each host, with a parameter server on each."""
    addresses = ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2")
    servers = tuple(
        Server(
            launch_rank=2 * at, host=f"node{at + 1}", place=Place(address=address, interface="ib0"), port=6001 + at
        )
        for at, address in enumerate(addresses[::2])
    )
    return [
        replace(
            placed(changed_device(one, device), addresses, "ib0", hca),
            hosts=("node1", "node1", "node2", "node2"), local_rank=one.rank % 2, local_world_size=2, threads=3,
            servers=servers if one.servers else (),
            clocks=Clocks(startup_s=300.0, stall_s=120.0, deadline_s=1800.0),
        )
        for one in paper_tasks.tasks(name, kind, 4, ports=count(5000))
    ]  # fmt: skip


def changed_device(task: Task, device: Device) -> Task:
    return replace(task, point=changed(task.point, device=device))


def differing(values: Any, defaults: Any = None) -> str:
    usual = msgspec.to_builtins(defaults) if defaults is not None else {}
    told = msgspec.to_builtins(values).items()
    return " ".join(
        f"{key}={value}" for key, value in told if value != usual.get(key) and not key.startswith("NCCL_DEBUG")
    )


def facts(name: str) -> Iterator[str]:
    strategy = frameworks.load(name)
    yield f"{name}, against {strategy.baseline}, on {', '.join(strategy.devices(name))}"
    yield f"  traits   {differing(strategy.traits(name), type(strategy.traits(name))())}"
    yield f"  options  {differing(read_options(strategy.options, {}))}"
    if strategy.native_formats:
        yield f"  reads    {', '.join(strategy.native_formats)}"
    if name in frameworks.BASELINES:
        (one,) = paper_tasks.tasks(name, "solo", 1, ports=())
        yield f"  environ  {differing(strategy.environ(one, {}))}"
        return
    ranks = tasks_on_two_hosts(name, "exchange", "cpu")
    yield f"  bytes    {strategy.bytes_per_step(ranks[0], 1000)}"
    yield f"           {strategy.bytes_per_step(tasks_on_two_hosts(name, 'exchange', 'cuda')[0], 1000)} on GPUs"
    cpu = strategy.environ(ranks[2], {})
    yield f"  rank 2   {differing(cpu)}"
    assert strategy.environ(tasks_on_two_hosts(name, "comm", "cpu")[2], {}) == cpu
    for hca in ("", "mlx5_0", "any"):
        cuda = strategy.environ(tasks_on_two_hosts(name, "exchange", "cuda", hca)[2], {})
        yield f"           on GPUs, card {hca or 'none'}: {differing(cuda, cpu)}"
    for helper in strategy.helpers(ranks[0]):
        yield f"  helper   {differing(helper)}"
        yield f"           {differing(strategy.environ(helper_task(ranks, helper), {}))}"


def test_facts_of_all_strategies() -> None:
    check_golden("strategies.txt", "\n".join(line.rstrip() for name in EVERY for line in facts(name)) + "\n")


@every_strategy
def test_a_mode_is_the_strategy_that_lists_it(name: str) -> None:
    assert name in frameworks.load(name).names
    plain = frameworks.load(frameworks.load(name).baseline)
    assert frameworks.load(name).options.keys() >= {"accumulate"} & plain.options.keys()


@pytest.mark.parametrize("kind", ["solo", "together"])
@every_strategy
def test_the_plain_loop_has_no_variables_of_an_exchange(name: str, kind: Kind) -> None:
    one = replace(paper_tasks.one_task(ports=()), point=tasks_on_two_hosts(name, kind, "cpu")[0].point)
    if not frameworks.load(name).traits(name).servers:
        keys = frameworks.load(name).environ(one, {})
        assert not [key for key in keys if key.startswith(("HOROVOD", "NCCL", "GLOO", "MASTER"))]


@pytest.mark.parametrize("spec", [None, ModuleSpec("a-folder", None)])
@every_strategy
def test_without_the_framework(name: str, spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    framework = name.partition(":")[0]
    monkeypatch.setattr(f"scaling.frameworks.{LOOPS[framework]}.find_spec", lambda _: spec)
    wanted = f"{framework} is not installed: ./launch/install {framework}"
    assert frameworks.load(name).missing(name, "cpu") == wanted


@pytest.mark.parametrize("name", [name for name in EVERY if name.startswith("tensorflow:")])
def test_keras_has_every_network(name: str) -> None:
    for model in models.CATALOGUE:
        assert frameworks.load(name).refuse(paper_tasks.one_task(name, model=model).point) is None


# ---------------------------------------------------------------- options

OPTIONS: tuple[tuple[str, str, str], ...] = (
    *(("torch:plain", f"accumulate={text}", "integer from 1 to 1099511627776")
      for text in ("0", "-1", "1.5", "few", "1" + 20 * "0")),
    *(("torch:gloo", f"bucket_cap_mb={text}", "number from 0.000001 to 1000000")
      for text in ("big", "0", "nan", "1e300", "1e-300")),
    *(("torch:ps-sync", f"bucket_cap_mb={text}", "number from 0.000001 to") for text in ("0", "-1", "inf", "nan")),
    ("torch:ps-sync", "compression=bf16", "none or fp16"),
    *(("torch:fsdp2", f"hsdp={text}", "integer from 0 to 1099511627776") for text in ("-1", "2.5", "node")),
    *(("torch:horovod", f"fusion_threshold_mb={text}", "") for text in ("-1", "inf", "nan")),
    ("torch:horovod", "cycle_time_ms=soon", ""), ("torch:horovod", "cache_capacity=-1", ""),
    ("torch:horovod", "cache_capacity=1.5", ""), ("torch:horovod", "compression=bf16", ""),
    ("tensorflow:ring", "bytes_per_pack=-1", ""), ("tensorflow:ring", "bytes_per_pack=x", ""),
    ("tensorflow:ps", "partition_min_bytes=-1", ""),
    ("mxnet:dist_sync", "bigarray_bound=0", "integer from 1 to"),
    ("mxnet:dist_sync", "compression=1bit", "none or 2bit"),
    ("mxnet:dist_sync", "compression_threshold=0", "number from 0.000001 to"),
    ("mxnet:dist_sync", "update_on_kvstore=maybe", "true or false"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "option", "wanted"), OPTIONS)
def test_a_wrong_value_is_refused(name: str, option: str, wanted: str) -> None:
    key, _, text = option.partition("=")
    with pytest.raises(UsageError, match=f"^--option {option}: expected {wanted}"):
        read_options(frameworks.load(name).options, {key: text})


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        ("torch:gloo", {"bucket_cap_mb": "0.5", "static_graph": "true"},
         {"bucket_cap_mb": 0.5, "static_graph": True}),
        ("tensorflow:ring", {"bytes_per_pack": "1000000", "accumulate": "2"},
         {"bytes_per_pack": 1_000_000, "accumulate": 2}),
        ("tensorflow:ps", {"partition_min_bytes": "65536"}, {"partition_min_bytes": 65_536}),
    ],
)  # fmt: skip
def test_options_are_read_from_words(name: str, given: Mapping[str, str], read: dict[str, Any]) -> None:
    options = frameworks.load(name).options
    assert read_options(options, given) == read_options(options, {}) | read


@pytest.mark.parametrize(("text", "bound"), [("77", "77"), ("99999999999", str(2**31 - 1))])
def test_the_bound_for_big_arrays_reaches_all_roles_as_an_int_of_mxnet(text: str, bound: str) -> None:
    """Of more than an int MXNet said "Invalid Parameter format", and every cell failed."""
    one = tasks_on_two_hosts("mxnet:dist_sync", "exchange", "cpu")[0]
    for role in ("worker", "scheduler", "server-1"):
        task = replace(one, role=role, point=replace(one.point, options={"bigarray_bound": text}))
        asked = frameworks.load("mxnet:dist_sync").environ(task, {})
        assert asked["MXNET_KVSTORE_BIGARRAY_BOUND"] == bound


# ---------------------------------------------------------------- refused points

EMULATED: dict[str, Any] = {"device": "emulated", "profile": "p100", "model": "resnet50", "batch_size": 32}
HALF = {"options": {"compress": "bf16"}}
BF16 = {"options": {"param_dtype": "bf16"}}
STATIC = {"static_graph": "true"}
OF_MXNET = "mxnet computes in fp32 (fp16 with CUDA)"
# By strategy, the fields of a point, and the start of the reason; "" for a point that it can do.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"options": {"accumulate": "3"}}, "--option accumulate=3: does not divide the batch of 4 per device")
      for name in EVERY),
    *((name, {"options": {"accumulate": parts}}, "") for name in EVERY for parts in ("1", "2")),
    *((name, EMULATED, "") for name in EVERY if "emulated" in frameworks.load(name).devices(name)),
    *((name, {**EMULATED, "precision": "bf16"}, "--precision bf16: ") for name in EVERY),
    *((name, {"precision": "bf16"}, f"--precision bf16: {OF_MXNET}") for name in EVERY if "mxnet" in name),
    *((name, {"precision": "fp16"}, f"--precision fp16: {OF_MXNET}") for name in EVERY if "mxnet" in name),
    *((name, {"precision": "tf32", "device": "cuda"}, f"--precision tf32: {OF_MXNET}")
      for name in EVERY if "mxnet" in name),
    *((name, {"precision": "fp16", "device": "cuda"}, "") for name in EVERY if "mxnet" in name),
    *((name, {"memory_format": "channels_last"},
       "--memory-format channels_last: mxnet's models are contiguous (NCHW); leave it out")
      for name in EVERY if "mxnet" in name),
    *((name, {"compile": True}, "--compile: mxnet always runs hybridized graphs; leave it out")
      for name in EVERY if "mxnet" in name),
    *((name, {"memory_format": "channels_last"}, "") for name in EVERY if "tensorflow" in name),
    ("tensorflow:plain", {"compile": True}, ""), ("tensorflow:ring", {"compile": True}, ""),
    ("tensorflow:ps", {"compile": True}, "--compile: TensorFlow's XLA cannot"),
    *((name, {"compile": True, "memory_format": "channels_last", "precision": "bf16"}, "")
      for name in EVERY if "jax" in name),
    *((name, {"precision": "fp16"}, "--precision fp16: ") for name in EVERY if "jax" in name),
    ("torch:gloo", {"options": {**STATIC, "accumulate": "2"}}, "--option static_graph=true: "),
    ("torch:gloo", {"options": STATIC}, ""), ("torch:gloo", {"options": {**STATIC, "accumulate": "1"}}, ""),
    ("torch:gloo", {"options": {"compress": "fp16"}}, ""),
    ("torch:gloo", HALF, "--option compress=bf16: Gloo sums fp32 and fp16; take"),
    ("torch:gloo", {**HALF, "device": "cuda"}, "--option compress=bf16: Gloo sums fp32 and fp16; take"),
    ("torch:nccl", {**HALF, "device": "cuda"}, ""),
    ("torch:gloo", {**EMULATED, "options": {"compress": "fp16"}}, "--option compress=fp16: emulated devices"),
    ("torch:gloo", {**EMULATED, "options": {"shard_optimizer": "true"}},
     "--option shard_optimizer=true: emulated devices"),
    ("torch:gloo", {**EMULATED, "options": {"fused": "true"}},
     "--option fused=true: emulated devices compute nothing"),
    ("torch:plain", {"optimizer": "rmsprop", "options": {"fused": "true"}},
     "--option fused=true: torch has no fused rmsprop"),
    ("torch:fsdp2", {"memory_format": "channels_last"}, "--memory-format channels_last: "),
    ("torch:fsdp2", BF16, "--option param_dtype=bf16: needs --precision bf16"),
    ("torch:fsdp2", {**BF16, "precision": "bf16"}, ""),
    ("torch:fsdp2", {**BF16, "model": "alexnet", "data": "synthetic", "precision": "bf16"}, ""),
    *(("torch:fsdp2", {**BF16, "model": "resnet50", "data": "synthetic", "precision": precision},
       "--option param_dtype=bf16: the batch norm of resnet50 keeps its means in fp32; leave")
      for precision in ("fp32", "bf16")),
    ("torch:ps-sync", {"precision": "fp16"}, "--precision fp16: "),
    *(("torch:ps-sync", {"precision": precision}, "") for precision in ("fp32", "tf32", "bf16")),
    ("mxnet:dist_async", {"options": {"update_on_kvstore": "false"}},
     "--option update_on_kvstore=false: mxnet:dist_async only updates on its servers; leave it out"),
    ("mxnet:dist_sync", {"options": {"update_on_kvstore": "false"}}, ""),
    ("mxnet:dist_sync", {"options": {"compression": "2bit"}, "precision": "fp16", "device": "cuda"},
     "--option compression=2bit: mxnet only compresses fp32 gradients, not fp16"),
    ("mxnet:dist_sync", {"options": {"compression": "2bit"}, "device": "cuda"}, ""),
    ("mxnet:dist_async", {"model": "mnist-cnn"},
     "--optimizer adadelta: the servers of mxnet:dist_async update by SGD; add --optimizer sgd"),
    ("mxnet:dist_async", {"model": "mnist-cnn", "optimizer": "sgd"}, ""),
    ("mxnet:dist_sync", {"model": "mnist-cnn"}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "reason"), REFUSED)
def test_a_point_is_refused_with_its_reason(name: str, fields: dict[str, Any], reason: str) -> None:
    found = frameworks.load(name).refuse(paper_tasks.one_task(name, "exchange", **fields).point) or ""
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_servers_refuse_a_fused_update() -> None:
    fused = paper_tasks.one_task("torch:ps-sync", "exchange", options={"fused": "true"}).point
    assert "servers update the parameters" in (frameworks.load("torch:ps-sync").refuse(fused) or "")
