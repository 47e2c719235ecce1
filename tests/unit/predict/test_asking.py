"""What is refused, each in one line with what would mend it, and what what-ifs change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.tools.predict import __main__ as command
from scaling.tools.predict import asking, priors
from scaling.tools.predict.case import Measured, network
from scaling.tools.predict.flags import Asked, parse
from scaling.tools.predict.forecast import forecasts, measure_next
from scaling.tools.predict.setting import At, Observed
from tests.support.scripted_clusters import RESNET50, at, case

PRIORS = priors.read()
COLD: dict[str, Any] = {
    "cold": True, "rate": 343.0, "model": "resnet50", "batch_size": 64, "devices_per_node": 8, "network": "ib:100",
}  # fmt: skip
TWO_NODES = {4: 0.93, 8: 0.88}


def efficiency(asked: Asked, size: int = 64, **changes: Any) -> float:
    look = asking.look(asked, case(TWO_NODES, **changes), PRIORS)
    return forecasts(look, (size,))[0].efficiency


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "RUN: give a run's folder, or --cold"),
        (["--cold"], "--cold: needs --rate R, --model NAME"),
        (["r", "--cold"], "--cold: predicts without a run"),
        (["r", "--compress", "0.5"], "--compress 0.5: divides"),
        (["r", "--device", "Tesla V100"], "--device: names the device of --cold"),
        (["r", "--rate", "-3"], "--rate -3: samples/s of one device; above 0"),
        (["r", "--target", "0", "--prices", "p"], "--target 0: samples/s; above 0"),
        (["r", "--rate", "nan"], "--rate nan: samples/s of one device; above 0"),
        (["r", "--compress", "inf"], "--compress inf: divides"),
        (["r", "--compress", "1e9"], "--compress 1e+09: divides"),
        (["r", "--target", "100"], "--target: needs --prices FILE"),
        (["r", "--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["r", "--format", "xml"], "'--format'"),
    ],
)
def test_command_lines_that_cannot_be_obeyed(argv: list[str], said: str) -> None:
    with pytest.raises(UsageError) as error:
        asked = parse(argv)
        assert asked is not None
        asking.case_of(asked, None)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tcp:0.000001", "0.1 Gb/s or more"),
        ("ib", "not KIND:GBIT"),
        ("ib:100x", "not KIND:GBIT"),
        ("efa:400", "no series taught"),
        ("tcp:0", "0.1 Gb/s or more"),
    ],
)
def test_networks_without_a_prior(words: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        network(words)


def test_networks_as_the_model_takes_them() -> None:
    assert network("ib:200") == ("rdma", 25e9)
    assert network("roce:100x4") == ("rdma_several", 50e9)
    assert network("eth:10") == ("tcp10", 1.25e9)
    assert network("tcp:25x2") == ("tcp", 6.25e9)
    assert network("ib:100", emulated=True) == ("tcp10", 12.5e9)


@pytest.mark.parametrize("rate", [1e9, 1e-5])
def test_steps_that_no_device_takes_are_refused(rate: float) -> None:
    """Rows of 0 % were printed of them."""
    with pytest.raises(UsageError, match="a step of 64 samples would take"):
        asking.case_of(Asked(**{**COLD, "rate": rate}), None)
    with pytest.raises(UsageError, match="a step of 64 samples would take"):
        asking.look(Asked(rate=rate), case({4: 0.9}), PRIORS)


def test_nodes_that_were_not_filled_are_told() -> None:
    spread = case({4: 0.9})._replace(
        measured=(Measured(at=At(world_size=4, nodes=4), samples_per_s=1, efficiency=1),)
    )
    assert asking.supposed(Asked(), spread) == ("what if: nodes are filled; N=4 was measured on 4 nodes",)
    assert asking.supposed(Asked(), case({4: 0.9, 8: 0.8})) == ()


def test_world_sizes() -> None:
    def sizes(words: str) -> tuple[int, ...]:
        return asking.world_sizes(Asked(world_sizes=words), case(TWO_NODES))

    assert sizes("32..256") == (32, 64, 128, 256)
    assert sizes("64,16") == (16, 64)
    assert sizes("") == (16, 32, 64, 128, 256)
    for wrong in ("0", "32-64", "64..32", "a", "-4", "9" * 5000):
        with pytest.raises(UsageError, match="not 32,64,128 nor"):
            sizes(wrong)
    with pytest.raises(UsageError, match=r"1024: more than 512, 64 times .* mpirun -np 16 python -m scaling.run"):
        sizes("1024")


def test_beyond_one_node_needs_a_network() -> None:
    inside = case({2: 0.97, 4: 0.93}, setting=replace(RESNET50, link="none"))
    assert asking.world_sizes(Asked(world_sizes="4"), inside) == (4,)
    with pytest.raises(UsageError, match="only one node was measured"):
        asking.world_sizes(Asked(world_sizes="8"), inside)
    assert asking.world_sizes(Asked(world_sizes="8", network="ib:100"), inside) == (8,)


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
    assert efficiency(Asked(compress=8.0), **slow) > usual
    assert efficiency(Asked(batch_size=128), **slow) > usual
    assert efficiency(Asked(model="vgg16", rate=150.0), **slow) < usual


def test_where_less_is_lost_less_is_carried_on() -> None:
    """A cluster that is far better than the equations say: what is hardly slowed gains nothing beyond 100 %."""
    vgg16 = replace(RESNET50, gradient_bytes=553e6, link="tcp10", line_bytes_per_s=1.25e9, overlap="serial")
    one = case({4: 0.62, 8: 0.45}, vgg16)
    (row,) = forecasts(asking.look(Asked(rate=2.0), one, PRIORS), (8,))
    assert 0.9 < row.efficiency <= 1.0


def test_another_batch_is_less_certain_than_the_one_that_was_measured() -> None:
    """Even of nearly the same rate."""

    def width(asked: Asked) -> float:
        (row,) = forecasts(asking.look(asked, case(TWO_NODES), PRIORS), (8,))
        return row.high - row.low

    assert width(Asked(rate=257.0)) > 1.5 * width(Asked())


def test_a_row_does_not_depend_on_what_else_is_asked() -> None:
    look = asking.look(Asked(), case(TWO_NODES), PRIORS)
    assert forecasts(look, (16, 32, 64))[2] == forecasts(look, (64,))[0]


def test_cold_says_what_it_assumes_and_is_wide() -> None:
    found = asking.case_of(Asked(**COLD), None)
    look = asking.look(Asked(**COLD), found, PRIORS)
    row = forecasts(look, (64,))[0]
    assert "nothing was measured" in found.notes[0]
    assert row.high - row.low > 0.1
    assert row.samples_per_s == pytest.approx(64 * 343 * row.efficiency)


def test_rows_with_too_wide_an_interval_are_not_claimed() -> None:
    slow = replace(RESNET50, gradient_bytes=1.3e9, link="unknown", line_bytes_per_s=0.0)
    look = asking.look(Asked(), case({4: 0.6}, setting=slow), PRIORS)
    assert not forecasts(look, (64,))[0].claimed


def test_what_to_measure_next_narrows_what_was_asked() -> None:
    look = asking.look(Asked(), case(TWO_NODES), PRIORS)
    found = measure_next(look, 256)
    assert found is not None
    assert found.what == "N=32"
    assert found.then < 0.8 * found.now
    more = case({**TWO_NODES, 32: 0.85})
    there = asking.look(Asked(), more, PRIORS)
    row = forecasts(there, (256,))[0]
    assert (row.high - row.low) / 2 == pytest.approx(found.then, rel=0.5)


def test_points_of_other_sizes_stay_where_they_are() -> None:
    """Predicting what was measured gives it back."""
    seen = Observed(at=at(8), value=0.88, noise=0.005)
    look = asking.look(Asked(), case(TWO_NODES), PRIORS)
    assert forecasts(look, (8,))[0].efficiency == pytest.approx(seen.value, abs=0.01)


def test_where_the_model_does_not_fit_what_was_measured_it_says_so() -> None:
    """A noisy efficiency far below all that was ever published of such a cluster."""
    fits = asking.look(Asked(), case(TWO_NODES), PRIORS)
    assert fits.doubts == ()
    one = case({4: 0.6})
    seen = Observed(at=at(4), value=0.6, noise=0.06)
    (said,) = asking.look(Asked(), one._replace(known=one.known._replace(observed=(seen,))), PRIORS).doubts
    assert said.startswith("N=4 was measured at 60 %, where the model says ")


def test_compression_is_a_supposition_without_a_run_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*_cold(), "--compress", "4", "--world-sizes", "8"]) == 0
    assert "what compressing them costs is not known" in capsys.readouterr().out


def test_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("walk = 3")
    for argv in (["/nowhere"], ["--cold", "--rate", "3"], [*_cold(), "--priors", str(tmp_path / "bad.toml")],
                 [*_cold(), "--world-sizes", "2048"], [*_cold(), "--without", "node1"]):  # fmt: skip
        assert command.main(argv) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith("scaling predict: error: ")


def _cold() -> list[str]:
    return ["--cold", "--rate", "343", "--model", "resnet50", "--batch-size", "64", "--devices-per-node", "8",
            "--network", "ib:100"]  # fmt: skip


def test_the_cold_command_prints_predicted_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*_cold(), "--world-sizes", "8..1024"]) == 0
    out, _ = capsys.readouterr()
    rows = [line for line in out.splitlines() if line.split()[2:3] == ["PREDICTED"]]
    assert [int(row.split()[0].replace(",", "")) for row in rows] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert all(" to " in row and " % " in row for row in rows)
