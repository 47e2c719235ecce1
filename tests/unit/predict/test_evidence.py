"""What a run's records tell a prediction, and what of them is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.host import Gpu
from scaling.records.network import Network, Place
from scaling.records.point import Hardware
from scaling.records.run import PointRecord
from scaling.tools.predict import __main__, evidence, healthy, infer, priors
from scaling.tools.predict import __main__ as command
from scaling.tools.predict.evidence import ANY, Wanted
from scaling.tools.predict.forecast import WIDEST, Case, forecasts, outlook
from tests.support.scripted_records import asynchronous, header, host, point, record, sweep, warning, written

HOSTS = (host("node1"), host("node2"))
HEADER = header(HOSTS)


def run(step_s: dict[int, float] | None = None, rounds: int = 3, **changes: Any) -> list[PointRecord]:
    """Rounds of one device at 0.1 s a step, two on one node and four on two."""
    steps = step_s or {1: 0.1, 2: 0.105, 4: 0.125}
    made = [one for number in range(rounds) for one in sweep(number, 0.1, steps, **changes)]
    return [_placed(one) for one in made]


def _placed(one: PointRecord) -> PointRecord:
    if one.point.world_size < 4:
        return one
    names = ("node1", "node1", "node2", "node2")
    ranks = tuple(replace(rank, host=name) for rank, name in zip(one.ranks, names, strict=True))
    return replace(one, ranks=ranks, hosts=names)


def case(records: Sequence[PointRecord], wanted: Wanted = ANY) -> Case:
    return evidence.case(HEADER, records, wanted)


def test_rows_controls_and_exchanges_become_evidence() -> None:
    found = case(run())
    assert [(one.at.world_size, one.at.nodes) for one in found.known.observed] == [(2, 1), (4, 2)]
    assert [one.value for one in found.known.observed] == pytest.approx([0.1 / 0.105, 0.1 / 0.125])
    assert [one.seconds for one in found.known.exchanges] == pytest.approx([0.05, 0.05])
    contention = [
        one.fraction for one in found.known.shares if one.part == "contention" and one.at.world_size == 2
    ]
    assert contention == pytest.approx([0.03])
    assert (found.batch_size, found.largest, found.devices_per_node) == (32, 4, 2)
    assert found.rate == pytest.approx(320.0)
    assert found.setting.gradient_bytes == 40


def test_few_draws_are_told() -> None:
    """An exchange of 40 bytes that takes 50 ms."""
    found = outlook(case(run()), priors.read())
    (said,) = found.doubts
    assert said.startswith("what was measured is far from all that taught the model: intervals rest on 3 draws")
    (row,) = forecasts(found, (8,))
    assert not row.claimed
    assert (row.high - row.low) / 2 < WIDEST
    assert "not claimed: fewer than 10 even draws tell no interval" in __main__.prediction_table(
        found.case, (row,), (), None
    )


def test_larger_world_sizes_can_be_held_back() -> None:
    found = case(run(), Wanted(up_to=2))
    assert [one.at.world_size for one in found.known.observed] == [2]
    assert [one.at.world_size for one in found.known.exchanges] == [2]
    assert found.largest == 2
    assert [one.at.world_size for one in found.measured] == [1, 2, 4]


def test_the_interval_is_narrower_with_comm() -> None:
    def half(records: list[PointRecord]) -> float:
        found = case(records)
        setting = replace(found.setting, gradient_bytes=1e8, overlap="serial")
        posterior = infer.posterior(setting, found.known, priors.read())
        drawn = infer.predict(posterior, [found.layout(32)])
        low, high = infer.quantiles(drawn.log_efficiency, drawn.weights, [0.1, 0.9])[:, 0]
        return float(high - low)

    records = run({1: 0.1, 2: 0.15})
    assert half(records) < 0.95 * half([one for one in records if one.point.kind != "comm"])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda one: replace(one, oversubscribed=True), "OVERSUBSCRIBED"),
        (lambda one: replace(one, settled=False), "UNSETTLED"),
        (asynchronous, "ASYNC"),
    ],
)
def test_marked_rows_teach_nothing(spoil: Any, said: str) -> None:
    spoiled = [spoil(one) if one.point.kind == "exchange" and one.point.world_size == 4 else one for one in run()]
    try:
        found = case(spoiled)
    except UsageError as error:
        assert said in str(error)
        return
    assert [one.at.world_size for one in found.known.observed] == [2]
    assert said in found.notes[0]


def test_a_loss_that_no_control_explains_is_no_input() -> None:
    """0.2 s where the exchange alone takes 0.05 s and loops beside each other 0.104 s."""
    found = case(run({1: 0.1, 2: 0.105, 4: 0.2}))
    assert [one.at.world_size for one in found.known.observed] == [2]
    assert "points of its loss are unexplained" in found.notes[0]


def test_nothing_sound_is_refused_with_what_would_mend_it() -> None:
    with pytest.raises(
        UsageError, match=r"one sound exchange.*mpirun -np 2 python -m scaling.run .*--world-sizes 1,2"
    ):
        case(run({1: 0.1}))
    with pytest.raises(UsageError, match="--up-to 3: one device alone"):
        case([one for one in run() if one.point.world_size != 2], Wanted(up_to=3))
    with pytest.raises(UsageError, match="RUN: one device alone"):
        case([one for one in run() if one.point.kind != "solo"])


def test_unknown_curves_and_other_batch_rules_are_refused() -> None:
    with pytest.raises(UsageError, match="--strategy nope: the run has no such exchange; it has fake:a over auto"):
        case(run(), Wanted(strategy="nope"))
    with pytest.raises(UsageError, match="batch rule is strong"):
        case(run(batch_rule="strong", batch_size=8))


def test_comm_is_as_uncertain_as_the_step_that_it_is_held_against() -> None:
    steady, unsteady = run(), run()
    slower = [
        record(one.point, 0.1 * (1 + 0.1 * one.point.round)) if one.point.kind == "solo" else one
        for one in unsteady
    ]
    assert [one.noise for one in case(steady).known.exchanges] == [evidence.COMM_NOISE] * 2
    assert all(one.noise > 2 * evidence.COMM_NOISE for one in case(slower).known.exchanges)


def slowed(names: Sequence[float] = (), **changes: Any) -> list[PointRecord]:
    """The run whose second node computes longer beside the first, and alone by `names`, seat by seat."""
    records = [one for one in run(**changes) if one.point.world_size < 4]
    for number in range(3):
        records.append(record(point("exchange", 4, number, **changes), 0.15))
        records.append(record(point("together", 4, number, **changes), 0.1, 0.1, 0.13, 0.13))
        records.append(record(point("comm", 4, number, **changes), 0.05))
        records += [record(point("each", 4, number, **changes), *names)] if names else []
    return [_placed(one) for one in records]


def test_a_slow_node_is_taken_out() -> None:
    placed = slowed()
    found = case(placed)
    relief, healed = healthy.without("node2", found, placed)
    assert relief.world_size == 2
    assert relief.share == pytest.approx(0.03 / 0.15, rel=0.02)
    assert healed.known.observed[-1].value == pytest.approx(found.known.observed[-1].value / (1 - relief.share))
    assert {one.at.world_size for one in healed.known.shares} == {2}
    assert healthy.without("node1", found, placed)[0].share == 0.0
    with pytest.raises(UsageError, match="did you mean 'node2'"):
        healthy.without("node22", found, placed)
    with pytest.raises(UsageError, match="needs `together`"):
        healthy.without("node2", found, [one for one in placed if one.point.kind != "together"])


def test_without_a_slow_node_nobody_beats_being_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others do 320 samples/s alone: two of them 640 at most."""
    folder = written(tmp_path / "run", (HEADER, slowed((0.1, 0.1, 0.13, 0.13))))
    assert command.main([str(folder), "--without", "node2", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["predicted"]
    assert (row["at"]["world_size"], row["efficiency"] < 1) == (2, True)
    assert 0.9 * 640 < row["samples_per_s"] < 640
    assert row["samples_per_s"] / row["efficiency"] == pytest.approx(640)


def test_what_a_slow_node_costs_is_told_by_its_own_curve() -> None:
    """Another batch, of which nobody waits for anybody, stands first in the file."""
    other = [
        _placed(one)
        for number in range(3)
        for one in sweep(number, 0.09, {1: 0.09, 2: 0.095, 4: 0.1}, batch_size=16)
    ]
    both = [*other, *slowed()]
    found = case(both, Wanted(batch_size=32))
    assert healthy.without("node2", found, both)[0].share == pytest.approx(0.03 / 0.15, rel=0.02)


def test_the_command_reads_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    assert command.main([str(folder), "--world-sizes", "8,16", "--network", "ib:100"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("PREDICTED, not measured: fake:a over auto, digits-cnn, batch 32 per device")
    said = [line.split()[2] for line in out.splitlines() if line.lstrip()[:1].isdigit() and "%:" not in line]
    assert said == ["measured"] * 3 + ["PREDICTED"] * 2


def test_a_run_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.jsonl").write_text("{")
    assert command.main([str(tmp_path)]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
    assert warning("text").kind == "other"


@pytest.mark.parametrize(
    ("links", "bus"),
    [(("self", "NV12", "NV12"), "nvswitch"), (("self", "NV2", "SYS"), "nvlink"), (("self", "PIX", "SYS"), "pcie")],
)
def test_what_joins_gpus(links: tuple[str, ...], bus: str) -> None:
    gpu = Gpu(index=0, name="Tesla V100", uuid="GPU-0", memory_bytes=1, links=links)
    cuda = [replace(one, point=replace(one.point, hardware=Hardware(device="cuda"))) for one in run()]
    found = evidence.case(header((replace(host(), gpus=(gpu,)),), device="cuda"), cuda)
    assert (str(found.setting.bus), found.device) == (bus, "Tesla V100")


@pytest.mark.parametrize(
    ("strategy", "device", "link"),
    [
        ("torch:nccl", "cuda", "rdma"), ("torch:fsdp2", "cuda", "rdma"), ("torch:horovod", "cuda", "rdma"),
        ("torch:gloo", "cuda", "tcp"), ("torch:horovod", "cpu", "tcp"),
    ],
)  # fmt: skip
def test_what_takes_a_card_by_its_verbs(strategy: str, device: Literal["cpu", "cuda"], link: str) -> None:
    places = {name: Place(address="10.0.0.1", interface="ib0", hca="mlx5_0") for name in ("node1", "node2")}
    network = Network(word="auto", why="", rate_bits_per_s=100e9, card_bits_per_s=100e9, places=places)
    gpu = Gpu(index=0, name="Tesla V100", uuid="GPU-0", memory_bytes=1)
    made = header(tuple(replace(one, gpus=(gpu,)) for one in HOSTS), device=device, networks=(network,))
    records = [replace(one, point=replace(one.point, hardware=Hardware(device=device))) for one in run()]
    found = evidence.case(made, [renamed(one, strategy) for one in records])
    assert (str(found.setting.link), found.setting.line_bytes_per_s) == (link, 12.5e9)


def test_devices_that_sleep_are_told_from_those_that_compute() -> None:
    profile = Hardware(device="emulated", profile="p100")
    asleep = [replace(one, point=replace(one.point, hardware=profile)) for one in run()]
    assert (case(asleep).setting.emulated, case(run()).setting.emulated) == (True, False)


def renamed(one: PointRecord, strategy: str, options: dict[str, str] | None = None) -> PointRecord:
    if one.point.strategy.endswith(":plain"):
        return replace(one, point=replace(one.point, strategy=f"{strategy.partition(':')[0]}:plain", options={}))
    return replace(one, point=replace(one.point, strategy=strategy, options=options or {}))


def of_strategy(strategy: str, options: dict[str, str] | None = None) -> Case:
    return case([renamed(one, strategy, options) for one in run()])


@pytest.mark.parametrize(
    ("strategy", "options", "method", "wire"),
    [
        ("torch:gloo", {}, "ring", "full"),
        ("torch:gloo", {"compress": "fp16"}, "ring", "half"),
        ("torch:fsdp2", {}, "sharded", "full"),
        ("torch:fsdp2", {"reshard": "False"}, "ring", "full"),
        ("torch:horovod", {"compression": "fp16"}, "ring", "half"),
    ],
)
def test_how_a_strategy_exchanges(strategy: str, options: dict[str, str], method: str, wire: str) -> None:
    found = of_strategy(strategy, options).setting
    assert (found.method, found.wire) == (method, wire)


@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        ("torch:fsdp2", "hsdp=2"),
        ("torch:fsdp2", "param_dtype=bf16"),
        ("torch:fsdp2", "accumulate=2"),
        ("torch:gloo", "shard_optimizer=true"),
    ],
)
def test_exchanges_that_the_model_does_not_have_are_refused(strategy: str, option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(UsageError, match=f"{strategy} with --option {option}: what that exchanges is not in the"):
        of_strategy(strategy, {name: value})


def test_micro_steps_and_compression_of_the_strategy_count() -> None:
    found = case(run(options={"accumulate": "4", "compression": "fp16"}))
    assert found.setting.step_s == pytest.approx(0.1 / 4)
    assert found.setting.wire == "half"
    assert found.layout(8).accumulation == 4
    assert found.known.anchor.accumulation == 4
