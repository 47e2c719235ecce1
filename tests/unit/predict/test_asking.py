"""Questions to the predictor, and what it infers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.tools.predict import __main__
from scaling.tools.predict import __main__ as command
from scaling.tools.predict.__main__ import CAUSES, Forecast, doubts, forecasts
from scaling.tools.predict.evidence import Case
from scaling.tools.predict.flags import Asked, parse
from scaling.tools.predict.model import Fit, predict
from scaling.tools.predict.setting import Measured, Setting, network, read
from tests.support.scripted_clusters import RESNET50, at, case, learned, measured_at, truth

# What is refused, each in one line with what would mend it, and what what-ifs change.

ROW = Forecast(
    at=at(64), samples_per_s=14_080.4, efficiency=0.86, low=0.79, high=0.92,
    losses=dict(zip(CAUSES, (0.044, 0.02, 0.07, 0.006), strict=True)),
)  # fmt: skip
WIDE = Forecast(
    at=at(512), samples_per_s=90_000.0, efficiency=0.7, low=0.4, high=0.9,
    losses=dict(zip(CAUSES, (0.0, 0.0, 0.3, 0.0), strict=True)),
    unclaimed="the interval is wider than ± 15 points",
)  # fmt: skip
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "predict.txt"


def test_every_row_says_what_it_is_and_has_its_interval() -> None:
    said = __main__.prediction_table(case({8: 0.88}, notes=("what if: nothing",)), (ROW, WIDE))
    assert said == GOLDEN.read_text()


def test_programs_get_the_same() -> None:
    plain = json.loads(__main__.prediction_json(case({8: 0.88}), (ROW, WIDE)))
    assert [row["kind"] for row in plain["predicted"]] == ["PREDICTED", "PREDICTED"]
    assert plain["interval_percent"] == 80
    assert plain["predicted"][0]["losses"]["exposed"] == 0.07


COLD: dict[str, Any] = {
    "cold": True, "rate": 343.0, "model": "resnet50", "batch_size": 64, "devices_per_node": 8, "network": "ib:100",
}  # fmt: skip
TWO_NODES = {4: 0.93, 8: 0.88}


def efficiency(asked: Asked, size: int = 64, **changes: Any) -> float:
    changed = command.what_if(asked, case(TWO_NODES, **changes))
    return forecasts(changed, (size,))[0].efficiency


def _cold() -> list[str]:
    return ["--cold", "--rate", "343", "--model", "resnet50", "--batch-size", "64", "--devices-per-node", "8",
            "--network", "ib:100"]  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "RUN: give either a run's folder, or --cold"),
        (["--cold"], "--cold: needs --rate R, --model NAME"),
        (["r", "--cold"], "RUN: give either a run's folder, or --cold"),
        (["r", "--device", "Tesla V100"], "--device: only with --cold"),
        ([*_cold(), "--rate", "-3"], "--rate -3: a step of 64 samples would take -21.3 s"),
        ([*_cold(), "--rate", "nan"], "--rate nan: a step of 64 samples would take nan s"),
        ([*_cold(), "--parameters", "nan", "--model", "none"], "--parameters: 'nan' is not a number"),
        (["r", "--parameters", "inf"], "--parameters inf: must be at most 1e+13"),
        (["r", "--parameters", "1e15"], "--parameters 1e15: must be at most 1e+13"),
        (["r", "--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["r", "--parameters", "-1"], "--parameters -1: must be at least 1"),
        (["r", "--devices-per-node", "1000000000"], "--devices-per-node 1000000000: must be at most 256"),
        (["r", "--format", "xml"], "--format: 'xml' is not one of table, json"),
    ],
)
def test_command_lines_that_cannot_be_obeyed(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        asked = parse(argv)
        assert asked is not None
        command.case_of(asked, None)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tcp:0.000001", "give 0.1 to 1,600 Gb/s of one card, 1 to 16 cards"),
        ("ib", "write KIND:GBIT"),
        ("ib:100x", "write KIND:GBIT"),
        ("efa:400", "unknown kind"),
        ("ib:100x999", "1 to 16 cards"),
        ("ib:99999", "0.1 to 1,600 Gb/s"),
        ("tcp:0", "give 0.1 to 1,600 Gb/s of one card, 1 to 16 cards"),
    ],
)
def test_networks_without_a_prior(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        network(words)


def test_networks_as_the_model_takes_them() -> None:
    assert network("ib:200") == ("rdma", 25e9, 1)
    assert network("roce:100x4") == ("rdma", 50e9, 4)
    assert network("eth:10") == ("tcp", 1.25e9, 1)
    assert network("tcp:25x2") == ("tcp", 6.25e9, 2)


@pytest.mark.parametrize("rate", [1e9, 1e-5])
def test_steps_that_no_device_takes_are_refused(rate: float) -> None:
    """Rows of 0 % were printed of them."""
    with pytest.raises(UsageError, match="a step of 64 samples would take"):
        command.case_of(Asked(**{**COLD, "rate": rate}), None)
    with pytest.raises(UsageError, match="a step of 64 samples would take"):
        command.what_if(Asked(rate=rate), case({4: 0.9}))


def test_an_efficiency_below_all_published_ones_is_not_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*_cold(), "--world-sizes", "64"]
    asked[asked.index("343")], asked[asked.index("ib:100")] = "300000", "tcp:1"
    assert command.main(asked) == 0
    out = capsys.readouterr().out
    assert "not claimed: an efficiency below 5 %, which no published cluster has; check --rate, which is" in out


def test_the_table_has_measured_intervals() -> None:
    seen = Measured(at=at(8), samples_per_s=1802.0, efficiency=0.88, low=0.861, high=0.899)
    said = __main__.prediction_table(case({8: 0.88}, measured=(seen,)), (ROW,))
    assert "88.0 %  86 to 90" in said
    assert said.endswith("; measured 95 %, over rounds\n")


def test_gloo_sends_tcp_over_infiniband() -> None:
    assert network("ib:100", verbs=False) == network("tcp:100")
    sockets = replace(RESNET50, carrier="cpu")
    asked, gloo = Asked(network="ib:100"), case(TWO_NODES, sockets, strategy="torch:gloo")
    assert str(getattr(command.what_if(asked, gloo).asked, "link", "")) == "tcp"
    assert command.supposed(asked, gloo) == (
        "what if: --network ib:100; torch:gloo sends TCP there, not RDMA; measured rows are of resnet50, batch 64",
    )
    assert str(getattr(command.what_if(asked, case(TWO_NODES)).asked, "link", "")) == "rdma"


def test_world_sizes() -> None:
    def sizes(words: str) -> tuple[int, ...]:
        return command.world_sizes(Asked(world_sizes=words), case(TWO_NODES))

    assert sizes("32..256") == (32, 64, 128, 256)
    assert sizes("64,16") == (16, 64)
    assert sizes("") == (16, 32, 64, 128, 256)
    for wrong in ("0", "32-64", "64..32", "a", "-4", "9" * 5000):
        with pytest.raises(UsageError, match="write 32,64,128 or"):
            sizes(wrong)
    with pytest.raises(UsageError, match=r"1024: more than 512, 64 times .* mpirun -np 16 python -m scaling.run"):
        sizes("1024")


def test_beyond_one_node_needs_a_network() -> None:
    inside = case({2: 0.97, 4: 0.93}, setting=replace(RESNET50, link="unknown"))
    assert command.world_sizes(Asked(world_sizes="4"), inside) == (4,)
    with pytest.raises(UsageError, match="--world-sizes 8: the network between nodes of 4 devices is unknown"):
        command.world_sizes(Asked(world_sizes="8"), inside)
    with pytest.raises(UsageError, match=r"^N=8: the network between nodes of"):
        command.world_sizes(Asked(), inside)
    assert command.world_sizes(Asked(), case({2: 0.97}, setting=inside.setting)) == (4,)
    with pytest.raises(UsageError, match=r"^N=16: the network between nodes .* is unknown: give --network"):
        command.world_sizes(Asked(), case(TWO_NODES, setting=replace(RESNET50, link="unknown")))
    assert command.world_sizes(Asked(world_sizes="8", network="ib:100"), inside) == (8,)


def test_another_batch_or_model_must_have_run_on_one_device() -> None:
    with pytest.raises(UsageError, match=r"--batch-size 96: .*mpirun -np 1 .*--batch-size 96 --world-sizes 1"):
        efficiency(Asked(batch_size=96))
    with pytest.raises(UsageError, match=r"--model vgg16: .*--model vgg16 .*--rate"):
        efficiency(Asked(model="vgg16"))
    with pytest.raises(UsageError, match="did you mean 'vgg16'"):
        efficiency(Asked(model="vgg1", rate=100.0))


def test_what_ifs_go_the_way_they_should() -> None:
    slow: dict[str, Any] = {"setting": replace(RESNET50, link="tcp", line_bytes_per_s=1.25e9)}
    usual = efficiency(Asked(), **slow)
    assert efficiency(Asked(network="ib:200"), **slow) > usual
    assert efficiency(Asked(batch_size=128), **slow) > usual
    assert efficiency(Asked(model="vgg16", rate=150.0), **slow) < usual


def test_where_less_is_lost_less_is_carried_on() -> None:
    """A cluster that is far better than the equations say: what is hardly slowed gains nothing beyond 100 %."""
    vgg16 = replace(RESNET50, gradient_bytes=553e6, link="tcp", line_bytes_per_s=1.25e9, overlap="serial")
    one = case({4: 0.62, 8: 0.45}, vgg16)
    (row,) = forecasts(command.what_if(Asked(rate=2.0), one), (8,))
    assert 0.9 < row.efficiency <= 1.0


def test_another_batch_is_less_certain_than_the_one_that_was_measured() -> None:
    """And the farther away, the less of the unexplained loss is carried on."""
    far = case({4: 0.85, 8: 0.7})

    def width(asked: Asked) -> float:
        (row,) = forecasts(command.what_if(asked, far), (8,))
        return row.high - row.low

    assert width(Asked()) < width(Asked(rate=257.0)) < 1.5 * width(Asked()) < width(Asked(rate=1000.0))


def test_a_row_does_not_depend_on_what_else_is_asked() -> None:
    changed = command.what_if(Asked(), case(TWO_NODES))
    assert forecasts(changed, (16, 32, 64))[2] == forecasts(changed, (64,))[0]


def test_cold_says_what_it_assumes_and_is_wide() -> None:
    found = command.case_of(Asked(**COLD), None)
    row = forecasts(found, (64,))[0]
    assert "nothing was measured" in found.notes[0]
    assert row.high - row.low > 0.1
    assert row.samples_per_s == pytest.approx(64 * 343 * row.efficiency)


def test_rows_with_too_wide_an_interval_are_not_claimed() -> None:
    slow = replace(RESNET50, gradient_bytes=1.3e9, link="unknown", line_bytes_per_s=0.0)
    changed = command.what_if(Asked(), case({4: 0.6}, setting=slow))
    assert forecasts(changed, (64,))[0].unclaimed


def test_points_of_other_sizes_stay_where_they_are() -> None:
    """Predicting what was measured gives it back."""
    seen = measured_at(at(8), 0.88, 0.005)
    changed = command.what_if(Asked(), case(TWO_NODES))
    assert forecasts(changed, (8,))[0].efficiency == pytest.approx(seen.efficiency, abs=0.01)


def test_a_bad_fit_is_a_doubt() -> None:
    """A noisy efficiency far below all that was ever published of such a cluster."""
    assert doubts(case(TWO_NODES)) == ()
    one = case({4: 0.4})
    seen = measured_at(at(4), 0.4, 0.06)
    (said,) = doubts(one._replace(observed=(seen,)))
    assert said.startswith("N=4 was measured at 40 % (36 to 45 %), but published clusters like it have ")


def test_an_interval_that_reaches_the_model_is_no_doubt() -> None:
    """A measured interval of 18 to 350 % contradicts nothing."""
    assert doubts(case({4: 0.6})._replace(observed=(measured_at(at(4), 0.79, 0.76),))) == ()


def test_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for argv in (["/nowhere"], ["--cold", "--rate", "3"], [str(tmp_path)], [str(tmp_path / "file")],
                 [*_cold(), "--world-sizes", "2048"], [*_cold(), "--world-sizes", "999999999"]):  # fmt: skip
        assert command.main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("scaling predict: error: ")


def test_the_cold_command_prints_predicted_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*_cold(), "--world-sizes", "8..1024"]) == 0
    out, _ = capsys.readouterr()
    rows = [line for line in out.splitlines() if line.split()[2:3] == ["PREDICTED"]]
    assert [int(row.split()[0].replace(",", "")) for row in rows] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert all(" to " in row and " % " in row for row in rows)


# What is inferred: seeds, the residual that is carried, coverage, and what own measurements are worth.

PRIORS = read()


def ends(found: Fit, world_size: int) -> tuple[float, float, float]:
    middle, low, high, *_ = predict(found, at(world_size))
    return low, middle, high


def test_the_same_twice() -> None:
    assert ends(learned(RESNET50, PRIORS, {4: 0.9}), 64) == ends(learned(RESNET50, PRIORS, {4: 0.9}), 64)


def test_what_was_measured_is_predicted_as_measured() -> None:
    low, middle, high = ends(learned(RESNET50, PRIORS, {4: 0.83}), 4)
    assert middle == pytest.approx(0.83, abs=0.01)
    assert high - low < 0.03


def test_what_the_model_lacks_at_the_last_point_is_carried_on() -> None:
    """A cluster that is 10 points worse than another stays so."""
    good, bad = (ends(learned(RESNET50, PRIORS, {4: 0.98 - off, 8: 0.97 - off}), 64)[1] for off in (0.0, 0.10))
    assert 0.07 < good - bad < 0.15


def test_intervals_widen_with_the_distance_and_narrow_with_points() -> None:
    def width(seen: dict[int, float], size: int) -> float:
        low, _, high = ends(learned(RESNET50, PRIORS, seen), size)
        return high - low

    assert width({4: 0.95}, 16) < width({4: 0.95}, 256)
    assert width({4: 0.95, 8: 0.92}, 64) < width({4: 0.95}, 64) < width({}, 64)


@pytest.mark.parametrize(("seen", "highest"), [({}, 1.02), ({4: 0.99, 8: 0.98}, 1.02), ({4: 1.05}, 1.05 * 1.02)])
def test_no_device_does_more_than_superlinear_rows_begin_at(seen: dict[int, float], highest: float) -> None:
    """Steps of a minute: next to nothing is lost, and ends of 106 % and more were drawn."""
    found = learned(replace(RESNET50, step_s=60.0), PRIORS, seen)
    for size in (8, 64, 1024):
        low, middle, high = ends(found, size)
        assert low < middle < high <= highest + 1e-9


def test_a_point_that_contradicts_pulls_and_widens() -> None:
    """16 devices at 52.6 % were left out as unexplained, and 32 predicted at 55.2 %."""
    changed = [command.what_if(Asked(), case({4: 0.95, 16: value})) for value in (0.526, 0.9)]
    (bad,), (usual,) = (forecasts(one, (32,)) for one in changed)
    assert bad.efficiency < 0.526
    assert usual.efficiency > 0.8
    assert bad.high / bad.low - 1 > 3 * (usual.high / usual.low - 1)


def measured_once(value: float, noise: float) -> Case:
    return case({})._replace(observed=(measured_at(at(8), value, noise),))


def test_a_noisy_point_weighs_little_and_its_interval_reaches_what_others_have() -> None:
    """70.8 % (33 to 152) was measured, and 88.6 % (75 to 102) claimed of 64 without a word."""
    noisy, sound = measured_once(0.708, 0.39), measured_once(0.708, 0.01)
    (unsure,), (sure,), (cold,) = (forecasts(one, (64,)) for one in (noisy, sound, case({})))
    assert sure.efficiency < unsure.efficiency <= 0.708
    assert sure.high < cold.low < unsure.high


def test_rows_that_rest_on_the_priors_say_so() -> None:
    cases = (measured_once(0.99, 0.39), measured_once(0.99, 0.01), case({}))
    assert [forecasts(one, (64,))[0].by_priors for one in cases] == [True, False, False]


@pytest.mark.parametrize("seen", [(), (4, 8)])
def test_80_of_100_clusters_are_inside(seen: tuple[int, ...]) -> None:
    """Clusters drawn from the priors themselves; of 40, 32 are expected, and 25 to 39 are within 3 sd."""
    points = [*(at(size) for size in seen), at(64)]
    inside = 0
    for seed in range(40):
        drawn = truth(RESNET50, PRIORS, points, seed)
        low, _, high = ends(learned(RESNET50, PRIORS, dict(zip(seen, drawn, strict=False))), 64)
        inside += low <= drawn[-1] <= high
    assert 25 <= inside <= 39


def test_emulated_devices_lose_the_wire_time_beyond_backward() -> None:
    """AlexNet on P100s of 2,987 images/s at batch 512, of which a node of four was measured: by hand, two thirds
    of a step hide the ring's bytes at the line's rate less TCP's framing. Real devices lose more."""
    alone_s, gradient_bytes, world_size, line_bytes_per_s = 512 / 2987, 244.4e6, 16, 1.25e9
    emulated = Setting(
        gradient_bytes=gradient_bytes, step_s=alone_s, bus="loopback", link="tcp",
        line_bytes_per_s=line_bytes_per_s, emulated=True,
    )  # fmt: skip
    seen = {2: 0.999, 4: 0.997}
    moved_s = 2 * (world_size - 1) / world_size * gradient_bytes / (0.949 * line_bytes_per_s)
    expected = alone_s / (alone_s + max(0.0, moved_s - 0.66 * alone_s))
    low, middle, high = ends(learned(emulated, PRIORS, seen), world_size)
    assert middle == pytest.approx(expected, abs=0.02)  # sleeps end late, too
    assert low < expected < high
    real = learned(replace(emulated, emulated=False), PRIORS, seen)
    assert ends(real, world_size)[1] < min(expected, middle)
