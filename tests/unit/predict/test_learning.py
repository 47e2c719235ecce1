"""Priors: what a known truth teaches, and the file."""

from __future__ import annotations

import json
from math import log, prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.tools.predict.setting import MODELS, USUAL_BYTES_PER_S, KnownModel, Setting, read
from scaling.workloads import layers
from scaling.workloads.models import CATALOGUE
from tests.bench import frozen, learning, published
from tests.bench.learning import priors_toml
from tests.bench.prediction_errors import CEILINGS, Miss, errors, misses, of_each, table
from tests.bench.prediction_splits import generation, single_nodes, split_table
from tests.bench.published import Series
from tests.support.scripted_clusters import RESNET50, at, measured_at, truth

BUS = USUAL_BYTES_PER_S["pcie"]
FILE = Path(__file__).resolve().parents[2] / "published.json"
OURS = {one.name: one for one in published.series(published.read(FILE))}
NODES = FILE.with_name("published-nodes.json")


def told(**words: Any) -> Setting:
    points = [{"gpus": 1, "nodes": 1, "throughput": 100.0}, {"gpus": 16, "nodes": 2, "throughput": 1500.0}]
    plain = {"id": "a", "source": "b", "model": "ResNet-50", "points": points, "gpus_per_node": 8,
             "grad_bytes_fp32": 102e6, "batch_per_gpu": 64, **words}  # fmt: skip
    found = published.series([msgspec.convert(plain, type=published.Published)])
    return found[0].setting


@pytest.mark.parametrize(
    ("words", "link", "gigabytes"),
    [
        ("10 GbE, TCP/IP", "tcp", 1.25),
        ("25 GbE TCP (AWS spec)", "tcp", 3.125),
        ("InfiniBand EDR 100 Gb/s, 1 NIC/node", "rdma", 12.5),
        ("8x HDR 200 Gb/s IB per DGX A100", "rdma", 200),
        ("100 Gb/s IB NIC used as IPoIB TCP/IP", "ipoib", 12.5),
        ("100 Gb/s RoCEv2 RDMA", "rdma", 12.5),
        ("Omni-Path 100 Gbps", "rdma", 12.5),
        ("100 GbE RDMA", "rdma", 12.5),
        ("4 x 100 Gb/s EFA", "rdma", 50),
        ("2.5 Gbps Ethernet", "tcp", 0.3125),
        ("10 Gigabit Ethernet", "tcp", 1.25),
        ("RoCE, 2x25GbE", "rdma", 6.25),
        ("dual 100Gb InfiniBand", "rdma", 25),
        ("3.2 Tbps EFA", "rdma", 400),
        ("not stated", "unknown", 0),
    ],
)
def test_networks(words: str, link: str, gigabytes: float) -> None:
    found = told(network=words)
    assert str(found.link) == link
    assert found.line_bytes_per_s == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize(
    ("words", "method", "overlap"),
    [
        ("DDP, NCCL, 25 MB buckets, overlapped", "ring", "backward"),
        ("Horovod NCCL all-reduce", "ring", "backward"),
        ("Horovod/NCCL, all gradients fused into ONE tensor, no overlap", "ring", "serial"),
        (
            "BytePS parameter server, per-tensor, overlapped; #servers = #worker nodes on separate machines",
            "servers_apart",
            "backward",
        ),
        (
            "parameter server, kvstore dist_device_sync (co-located servers, one per worker)",
            "servers_beside",
            "backward",
        ),
        ("MultiWorkerMirroredStrategy all_reduce_alg=nccl", "ring", "mwms"),
        ("FSDP2 all-gather + reduce-scatter", "sharded", "backward"),
    ],
)
def test_exchanges(words: str, method: str, overlap: str) -> None:
    found = told(comm=words, network="10 GbE")
    assert (found.method, found.overlap) == (method, overlap)


@pytest.mark.parametrize(
    ("words", "device", "bus", "gigabytes"),
    [
        ("NVSwitch NVLink3", "A100-SXM4-80GB (DGX A100)", "nvswitch", 240),
        ("NVLink2 hybrid cube mesh", "V100-SXM2-16GB", "nvlink", 120),
        ("AMD Infinity Fabric, 50 GB/s a link", "MI250X", "nvlink", 100),
        ("PCIe, no NVLink", "Tesla K80", "pcie", 15.75),
        ("PCIe 4.0", "a card of tomorrow", "pcie", 0),
        ("", "A100", "unknown", 0),
    ],
)
def test_buses(words: str, device: str, bus: str, gigabytes: float) -> None:
    found = told(intra_node=words, gpu=device)
    assert (str(found.bus), found.bus_bytes_per_s) == (bus, gigabytes * 1e9)


def test_rings_on_cpus_are_distinguished() -> None:
    assert told(comm="Gloo all-reduce").carrier == told(comm="ring over gRPC").carrier == "cpu"
    assert told(comm="NCCL all-reduce").carrier == "nccl"


@pytest.mark.parametrize(
    ("words", "is_usable"),
    [
        ("parameter server", False), ("parameter server, 20 pservers", False), ("BytePS PS, 2 servers", True),
        ("BytePS PS; #servers = #worker nodes", True), ("kvstore dist_sync (one per worker)", True),
    ],
)  # fmt: skip
def test_parameter_servers_of_unknown_number_are_left_out(words: str, is_usable: bool) -> None:
    if is_usable:
        assert told(comm=words).method.startswith("servers_")
    else:
        with pytest.raises(IndexError):
            told(comm=words)


def test_a_step_is_batch_over_rate_also_in_tokens() -> None:
    assert told().step_s == pytest.approx(0.64)
    large = OURS["nv_txl_large_dgx1_b2_fp32"].setting
    assert large.step_s == pytest.approx(2 * 384 / 3558)
    assert OURS["hvd288_rn50_c4140"].setting.step_spread > 0


def test_every_series_of_modern_nodes_is_usable_and_names_its_source() -> None:
    tables = published.read(NODES)
    found = published.series(tables)
    assert len({one.name for one in found} - set(OURS)) == len(tables)
    assert all(len(one.source.split()) > 1 and one.setting.anchor.nodes == 1 for one in found)
    assert len({one.publisher for one in found if one.trust in "AB"}) >= 14


def test_frozen_series_have_all_rates_and_are_in_no_other_data() -> None:
    plain = json.loads(frozen.FILE.read_text())
    found = [*frozen.forecasts(plain)]
    assert len({one.name for one in found if one.known == 1}) == len(plain) == 17
    assert sum(one.known == 1 for one in found) == sum(len(one["asked"]) for one in plain)
    others = {one.publisher for path in (FILE, NODES) for one in published.series(published.read(path))}
    assert not {one.publisher for one in found} & others


def test_a_network_is_read_of_series_of_several_nodes() -> None:
    found = {one.name: one.setting for one in published.series(published.read(NODES))}
    puhti, mahti = found["csc_puhti_20240612_fp32"], found["csc_mahti_20240612_fp32"]
    assert (puhti.link, puhti.line_bytes_per_s) == ("rdma", 25e9)
    assert (mahti.link, mahti.line_bytes_per_s) == ("rdma", 25e9)


def test_unusable_series_are_left_out() -> None:
    assert "mxnet4968_rn_b32" not in OURS
    assert "byteps29_rn50_hvd" not in OURS


# Not BERT, which published series train with the head for pairs of sentences too.
CATALOGUED = [one for one in MODELS if one.name in CATALOGUE and not one.name.startswith("bert-")]


@pytest.mark.parametrize("known", CATALOGUED, ids=lambda known: known.name)
def test_gradients_are_those_of_the_catalogue(known: KnownModel) -> None:
    spec = CATALOGUE[known.name]
    sizes = [prod(one.shape) for one in layers.parameters(spec.layers, spec.input.shape).values()]
    assert (sum(sizes), len(sizes)) == (known.parameters, known.tensors)
    # The first layer's: its weights, and bias or scale beside them.
    assert known.tail == pytest.approx(sum(sizes[:2]) / sum(sizes), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "said"), [("{}", "array"), ('[{"id": "a"}]', "source"), ('[{"id": 3}]', "str"), ("\udcff", "json")]
)
def test_bad_files_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=said):
        published.read(path)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("throughput", 0.0), ("nodes", 50), ("accum", 0), ("step_ms", -1.0), ("batch_per_gpu", -64),
        ("grad_bytes_fp32", -5.0), ("grad_bytes_fp32", 0.0),
    ],
)  # fmt: skip
def test_series_without_sense_are_left_out(where: str, value: float) -> None:
    """One of them made of all priors what is no number."""
    plain = json.loads(FILE.read_text())[0] | {"params_millions": None}
    (plain if where in plain else plain["points"][1])[where] = value
    assert published.series([msgspec.convert(plain, type=published.Published)]) == []


def _some() -> list[Series]:
    """Every ninth of trust A: whole tables are for tests.bench.predict."""
    return [one for one in OURS.values() if one.trust == "A"][::9]


def test_predictions_of_learned_series_miss_by_little() -> None:
    """The ceilings of the benchmark, which leaves sources out; here nothing is left out."""
    priors = read()
    found = [miss for one in _some() for miss in misses(one, priors)]
    for task in ("C", "E1", "E2"):
        median, p90 = CEILINGS[task, "A"]
        ours = errors(found, task, "A")
        assert ours.points >= 8
        assert (ours.median <= median, ours.p90 <= p90 * 1.5) == (True, True), (task, ours)
        assert ours.median < ours.naive_median
    assert table(found).count("\n") == 2 + 2 * 3 - 1


def test_publishers_count_as_one_each() -> None:
    """Of the first's three points two are inside, of the second's only one is not."""
    points = [("a", 0.90), ("a", 0.95), ("a", 0.60), ("b", 0.40)]
    found = [Miss("E1", "A", name, 8, value, 0.9, 0.8, 1.0, 0.7) for name, value in points]
    assert of_each(found, {"a": "first", "b": "second"}) == (
        "E1: up to one full node: 80 % covers 33 % in the mean over 2 publishers, 0 % (second) to 67 %; "
        "worst median 50.0 points (second; naive rule 30.0)"
    )


def test_errors_are_split_by_bus_generation_and_step() -> None:
    """Two publishers with a median of 10 and 30 points: each counts once, whatever its number of points."""
    nodes = {one.name: one for one in published.series(published.read(NODES))}
    first, second = nodes["csc_mahti_20240612_fp32"], nodes["baskerville_gpt2large_bf16"]
    found = [Miss("C", "A", first.name, size, 0.9, 0.8, 0.85, 0.95, 0.9) for size in (2, 4)]
    found.append(Miss("C", "A", second.name, 2, 0.9, 0.6, 0.5, 0.7, 0.9))
    said = split_table(found, nodes.values(), dict.fromkeys(nodes, "A100-SXM4"))
    assert said.splitlines()[2:] == [
        "| C: one device, data sheet | nvlink | 3 | 2 | 20.0 | 0.0 | 50 % |",
        "| C: one device, data sheet | A100, RTX 3090, MI250X (2020, 2021) | 3 | 2 | 20.0 | 0.0 | 50 % |",
        "| C: one device, data sheet | below 50 ms | 2 | 1 | 10.0 | 0.0 | 100 % |",
        "| C: one device, data sheet | 0.2 to 1 s | 1 | 1 | 30.0 | 0.0 | 0 % |",
    ]


@pytest.mark.parametrize(
    ("device", "began"),
    [("Tesla K80", "K80"), ("RTX 2080 Ti", "V100"), ("RTX 3090", "A100"), ("RTX 6000 Ada", "H100"), ("", "other")],
)
def test_devices_have_a_generation(device: str, began: str) -> None:
    assert generation(device).startswith(began)


def test_single_nodes_are_points_inside_a_node_of_these_series() -> None:
    one, other = (Series(name=name, source=f"p{name} x", trust="A", setting=RESNET50, observed=(
        measured_at(at(4), 0.9), measured_at(at(8), 0.8))) for name in "ab")  # fmt: skip
    found = [Miss("C", "A", name, size, 0.9, 0.88, 0.8, 1.0, 0.95) for name in "abc" for size in (4, 8)]
    said = single_nodes([*found, Miss("E1", "A", "a", 4, 0.9, 0.5, 0.5, 0.5, 0.5)], [one, other])
    assert said.splitlines()[0] == (
        "single nodes, cold, all: 2 points, 2.0 / 2.0, naive rule 5.0 / 5.0, 80 % covers 100 %"
    )
    assert said.count("\n") == 2
    assert single_nodes(found[4:], [one, other]) == ""


def test_a_bus_twice_as_slow_as_believed_is_learned() -> None:
    """Eight clusters without overlap, whose exchange is most of their step."""
    weak = learning.beliefs_before()
    slow = replace(weak.constants["bus.pcie"], mean=log(2.5e9 / BUS), sd=0.1)
    world = replace(weak, constants={**weak.constants, "bus.pcie": slow})
    serial = replace(RESNET50, gradient_bytes=800e6, overlap="serial", link="unknown", messages="one")
    points = [at(2), at(4)]
    taught = [
        Series(
            name=f"s{seed}", source=f"s{seed}", trust="A", setting=serial,
            observed=tuple(measured_at(one, value) for one, value in zip(
                points, truth(serial, world, points, seed), strict=True)),
        )
        for seed in range(8)
    ]  # fmt: skip
    found = learning.learn(taught, rounds=3)
    rate = BUS * float(np.exp(found.constants["bus.pcie"].mean))
    assert 2.2e9 < rate < 3.6e9
    assert found.constants["bus.pcie"].series == 8
    assert found.constants["network.tcp"] == weak.constants["network.tcp"]


@pytest.mark.parametrize(("name", "value", "other"), [("tax", 0.06, "tax_s"), ("tax_s", 0.008, "tax")])
def test_whether_contention_is_a_share_or_a_time_is_learned(name: str, value: float, other: str) -> None:
    """Clusters whose exchange takes no time, of short and of long steps."""
    weak = learning.beliefs_before()
    sharp = replace(weak.constants[name], mean=log(value), sd=0.05)
    world = replace(weak, constants={**weak.constants, name: sharp})
    points = [at(2), at(4)]
    taught = []
    for seed in range(12):
        quick = replace(RESNET50, gradient_bytes=1e3, link="unknown", step_s=0.03 if seed % 2 else 0.6)
        values = zip(points, truth(quick, world, points, seed), strict=True)
        seen = tuple(measured_at(one, value) for one, value in values)
        taught.append(Series(name=f"s{seed}", source=f"s{seed}", trust="A", setting=quick, observed=seen))
    found = learning.learn(taught, rounds=3).constants
    moved = {one: found[one].mean - weak.constants[one].mean for one in (name, other)}
    assert moved[name] > 0.3 * (log(value) - weak.constants[name].mean)
    assert moved[name] > moved[other]


def test_series_of_trust_c_teach_nothing() -> None:
    odd = Series(name="s", source="s", trust="C", setting=RESNET50, observed=(measured_at(at(4), 0.1),))
    assert learning.learn([odd], rounds=1).constants == learning.beliefs_before().constants


def test_the_file_says_what_was_learned_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "priors.toml"
    path.write_text(priors_toml(learning.beliefs_before()))
    found = msgspec.toml.decode(path.read_bytes(), type=type(read()))
    assert found.walk == learning.WALK
    for name, prior in learning.beliefs_before().constants.items():
        assert found.constants[name].mean == pytest.approx(prior.mean, abs=1e-3)
        assert f'"{name}" = ' in path.read_text()


def test_the_package_has_every_constant_with_its_publishers() -> None:
    found = read()
    assert set(found.constants) == set(learning.BELIEFS)
    assert set(found.quantiles) == set(learning.QUANTILES)
    for name, prior in found.constants.items():
        assert bool(prior.series) == bool(prior.publishers), name
