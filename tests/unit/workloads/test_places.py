"""Which data fits which model, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.workloads import data, models
from scaling.workloads.specs import Classes
from tests.support import written


def test_what_is_published_is_said_of_every_set() -> None:
    for name, spec in data.CATALOGUE.items():
        assert spec.name == name and spec.text
        if spec.splits:
            assert spec.licence and spec.source and spec.classes
        assert bool(spec.files) == spec.is_read
        assert bool(spec.pickles) == bool(spec.instead)
        if spec.gives == "images":
            assert len(spec.mean) == len(spec.deviation)


def test_every_model_has_data_by_default_that_fits() -> None:
    for model in models.CATALOGUE.values():
        data.fits(model.data, model)


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("digit", "digits-cnn", "--data digit: unknown; did you mean 'digits'"),
        (
            "digits",
            "gpt2",
            "has images, --model gpt2 takes rows of tokens; there are nietzsche, tokens, ",
        ),
        ("synthetic", "gpt2", "has images, --model gpt2 takes rows of tokens; there are"),
        (
            "tokens",
            "resnet50",
            "has rows of tokens, --model resnet50 takes images; there are digits, ",
        ),
        ("synthetic-tokens", "resnet50", "has rows of tokens, --model resnet50 takes images"),
        ("imdb", "bert-base", "has labelled reviews, --model bert-base takes rows of tokens"),
        ("nietzsche", "imdb-lstm", "takes labelled reviews; there are imdb, synthetic-tokens"),
        (
            "imagenet",
            "digits-cnn",
            "has 1000 classes; the model has 10, so that labels from 10 on ",
        ),
        ("cifar10", "mnist-cnn", "has 3 channels, --model mnist-cnn takes 1"),
    ],
)
def test_what_does_not_fit(name: str, model: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        data.fits(name, models.spec(model))
    assert said in str(refused.value)


def test_caltechs_257_classes_in_256() -> None:
    """BEEVA's study trained on them."""
    resnet = models.spec("resnet50")
    data.fits("caltech256", resnet)
    few = replace(resnet, target=Classes(count=256))
    with pytest.raises(UsageError) as refused:
        data.fits("caltech256", few)
    assert "has 257 classes, the last of them 257.clutter; the model has 256" in str(refused.value)
    assert "labels from 256 on are out of range" in str(refused.value)
    assert "257 classes" in data.spec("caltech256").text


# ---------------------------------------------------------------- where it lies


@pytest.mark.parametrize("inside", ["", "MNIST/raw", "mnist"])
def test_folders_that_archives_unpack_into(tmp_path: Path, inside: str) -> None:
    place = written.idx(tmp_path / inside)
    assert data.locate(data.spec("mnist"), str(tmp_path), ("train", "test")) == place


def test_without_a_folder_the_systems_is_taken(tmp_path: Path) -> None:
    debian = replace(data.spec("fashion-mnist"), usual=(str(tmp_path),))
    with pytest.raises(UsageError, match=rf"needs --data-dir, the folder with train-.* \(not in {tmp_path}\)"):
        data.locate(debian, "")
    written.idx(tmp_path, packed=True)
    assert data.locate(debian, "") == tmp_path


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    spec = data.spec("mnist")
    with pytest.raises(UsageError, match=r"--data-dir /nowhere: no such folder"):
        data.locate(spec, "/nowhere")
    with pytest.raises(UsageError, match=r"--data-dir x{300}: x{300}: File name too long"):
        data.locate(spec, "x" * 300)
    written.idx(tmp_path / "mnist")
    (tmp_path / "mnist/train-labels-idx1-ubyte").unlink()
    with pytest.raises(UsageError) as refused:
        data.locate(spec, str(tmp_path))
    said = str(refused.value)
    assert said.startswith(
        f"--data-dir {tmp_path}: --data mnist has no train-labels-idx1-ubyte in {tmp_path}/mnist;"
    )


def test_what_is_held_out_may_be_missing_until_it_is_asked_for(tmp_path: Path) -> None:
    place = written.idx(tmp_path)
    (place / "t10k-images-idx3-ubyte").unlink()
    spec = data.spec("mnist")
    assert data.locate(spec, str(place)) == place
    with pytest.raises(UsageError, match="has no t10k-images"):
        data.locate(spec, str(place), ("test",))


def test_a_file_where_a_folder_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("words")
    for name in ("nietzsche", "tokens"):
        assert data.locate(data.spec(name), str(file)) == file
    with pytest.raises(UsageError, match=r"mine\.txt: a file; --data mnist takes the folder with train-images"):
        data.locate(data.spec("mnist"), str(file))


@pytest.mark.parametrize(
    ("name", "file", "instead"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1", "the binary version, cifar-10-batches-bin"),
        ("cifar10", "data_batch_1", "the binary version"),
        ("cifar10", "cifar-10-python.tar.gz", "the binary version"),
        ("imdb", "imdb.npz", "the reviews themselves, aclImdb"),
    ],
)
def test_pickles_are_refused(tmp_path: Path, name: str, file: str, instead: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x04.")
    for given in (tmp_path, path):
        with pytest.raises(UsageError) as refused:
            data.locate(data.spec(name), str(given))
        assert f"{path} holds Python pickles, which run code when they are read; take {instead}" in str(
            refused.value
        )
