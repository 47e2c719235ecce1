"""The studies that train to an accuracy: their tables, what a wrong call gets, and Domino's once, small."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from launch.studies import _beeva as beeva
from launch.studies import _digits as digits
from launch.studies import _domino as domino
from launch.studies import _study as study
from scaling.workloads import data, models, weights, weights_file
from scaling.workloads.data import folders
from scaling.workloads.feeds.pictures import decode
from scaling.workloads.specs import Images
from tests.support import debian

SPLITS: tuple[data.Split, ...] = ("train", "test")
FOLDER = Path(__file__).parents[3] / "launch/studies"


def training(**fields: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "world_size": 1, "device": "cpu", "regime": {"epochs": 2, "train_samples": 1000},
        "data_samples": {"train": 60_000, "test": 10_000}, "held_out": 500, "seeds": [0, 1],
        "top1": [0.5, 0.812], "top1_by_seed": [[0.4, 0.8], [0.6, 0.824]], "train_s": 150.0,
        "confusion": [[80, 20, *[0] * 8], *[[0] * 10] * 9],
    }  # fmt: skip
    return {**own, **fields}


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()[2:]]


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
        train, val = (folders.listing(place, data.spec("folders"), split) for split in SPLITS)
        assert "".join(train.classes) == names
        assert len(val) / (len(train) + len(val)) == pytest.approx(0.2, abs=0.01)
        image = decode(train.read(0)[0], Images(channels=1, height=8, width=8))
        assert image.shape == (1, 8, 8)
        assert image.max() == 255


def test_without_a_head_weights_begin_the_last_layer_anew(tmp_path: Path) -> None:
    spec, file = models.spec("digits-cnn"), tmp_path / "learnt.npz"
    drawn = dict(weights.draw(spec, seed=1))
    weights_file.save(str(file), spec, drawn, ())
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


@pytest.mark.parametrize(
    ("study", "arguments", "message"),
    [
        ("domino", ["--data-dir", "/", "--seeds", "0,0"], "argument --seeds: 0,0: numbers from 0, each once"),
        ("domino", ["--data-dir", "/", "--price", "-1"], "argument --price: -1: dollars an hour, from 0"),
        ("domino", ["--data-dir", "/", "--train-samples", "0"], "argument --train-samples: 0: at least 1"),
        ("beeva", ["--full"], "--full: needs --weights, a file of ResNet-50's, and --data-dir"),
        ("beeva", ["--weights", "a.pth"], "--weights and --data-dir are of --full"),
        ("beeva", ["--ranks", "0"], "argument --ranks: 0: at least 1"),
        ("domino", ["--data-dir", "/"], "scaling: error: --data-dir /: --data fashion-mnist has no train-images"),
    ],
)
def test_a_wrong_call_trains_nothing(study: str, arguments: list[str], message: str) -> None:
    done = subprocess.run([FOLDER / study, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stdout == ""


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
