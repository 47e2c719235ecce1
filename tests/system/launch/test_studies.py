"""The studies: tables beside published ones, wrong calls, how they start runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from launch.studies import _addfor as addfor
from launch.studies import _beeva as beeva
from launch.studies import _dell_p100 as dell
from launch.studies import _digits as digits
from launch.studies import _domino as domino
from launch.studies import _minimaxir as minimaxir
from launch.studies import _study as study
from scaling.workloads import data, models, weights
from scaling.workloads.data.images import listing
from scaling.workloads.feeds.pictures import decode
from scaling.workloads.specs import Images
from tests.support import debian
from tests.support.fresh_machine import Machine

# Published studies beside what came out here: the table, and what a wrong call gets.

FOLDER = Path(__file__).parents[3] / "launch/studies"


def row(word: str, size: int, rate: float | None, verdict: str | None = "VERIFIED") -> dict[str, Any]:
    return {
        "interconnect": word,
        "world_size": size,
        "samples_per_s": None if rate is None else {"mean": rate},
        "speedup": None if rate is None else {"mean": rate / 220},
        "receipt": verdict and {"verdict": verdict},
    }


def test_published_and_measured_stand_side_by_side() -> None:
    rows = [
        row("ib", 1, 219.9, None),
        row("ib", 8, 1755.0),
        row("ethernet", 8, 1600.0, "MISLABELLED"),
        row("ethernet", 16, None),
    ]
    lines = dell.beside("googlenet", rows).splitlines()
    assert [line.split() for line in lines[3:]] == [
        ["1", "220", "1.00", "220", "1.00", "-", "-"],
        ["2", "411", "1.87", "-", "-", "-", "-"],
        ["4", "730", "3.32", "-", "-", "-", "-"],
        ["8", "1472", "6.69", "1755", "7.98", "MISLABELLED", "1600", "7.27"],
        ["12", "2227", "10.12", "-", "-", "-", "-"],
        ["16", "2955", "13.43", "-", "-", "failed", "-", "-"],
    ]
    assert {len(line) for line in lines[3:]} == {91}


def test_each_row_says_what_it_cannot_know() -> None:
    """What its devices were told is no finding, and what nobody emulates is not in it."""
    last = {
        **row("ib", 16, 2857.0),
        "emulation": {"error_fraction": 0.005},
        "footnotes": ["FITTED: at batch 36", "not emulated: PCIe 3.0 x16 inside a node", "no comm control"],
    }
    lines = dell.unknown("googlenet", [row("ib", 1, 220.0, None), last]).splitlines()
    by_size = {line.split()[0]: line for line in lines if line[:4].strip()}
    assert set(map(str, dell.SIZES)) <= set(by_size)
    assert "the published rate" in by_size["1"]
    assert "could have failed" in by_size["2"]
    assert "fitted to this row" in by_size["4"]
    assert "parameter server" in by_size["16"]
    assert [line.strip() for line in lines[-3:]] == [
        "InfiniBand 100 Gb/s: the emulator is up to 0.5 % of a step too slow",
        "FITTED: at batch 36",
        "not emulated: PCIe 3.0 x16 inside a node",
    ]


@pytest.mark.parametrize(
    ("rate", "percent", "bounded"), [(1600.0, 79.0, True), (1600.0, 81.0, False), (None, None, False)]
)
def test_a_row_that_failed_or_whose_machine_was_busy_claims_no_bound(
    rate: float | None, percent: float | None, bounded: bool
) -> None:
    found = {
        **row("ethernet", 8, rate),
        "emulation": {"error_fraction": 0.005},
        "machine_cpu_percent": percent,
        "footnotes": ["CPUs were over 80 % busy while they emulated"],
    }
    text = dell.unknown("googlenet", [found])
    assert ("the emulator is up to 0.5 %" in text) == bounded
    assert "CPUs were over 80 % busy" in text


def test_of_inception_speedups_alone_were_published() -> None:
    lines = dell.beside("inception_v3", []).splitlines()
    assert lines[-1].split() == ["16", "-", "14.70", "-", "-", "-", "-"]


@pytest.mark.parametrize("study", ["addfor", "beeva", "dell-p100", "domino", "minimaxir"])
def test_a_study_without_an_installation_says_what_to_type(machine: Machine, study: str) -> None:
    done = machine.run(f"launch/studies/{study}")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("./launch/install torch installs it, or activate its environment")


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("dell-p100", ["--rounds", "0"], "argument --rounds: 0: at least 1"),
        ("dell-p100", ["--only", "resnet50"], "argument --only: invalid choice: 'resnet50'"),
        ("dell-p100", ["--fast"], "unrecognized arguments: --fast"),
        ("addfor", ["--batch-size", "0"], "argument --batch-size: 0: at least 1"),
        ("addfor", ["--framework", "caffe"], "argument --framework: invalid choice: 'caffe'"),
        ("minimaxir", ["--price", "nan"], "argument --price: nan: dollars an hour, from 0"),
        ("minimaxir", ["--only", "resnet50"], "argument --only: invalid choice: 'resnet50'"),
        ("minimaxir", ["--ranks", "none"], "argument --ranks: none: at least 1"),
        ("domino", ["--data-dir", "/", "--seeds", "0,0"], "argument --seeds: 0,0: numbers from 0, each once"),
        ("domino", ["--data-dir", "/", "--price", "-1"], "argument --price: -1: dollars an hour, from 0"),
        ("domino", ["--data-dir", "/", "--train-samples", "0"], "argument --train-samples: 0: at least 1"),
        ("beeva", ["--full"], "--full: needs --weights, a file of ResNet-50's, and --data-dir"),
        ("beeva", ["--weights", "a.pth"], "--weights and --data-dir are of --full"),
        ("beeva", ["--ranks", "0"], "argument --ranks: 0: at least 1"),
        ("domino", ["--data-dir", "/"], "scaling: error: --data-dir /: --data fashion-mnist has no train-images"),
    ],
)
def test_a_wrong_call_measures_nothing(study: str, arguments: list[str], message: str) -> None:
    done = subprocess.run([FOLDER / study, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


# The tables of Addfor's and minimaxir's studies, and what a wrong call gets.


def batch(size: int, name: str, seconds: float | None, over: float | None = None) -> dict[str, Any]:
    return {
        "batch_size": size, "pass": name, "step_s": None if seconds is None else {"mean": seconds},
        "over_smaller": None if over is None else {"mean": over},
        "smaller_batch_size": None if over is None else size // 2, "is_worse": over is not None and over > 2,
        "failed": {"cause": "oom"} if seconds is None else None,
    }  # fmt: skip


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[2:]]


def test_both_passes_of_each_network_and_what_ran_out_of_memory() -> None:
    found = [
        ("alexnet", {"minibatches": [batch(64, "forward", 0.1), batch(64, "backward", 0.35)]}),
        ("vgg16", {"minibatches": [batch(64, "forward", 1.5), batch(64, "backward", None)]}),
    ]
    assert cells(addfor.networks(found, 64, "torch:plain")) == [
        ["alexnet", "100.0", "350.0"],
        ["vgg16", "1,500.0", "out", "of", "memory"],
    ]


def test_twice_the_batch_in_more_than_twice_the_time_is_said() -> None:
    """As the GTX 1080 did with VGG."""
    rows = [
        batch(64, "forward", 0.1), batch(64, "backward", 0.42028),
        batch(128, "forward", 0.2, 2.0), batch(128, "backward", 0.89986, 2.14),
    ]  # fmt: skip
    assert cells(addfor.minibatches({"minibatches": rows})) == [
        ["64", "100.0", "420.3", "-"],
        ["128", "200.0", "899.9", "2.14", "more", "than", "twice"],
    ]
    assert cells(addfor.published()) == [
        ["64", "420.28", "-"], ["128", "899.86", "2.14", "more", "than", "twice"],
    ]  # fmt: skip


def test_what_failed_is_no_half() -> None:
    """Of the batch before the one that failed, four times the batch takes four times as long."""
    rows = [batch(2, "backward", 0.1), batch(4, "backward", None), batch(8, "backward", 0.4, 4.0)]
    rows[2]["smaller_batch_size"] = 2
    assert cells(addfor.minibatches({"minibatches": rows}))[2] == ["8", "-", "400.0", "-"]


def more_studies_row(size: int, rate: float | None, **lost: float) -> dict[str, Any]:
    return {"world_size": size, "samples_per_s": rate and {"mean": rate}, "breakdown": lost}


def test_an_epoch_is_priced_by_the_machine() -> None:
    """60,000 images at 1,000 a second are a minute, and 0.12 dollars an hour 0.002."""
    rows = [
        more_studies_row(1, 1000.0),
        more_studies_row(2, 1500.0, contention=0.05, waiting=0.2, unexplained=-0.3),
        more_studies_row(4, None),
    ]
    assert cells(minimaxir.here({"mnist-mlp": {"rows": rows}}, 0.12)) == [
        ["mnist-mlp", "1", "1,000", "60.0", "1.00", "0.0020"],
        ["mnist-mlp", "2", "1,500", "40.0", "0.67", "0.0013", "waiting", "20", "%"],
        ["mnist-mlp", "4", "failed", "-", "-", "-"],
    ]


# The studies that train to an accuracy: their tables, what a wrong call gets, and Domino's once, small.

SPLITS: tuple[data.Split, ...] = ("train", "test")


def training(**fields: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "world_size": 1, "device": "cpu", "regime": {"epochs": 2, "train_samples": 1000},
        "data_samples": {"train": 60_000, "test": 10_000}, "held_out": 500, "seeds": [0, 1],
        "top1": [0.5, 0.812], "top1_by_seed": [[0.4, 0.8], [0.6, 0.824]], "train_s": 150.0,
        "confusion": [[80, 20, *[0] * 8], *[[0] * 10] * 9],
    }  # fmt: skip
    return {**own, **fields}


# ---------------------------------------------------------------- BEEVA


def tuned(size: int, batch: int, top1: float, rate: float) -> dict[str, Any]:
    return training(
        world_size=size, batch_size=batch, update_samples=size * batch, top1=[top1], samples_per_s=rate,
        regime={"epochs": 1, "rate": 0.00125 * size * batch / 16},
    )  # fmt: skip


def test_fine_tuning_stands_beside_drawn_weights_and_one_device() -> None:
    found = [tuned(1, 16, 0.956, 130.0), tuned(2, 16, 0.923, 206.0)]
    drawn = [tuned(1, 16, 0.862, 0.0), tuned(2, 16, 0.79, 0.0)]
    table = beeva.here(found, drawn)
    assert table.splitlines()[0] == "Held-out top-1 after 1 epoch"
    assert cells(table) == [
        ["1", "16", "0.00125", "95.6", "86.2", "130", "1.00"],
        ["2", "32", "0.0025", "92.3", "79.0", "206", "1.58"],
    ]
    assert cells(beeva.here(found, []))[1] == ["2", "32", "0.0025", "92.3", "-", "206", "1.58"]
    assert [line[-3:] for line in cells(beeva.published())] == [["to", "84.3", "86.5"], ["7.52", "-", "75.5"]]


def test_both_tasks_are_trees_of_pictures_with_a_fifth_held_out(tmp_path: Path) -> None:
    for place, names in zip(digits.halves(tmp_path), ("01234", "56789"), strict=True):
        train, val = (listing(place, data.spec("folders"), split) for split in SPLITS)
        assert "".join(train.classes) == names
        assert len(val) / (len(train) + len(val)) == pytest.approx(0.2, abs=0.01)
        image = decode(train.read(0)[0], Images(channels=1, height=8, width=8))
        assert image.shape == (1, 8, 8)
        assert image.max() == 255


def test_without_a_head_weights_begin_the_last_layer_anew(tmp_path: Path) -> None:
    spec, file = models.spec("digits-cnn"), tmp_path / "learnt.npz"
    drawn = dict(weights.draw(spec, seed=1))
    weights.save(str(file), spec, drawn, ())
    digits.headless(file)
    again = dict(weights.draw(replace(spec, weights=str(file)), seed=2))
    *body, weight, _bias = drawn
    assert all((again[name] == drawn[name]).all() for name in body)
    assert (again[weight] == dict(weights.draw(spec, seed=2))[weight]).all()


# ---------------------------------------------------------------- Domino


def test_minutes_top1_and_cost_stand_beside_what_was_published() -> None:
    """12.8 minutes at 3.06 dollars an hour are the study's 0.6528 dollars, 51.6 at 0.90 its 0.774."""
    assert cells(domino.beside(training(), 3.06)) == [
        ["here,", "cpu", "x", "1", "1,000", "2", "2.5", "81.2", "3.06", "0.1275"],
        ["published,", "p3.2xlarge,", "V100", "48,000", "20", "to", "70", "12.8", "-", "3.06", "0.6528"],
        ["published,", "p2.xlarge,", "K80", "48,000", "20", "to", "70", "51.6", "-", "0.90", "0.7740"],
    ]
    whole = training(regime={"epochs": 20, "train_samples": 0})
    assert cells(domino.beside(whole, None))[0][4:] == ["60,000", "20", "2.5", "81.2", "-", "-"]


def test_both_runs_and_their_mean() -> None:
    table = domino.runs(training())
    assert table.splitlines()[0] == "Top-1, %, of 500 of 10,000 held-out pictures"
    assert cells(table) == [["seed", "0", "40.0", "80.0"], ["seed", "1", "60.0", "82.4"], ["mean", "50.0", "81.2"]]


def test_confusion_is_in_percent_of_a_class() -> None:
    first, second, *_ = cells(domino.confusion(training()))
    assert first == ["T-shirt/top", "80", "20", *["."] * 8]
    assert second == ["Trouser", *["."] * 10]


def test_without_the_data_it_says_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(domino, "DEBIAN", tmp_path / "none")
    with pytest.raises(SystemExit) as ended:
        domino.main([])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "none: apt-get install dataset-fashion-mnist, or give --data-dir" in said


def test_a_folder_is_meant_where_the_command_was_called(tmp_path: Path) -> None:
    command = [str(FOLDER / "domino"), "--data-dir", "here"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert f"--data-dir {tmp_path}/here: no such folder" in done.stderr


def test_domino_s_network_is_trained_on_a_few_real_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    place = debian.unpacked("dataset-fashion-mnist", data.spec("fashion-mnist").usual[0])
    if isinstance(place, str):
        pytest.skip(place)
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    few = ("--train-samples", "16", "--test-samples", "20", "--epochs", "2", "--seeds", "0")
    assert domino.main([*few, "--data-dir", str(place)]) == 0
    said = capfd.readouterr().out
    assert "Top-1, %, of 20 of 10,000 held-out pictures" in said
    assert "on 16 of 60,000 samples" in " ".join(said.split())
    assert [one.name for one in tmp_path.iterdir()] == ["domino"]


# How studies start runs: a point that fails costs its cell and not the study's table; Ctrl-C is the run's too.

QUICK = (
    "--strategy", "fake:a", "--rounds", "1", "--windows", "3", "--window-s", "0.02", "--soak-s", "0", "--no-page",
)  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(study, "RESULTS", tmp_path)
    return tmp_path


def test_a_failed_point_is_a_row_of_the_report(results: Path) -> None:
    (results / "fails" / "older").mkdir(parents=True)
    found = study.sweep("fails", *QUICK, "--option", "fail=oom")
    assert found["exit_code"] == 1
    assert [row["failed"]["cause"] for row in found["rows"]] == ["oom"]
    assert study.worst([study.sweep("fails", *QUICK), found]) == 1


def test_a_run_that_never_began_is_no_older_one(results: Path) -> None:
    (results / "wrong" / "older").mkdir(parents=True)
    with pytest.raises(study.Failed) as failed:
        study.sweep("wrong", *QUICK, "--windows", "1")
    assert failed.value.args == (2,)


def test_what_runs_out_of_memory_is_a_cell_of_addfors_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = [
        {"batch_size": 2, "pass": name, "step_s": None, "over_smaller": None, "failed": {"cause": "oom"}}
        for name in ("forward", "backward")
    ]
    monkeypatch.setattr(addfor, "sweep", lambda *_flags: {"minibatches": batches, "exit_code": 1})
    assert addfor.main([]) == 1
    assert capsys.readouterr().out.count("out of memory") == 10


def test_fine_tuning_needs_weights_that_were_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beeva, "sweep", lambda *_flags: {"trainings": [], "exit_code": 1})
    assert beeva.main([]) == 1


# Longer than subprocess.run leaves a child before it kills it.
OBEYS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGINT)
time.sleep(1)
open(sys.argv[1], "w").close()
"""


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As in the foreground: a shell's background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_is_obeyed_by_the_run_first(tmp_path: Path) -> None:
    with pytest.raises(study.Failed) as failed:
        study.obeyed([sys.executable, "-c", OBEYS, str(tmp_path / "table")])
    assert failed.value.args == (128 + signal.SIGINT,)
    assert (tmp_path / "table").exists()
