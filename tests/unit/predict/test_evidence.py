"""Evidence of a run, the model of a step, and units of rates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.host import Gpu
from scaling.records.network import Network, Place
from scaling.records.point import Hardware, Workload
from scaling.records.run import PointRecord
from scaling.tools.predict import __main__ as command
from scaling.tools.predict import evidence, model
from scaling.tools.predict.__main__ import forecasts
from scaling.tools.predict.evidence import Case
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.model import Parts
from scaling.tools.predict.setting import USUAL_BYTES_PER_S, At
from tests.support.predicted_runs import HEADER, large, run
from tests.support.scripted_clusters import RESNET50, at, exact
from tests.support.scripted_records import asynchronous, header, host, warning, written

# What a run's records tell a prediction, and what of them is left out.

HOSTS = (host("node1"), host("node2"))
HEADER_OF_EVIDENCE = header(HOSTS)


def case(records: Sequence[PointRecord], wanted: Asked | None = None) -> Case:
    return evidence.case(HEADER_OF_EVIDENCE, records, wanted or Asked())


def test_rows_become_evidence() -> None:
    found = case(run())
    assert [(one.at.world_size, one.at.nodes) for one in found.observed] == [(2, 1), (4, 2)]
    assert [one.efficiency for one in found.observed] == pytest.approx([0.1 / 0.105, 0.1 / 0.125])
    assert (found.batch_size, found.devices_per_node) == (32, 2)
    assert found.rate == pytest.approx(320.0)
    assert found.setting.gradient_bytes == 40


def test_larger_world_sizes_can_be_held_back() -> None:
    found = case(run(), Asked(up_to=2))
    assert [one.at.world_size for one in found.observed] == [2]
    assert [one.at.world_size for one in found.measured] == [1, 2, 4]


def test_an_efficiency_that_the_report_does_not_claim_is_no_evidence() -> None:
    found = case(run({1: 0.1, 2: 0.105, 4: 0.09}))
    assert [one.at.world_size for one in found.observed] == [2]
    assert "SUPERLINEAR" in found.notes[0]


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
    assert [one.at.world_size for one in found.observed] == [2]
    assert said in found.notes[0]


def test_evidence_of_bad_scaling_pulls_and_widens() -> None:
    """0.2 s where the exchange alone takes 0.05 s and loops beside each other 0.104 s: 52 % on four devices."""
    bad = case(run({1: 0.1, 2: 0.105, 4: 0.2}))
    assert [one.at.world_size for one in bad.observed] == [2, 4]
    assert bad.notes == ()
    (row,) = forecasts(bad, (8,))
    assert row.efficiency < bad.observed[-1].efficiency


def test_a_run_without_usable_rows_is_refused_with_the_fix() -> None:
    with pytest.raises(
        UsageError, match=r"one usable exchange.*mpirun -np 2 python -m scaling.run .*--world-sizes 1,2"
    ):
        case(run({1: 0.1}))
    with pytest.raises(UsageError, match="--up-to 3: needs one device alone"):
        case([one for one in run() if one.point.world_size != 2], Asked(up_to=3))
    with pytest.raises(UsageError, match="RUN: needs one device alone"):
        case([one for one in run() if one.point.kind != "solo"])


def test_unknown_curves_and_other_batch_rules_are_refused() -> None:
    with pytest.raises(UsageError, match="--strategy nope: the run has no such exchange; it has fake:a over auto"):
        case(run(), Asked(strategy="nope"))
    with pytest.raises(UsageError, match="batch rule is strong"):
        case(run(batch_rule="strong", batch_size=8))


def test_the_command_reads_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER_OF_EVIDENCE, run()))
    assert command.main([str(folder), "--world-sizes", "8,16", "--network", "ib:100"]) == 0
    out, _ = capsys.readouterr()
    assert out.startswith("PREDICTED, not measured: fake:a over ib:100, digits-cnn, batch 32 per device")
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
    found = evidence.case(header((replace(host(), gpus=(gpu,)),), device="cuda"), cuda, Asked())
    assert str(found.setting.bus) == bus


@pytest.mark.parametrize(
    ("strategy", "device", "link"),
    [
        ("torch:nccl", "cuda", "rdma"), ("torch:fsdp2", "cuda", "rdma"), ("torch:horovod", "cuda", "rdma"),
        ("torch:gloo", "cuda", "ipoib"), ("torch:horovod", "cpu", "ipoib"),
    ],
)  # fmt: skip
def test_what_takes_a_card_by_its_verbs(strategy: str, device: Literal["cpu", "cuda"], link: str) -> None:
    places = {name: Place(address="10.0.0.1", interface="ib0", hca="mlx5_0") for name in ("node1", "node2")}
    network = Network(word="auto", why="", rate_bits_per_s=100e9, card_bits_per_s=100e9, places=places)
    gpu = Gpu(index=0, name="Tesla V100", uuid="GPU-0", memory_bytes=1)
    made = header(tuple(replace(one, gpus=(gpu,)) for one in HOSTS), device=device, networks=(network,))
    records = [replace(one, point=replace(one.point, hardware=Hardware(device=device))) for one in run()]
    found = evidence.case(made, [renamed(one, strategy) for one in records], Asked())
    assert (str(found.setting.link), found.setting.line_bytes_per_s) == (link, 12.5e9)


def test_emulated_devices_have_priors_of_their_own() -> None:
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
    ("strategy", "options", "method", "sent"),
    [
        ("torch:gloo", {}, "ring", 1.0),
        ("torch:gloo", {"compress": "fp16"}, "ring", 0.5),
        ("torch:fsdp2", {}, "sharded", 1.0),
        ("torch:fsdp2", {"param_dtype": "bf16"}, "sharded", 2 / 3),
        ("torch:fsdp2", {"reshard": "False"}, "ring", 1.0),
        ("torch:horovod", {"compression": "fp16"}, "ring", 0.5),
    ],
)
def test_how_a_strategy_exchanges(strategy: str, options: dict[str, str], method: str, sent: float) -> None:
    found = of_strategy(strategy, options).setting
    assert found.method == method
    assert found.gradient_bytes / 40 == pytest.approx(sent)


def test_zero_1_gathers_parameters_after_the_step() -> None:
    """What DDP sends, and then each rank's shard of the parameters to all others, which nothing hides."""
    sharded, plain = (of_strategy("torch:gloo", {"shard_optimizer": one}).setting for one in ("true", "false"))
    assert (sharded.gathered_bytes, plain.gathered_bytes) == (40, 0)
    with_bytes = replace(RESNET50, gathered_bytes=102e6)
    extra = parts(8, with_bytes).exposed_s.item() - parts(8).exposed_s.item()
    assert extra == pytest.approx(7 / 8 * 102e6 / (5 * GB))


def test_a_strategy_from_outside_is_a_ring_and_a_note_says_so() -> None:
    made = run()
    found = case([one if one.point.strategy == "fake:plain" else renamed(one, "my.way:fsdp2") for one in made])
    assert (found.setting.method, found.rate) == ("ring", case(made).rate)
    (note,) = found.notes
    assert note.startswith("assumed: my.way:fsdp2, ") and case(made).notes == ()


@pytest.mark.parametrize(
    ("strategy", "option"),
    [
        ("torch:fsdp2", "hsdp=2"),
        ("torch:fsdp2", "accumulate=2"),
    ],
)
def test_exchanges_that_the_model_does_not_have_are_refused(strategy: str, option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(UsageError, match=f"{strategy} with --option {option}: the model does not cover it"):
        of_strategy(strategy, {name: value})


def test_micro_steps_and_compression_of_the_strategy_count() -> None:
    found = case(run(options={"accumulate": "4", "compression": "fp16"}))
    assert found.setting.step_s == pytest.approx(0.1 / 4)
    assert found.setting.gradient_bytes == 20
    assert found.layout(8).accumulation == 4
    assert found.setting.anchor.accumulation == 4


# The time of a step against hand-made numbers.

GB, BUS = 1e9, USUAL_BYTES_PER_S["pcie"]


def parts(world_size: int, setting: Any = RESNET50, each: int = 4, **known: float) -> Parts:
    values = exact(setting, **{"network": 0.8, "bus": 5 * GB / BUS, "window": 0.66, **known})
    return model.parts(setting, values, [at(world_size, each)], np.array([setting.step_s]))


def seconds(found: Parts) -> float:
    """Of an exchange that nothing hides."""
    return float(found.exposed_s[0, 0])


def test_one_device_takes_its_own_step() -> None:
    found = parts(1, tax=0.1, growth=0.1)
    assert sum(found, np.zeros(1)).item() == pytest.approx(0.25)


def test_a_ring_inside_a_node_moves_2_n_minus_1_over_n_at_the_rate_of_its_bus() -> None:
    assert seconds(parts(4)) == pytest.approx(2 * 3 / 4 * 102e6 / (5 * GB), rel=0.02)


def test_a_ring_over_nodes_is_as_fast_as_its_slowest_leg() -> None:
    slow = replace(RESNET50, line_bytes_per_s=1.25 * GB)
    assert seconds(parts(8, slow)) == pytest.approx(2 * 7 / 8 * 102e6 / (0.8 * 1.25 * GB), rel=0.02)
    assert seconds(parts(8)) == pytest.approx(2 * 7 / 8 * 102e6 / (5 * GB), rel=0.02)


def test_servers_apart_take_pushes_and_pulls_one_after_the_other_where_nothing_overlaps() -> None:
    servers = replace(RESNET50, method="servers_apart", overlap="serial", messages="one")
    inside, network = 2 * 3 / 4 * 102e6 / (5 * GB), 102e6 / (0.8 * 12.5 * GB)
    assert seconds(parts(16, servers)) == pytest.approx(inside + 2 * network, rel=1e-3)
    assert seconds(parts(16, replace(servers, overlap="backward"))) == pytest.approx(
        inside + 1.1 * network, rel=1e-3
    )


def test_servers_beside_the_training_send_what_is_not_their_own() -> None:
    servers = replace(RESNET50, method="servers_beside", messages="one")
    expected = 4 * 102e6 / (5 * GB) + 2 * 3 / 4 * 102e6 / (0.8 * 12.5 * GB)
    assert seconds(parts(16, servers)) == pytest.approx(expected, rel=1e-3)


def test_what_backward_hides_is_not_exposed_but_for_the_tail() -> None:
    exchange_s = seconds(parts(4))
    assert parts(4, hide=1.0).exposed_s.item() == pytest.approx(0.0, abs=1e-9)
    tailed = parts(4, replace(RESNET50, tail=0.25), hide=1.0)
    assert tailed.exposed_s.item() == pytest.approx(0.25 * exchange_s)
    assert parts(4, hide=0.0).exposed_s.item() == pytest.approx(exchange_s)


def test_an_exchange_longer_than_backward_shows_by_the_difference() -> None:
    slow = 0.1 * GB / BUS
    assert parts(4, hide=1.0, bus=slow).exposed_s.item() == pytest.approx(
        seconds(parts(4, bus=slow)) - 0.66 * 0.25
    )


def test_each_doubling_of_nodes_loses_more_than_the_one_before() -> None:
    lost = [parts(size, growth=0.01).straggling_s.item() / 0.25 for size in (4, 8, 64, 4 * 2**9)]
    assert lost == pytest.approx([0.0, 0.01, 0.08, 0.27])


def test_gradients_are_exchanged_once_in_several_micro_steps() -> None:
    sizes = [At(world_size=4, nodes=1, accumulation=8)]
    values = exact(RESNET50, network=0.8, bus=5 * GB / BUS, window=0.66)
    found = model.parts(RESNET50, values, sizes, np.array([0.25]))
    assert found.alone_s.item() == pytest.approx(2.0)
    assert seconds(found) == pytest.approx(seconds(parts(4)))


def test_a_tree_saves_latency_where_nodes_are_many() -> None:
    assert 0.0 < seconds(parts(1024, alpha=1e-4)) - seconds(parts(1024)) < 4 * 255 * 2 * 1e-4


def test_half_the_bytes_take_half_as_long() -> None:
    assert seconds(parts(4, replace(RESNET50, gradient_bytes=102e6 / 4))) == pytest.approx(
        seconds(parts(4)) / 4, rel=0.02
    )


# Rates of text are told, and asked for, in tokens; records count sequences.


def of(records: Sequence[PointRecord], **work: Any) -> list[PointRecord]:
    return [_of(one, replace(one.point.workload, **work)) for one in records]


def _of(one: PointRecord, work: Workload) -> PointRecord:
    """Gradients that 10 Gb/s carry in the 0.05 s that the exchange alone takes."""
    ranks = tuple(
        replace(
            rank,
            windows=tuple(replace(w, samples=w.steps * work.batch_size) for w in rank.windows),
            ready=rank.ready and replace(rank.ready, gradient_bytes=40_000_000),
        )
        for rank in one.ranks
    )
    return replace(one, point=replace(one.point, workload=work), ranks=ranks)


def predicted(tmp_path: Path, *argv: str) -> str:
    if not (folder := tmp_path / "run").exists():
        written(folder, (HEADER, of(run(), unit="tokens", sequence_length=64)))
    assert command.main([str(folder), "--output", str(tmp_path / "out"), *argv]) == 0
    return (tmp_path / "out").read_text()


def test_a_run_of_tokens_is_predicted_in_tokens(tmp_path: Path) -> None:
    """One device does 32 sequences of 64 tokens in 0.1 s."""
    lines = [line.split() for line in predicted(tmp_path, "--world-sizes", "8").splitlines()]
    assert "tokens/s" in next(line for line in lines if line[0] == "N")
    rates = {line[0]: (line[2], line[3]) for line in lines if line[2:3] in (["measured"], ["PREDICTED"])}
    assert rates["1"] == ("measured", "20,480")
    assert 8 * 20480 * 0.5 < float(rates["8"][1].replace(",", "")) < 8 * 20480
    found = json.loads(predicted(tmp_path, "--world-sizes", "8", "--format", "json"))
    assert (found["unit"], found["units_per_sample"]) == ("tokens", 64)
    assert found["measured"][0]["samples_per_s"] == pytest.approx(320)


def test_a_rate_is_given_in_tokens(tmp_path: Path) -> None:
    told = predicted(tmp_path, "--world-sizes", "8", "--rate", "20480")
    assert "what if: --rate 20480.0; measured rows are of digits-cnn, batch 32" in told
    rate = next(line.split()[3] for line in told.splitlines() if line.split()[2:3] == ["PREDICTED"])
    assert 8 * 20480 * 0.5 < float(rate.replace(",", "")) < 8 * 20480


def test_a_batch_that_was_measured_is_predicted_from_its_own_curve(tmp_path: Path) -> None:
    """Of a run with --batch-sizes, not what if from the fastest."""
    small = of(run({1: 0.1, 2: 0.12, 4: 0.14}), batch_size=16)
    folder = written(tmp_path / "run", (HEADER, [*run(), *small]))
    assert command.main([str(folder), "--batch-size", "16", "--output", str(tmp_path / "out")]) == 0
    said = (tmp_path / "out").read_text()
    assert "batch 16 per device" in said.splitlines()[0]
    assert "what if" not in said


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        (["--devices-per-node", "8"], "fake:a over auto, digits-cnn, batch 32 per device"),
        (["--batch-size", "128"], "fake:a over auto, digits-cnn, batch 128 per device"),
        (["--model", "vgg16", "--rate", "154"], "fake:a over auto, vgg16, batch 32 per device"),
        (["--network", "ib:200"], "fake:a over ib:200, digits-cnn, batch 32 per device"),
    ],
)
def test_a_title_is_of_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], title: str
) -> None:
    """Measured rows stay as they were; a note says of what they are. --devices-per-node ended in a traceback."""
    folder = written(tmp_path / "run", large())
    assert command.main([str(folder), *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"PREDICTED, not measured: {title}"
    assert any(line.startswith("note: what if: ") for line in lines)


@pytest.mark.parametrize("name", [r"\1", r"a\gb"])
def test_a_model_of_any_name_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    folder = written(tmp_path / "run", (HEADER, run()))
    assert command.main([str(folder), "--model", name]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_mending_commands_measure_the_same_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(tmp_path / "run", (HEADER, of(run({1: 0.1}), batch_size=16)))
    assert command.main([str(folder)]) == 2
    assert "--model digits-cnn --device cpu --batch-size 16 --world-sizes 1,2" in capsys.readouterr().err


def test_mending_commands_of_a_script_have_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = of(run({1: 0.1, 2: 0.1}), model="train.py", script="train.py --batch-size 16", batch_size=16)
    folder = written(tmp_path / "run", (HEADER, records))
    assert command.main([str(folder), "--batch-size", "64"]) == 2
    said = capsys.readouterr().err
    assert "python -m scaling.run --script 'train.py --batch-size 64' --world-sizes 1 and" in said
