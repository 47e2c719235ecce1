"""What the words of published tables mean, and how far predictions of them miss."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scaling.errors import UsageError
from scaling.tools.predict import published
from scaling.tools.predict.models import KNOWN, KnownModel
from scaling.tools.predict.priors import read
from scaling.tools.predict.published import Series
from scaling.tools.predict.setting import Setting
from scaling.workloads import walk
from scaling.workloads.models import CATALOGUE
from tests.support.prediction_errors import CEILINGS, Miss, errors, misses, of_each, table

FILE = Path(__file__).resolve().parents[2] / "published.json"
OURS = {one.name: one for one in published.series(published.read(FILE))}


def told(**words: Any) -> Setting:
    points = [{"gpus": 1, "nodes": 1, "throughput": 100.0}, {"gpus": 16, "nodes": 2, "throughput": 1500.0}]
    plain = {"id": "a", "source": "b", "model": "ResNet-50", "points": points, "gpus_per_node": 8,
             "grad_bytes_fp32": 102e6, "batch_per_gpu": 64, **words}  # fmt: skip
    found = published.series([msgspec.convert(plain, type=published.Published)])
    return found[0].setting


@pytest.mark.parametrize(
    ("words", "link", "gigabytes"),
    [
        ("10 GbE, TCP/IP", "tcp10", 1.25),
        ("25 GbE TCP (AWS spec)", "tcp", 3.125),
        ("InfiniBand EDR 100 Gb/s, 1 NIC/node", "rdma", 12.5),
        ("8x HDR 200 Gb/s IB per DGX A100", "rdma_several", 200),
        ("100 Gb/s IB NIC used as IPoIB TCP/IP", "tcp", 12.5),
        ("100 Gb/s RoCEv2 RDMA", "rdma", 12.5),
        ("Omni-Path 100 Gbps", "rdma", 12.5),
        ("100 GbE RDMA", "rdma", 12.5),
        ("4 x 100 Gb/s EFA", "rdma_several", 50),
        ("2.5 Gbps Ethernet", "tcp10", 0.3125),
        ("10 Gigabit Ethernet", "tcp10", 1.25),
        ("RoCE, 2x25GbE", "rdma_several", 6.25),
        ("dual 100Gb InfiniBand", "rdma_several", 25),
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
        ("DDP, NCCL, 25 MB buckets, overlapped", "ring", "ddp"),
        ("Horovod NCCL all-reduce", "ring", "horovod"),
        ("Horovod/NCCL, all gradients fused into ONE tensor, no overlap", "ring", "serial"),
        ("BytePS parameter server, per-tensor, overlapped; on separate machines", "servers_apart", "other"),
        ("parameter server, kvstore dist_device_sync (co-located servers)", "servers_beside", "other"),
        ("MultiWorkerMirroredStrategy all_reduce_alg=nccl", "ring", "mwms"),
        ("FSDP2 all-gather + reduce-scatter", "sharded", "ddp"),
    ],
)
def test_exchanges(words: str, method: str, overlap: str) -> None:
    found = told(comm=words, network="10 GbE")
    assert (found.method, found.overlap) == (method, overlap)


def test_a_step_is_batch_over_rate_also_in_tokens() -> None:
    assert told().step_s == pytest.approx(0.64)
    large = OURS["nv_txl_large_dgx1_b2_fp32"].setting
    assert large.step_s == pytest.approx(2 * 384 / 3558)
    assert OURS["hvd288_rn50_c4140"].setting.step_spread > 0


def test_what_cannot_be_told_is_left_out() -> None:
    assert "mxnet4968_rn_b32" not in OURS
    assert "byteps29_rn50_hvd" not in OURS


# Not BERT, which published series train with the head for pairs of sentences too.
CATALOGUED = [one for one in KNOWN if one.name in CATALOGUE and not one.name.startswith("bert-")]


@pytest.mark.parametrize("known", CATALOGUED, ids=lambda known: known.name)
def test_gradients_are_those_of_the_catalogue(known: KnownModel) -> None:
    spec = CATALOGUE[known.name]
    sizes = [prod(one.shape) for one in walk.parameters(spec.layers, spec.input.shape).values()]
    assert (sum(sizes), len(sizes)) == (known.parameters, known.tensors)
    # The first layer's: its weights, and bias or scale beside them.
    assert known.tail == pytest.approx(sum(sizes[:2]) / sum(sizes), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [("{}", "array"), ('[{"id": "a"}]', "source"), ('[{"id": 3}]', "str"), ("\udcff", "json")],
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


def test_predictions_of_what_taught_the_priors_miss_by_little() -> None:
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
