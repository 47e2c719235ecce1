"""Walks over networks, and the published places of data and models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.records.point import Workload
from scaling.workloads import data, models
from scaling.workloads.layers import Branches, Conv, Dense, Flatten, Pool, Residual, backwards, parameters, walk
from scaling.workloads.sequences import LSTM, Attention, Embedding, Gated, OneHot, Positions
from scaling.workloads.specs import Binary, Classes, MaskedTokens, ModelSpec, NextToken, Tokens
from tests.support import written

# Descriptions of networks: their shapes, their one count of parameters, their operations.


@pytest.mark.parametrize("name", sorted(models.CATALOGUE))
def test_the_count_is_the_published_one_and_what_comes_out_is_what_is_learnt(name: str) -> None:
    spec = models.spec(name)
    assert count(spec) == spec.parameters
    assert spec.source
    tokens = (spec.input.size, spec.outputs)
    outputs = {Classes: (spec.outputs,), Binary: (1,), NextToken: tokens, MaskedTokens: tokens}
    assert spec.placed[-1].output == outputs[type(spec.target)]
    assert spec.unit == ("tokens" if spec.target in (NextToken(), MaskedTokens()) else spec.unit)
    data.fits(spec.data, spec)


def count(spec: ModelSpec) -> int:
    return sum(each.size for each in parameters(spec.layers, spec.input.shape).values())


@pytest.mark.parametrize(
    ("name", "giga"),
    [("alexnet", 1.43), ("overfeat", 5.60), ("overfeat-accurate", 10.7), ("vgg16", 30.9), ("googlenet", 3.17),
     ("inception-bn", 3.97), ("inception_v3", 11.4), ("resnet152", 23.0), ("fashion-cnn", 0.78),
     ("vit-b-16", 35.1)],
)  # fmt: skip
def test_operations_are_those_of_the_literature(name: str, giga: float) -> None:
    """Of the forward pass, two for each multiplication with an addition."""
    assert sum(each.operations for each in models.spec(name).placed) == pytest.approx(giga * 1e9, rel=0.005)


def test_googlenet_at_256_pixels_is_dells() -> None:
    """MXNet 0.7 rounds pools down: 1.20 times the operations at 224, and 7 x 7 at the end in both."""
    work = Workload(model="googlenet", data="synthetic", batch_rule="weak", batch_size=1, image_size=256)
    large, usual = models.of(work), models.spec("googlenet")
    assert count(large) == usual.parameters
    operations = [sum(each.operations for each in spec.placed) for spec in (large, usual)]
    assert operations[0] / operations[1] == pytest.approx(1.196, abs=0.001)
    for spec in (large, usual):
        assert next(each for each in spec.placed[::-1] if len(each.shape) == 3).shape == (1024, 7, 7)


def test_a_chain_of_layers() -> None:
    layers = (Conv(8, 3, pad=1), Pool("max", 2, 2), Flatten(), Dense(10))
    placed = walk(layers, (3, 8, 8))
    assert [each.output for each in placed] == [(8, 8, 8), (8, 4, 4), (128,), (10,)]
    assert [each.path for each in placed] == ["0", "1", "2", "3"]
    assert [each.operations for each in placed] == [2 * 8 * 64 * 27, 0, 0, 2 * 128 * 10]
    assert backwards(placed) == (2 * 8 * 64 * 27, 0, 0, 4 * 128 * 10)
    assert list(parameters(layers, (3, 8, 8))) == ["0.weight", "0.bias", "3.weight", "3.bias"]


def test_branches_and_residuals_keep_the_order_of_their_parts() -> None:
    layers = (
        Branches(((Conv(2, 1),), (Conv(3, 1), Conv(4, 3, pad=1)))),
        Residual((Conv(8, 1, 2),), (Conv(8, 1, 2, bias=False),)),
    )
    placed = walk(layers, (3, 8, 8))
    assert [each.path for each in placed] == ["0.0.0", "0.1.0", "0.1.1", "1.body.0", "1.shortcut.0"]
    assert placed[-1].shape == (6, 8, 8)
    assert placed[-1].output == (8, 4, 4)


def test_no_layer_that_the_sample_comes_to_needs_its_inputs_gradient() -> None:
    """As torch.utils.flop_counter counts the two towers; an LSTM goes back through its states all the same."""
    tower = (Conv(2, 3), Conv(4, 1))
    first, second = 2 * 2 * 36 * 27, 2 * 4 * 36 * 2
    assert backwards(walk((Branches((tower, tower)),), (3, 8, 8))) == (first, 2 * second) * 2
    inputs, states = 2 * 5 * 16 * 9, 2 * 5 * 16 * 4
    assert backwards(walk((OneHot(9), LSTM(4)), (5,))) == (0, inputs + 2 * states)
    assert backwards(walk((Embedding(7, 9), LSTM(4)), (5,))) == (0, 2 * (inputs + states))


@pytest.mark.parametrize(("size", "kernel", "stride", "pad", "down", "up"), [
    (112, 3, 2, 0, 55, 56), (56, 3, 2, 0, 27, 28), (7, 2, 2, 0, 3, 4), (4, 2, 2, 0, 2, 2),
    # A last window that would begin in the border is left out, as in torch.
    (3, 1, 2, 1, 3, 2),
])  # fmt: skip
def test_pools_round_down_or_up(size: int, kernel: int, stride: int, pad: int, down: int, up: int) -> None:
    for ceil, wanted in ((False, down), (True, up)):
        assert Pool("max", kernel, stride, pad, ceil).output((1, size, size))[1] == wanted


def test_parameters_of_words() -> None:
    assert [each.shape for each in LSTM(64, both_ways=True).parameters((100, 128))] == [
        (256, 128), (256, 64), (256,), (256, 128), (256, 64), (256,),
    ]  # fmt: skip
    grouped = Attention(32, 8, bias=False).parameters((2048, 2048))
    assert [each.shape for each in grouped] == [(2048, 2048), (512, 2048), (512, 2048), (2048, 2048)]
    assert sum(math.prod(each.shape) for each in Gated(688).parameters((128, 256))) == 3 * 688 * 256
    fused = Attention(12, fused=True).parameters((128, 768))
    assert [each.name for each in fused] == ["qkv_weight", "qkv_bias", "output_weight", "output_bias"]


@pytest.mark.parametrize(
    ("layers", "shape", "said"),
    [
        ((Conv(8, 3), Conv(8, 11)), (3, 12, 12), "layer 1, Conv: a window of 11 x 11 does not fit in 10 x 10"),
        ((Flatten(), Conv(8, 3)), (3, 12, 12), "layer 1, Conv: takes images, and gets 432"),
        ((Branches(((Flatten(),),)),), (3, 2, 2), "layer 0, Branches: takes branches of images, and gets 12"),
        ((Residual((Conv(8, 1),)),), (3, 4, 4), "layer 0, Residual: cannot add 8 x 4 x 4 and 3 x 4 x 4"),
        ((Branches(((Conv(8, 1),), (Conv(8, 3),))),), (3, 4, 4), "cannot put 8 x 2 x 2 beside 8 x 4 x 4"),
        ((Embedding(9, 8), Positions(4)), (5,), "layer 1, Positions: has 4 positions, and the sequence has 5"),
        ((Embedding(9, 8),), (3, 4, 4), "layer 0, Embedding: takes tokens, and gets 3 x 4 x 4"),
        ((Embedding(9, 10), Attention(4)), (5,), r"4 heads \(4 of keys\) cannot share a width of 10"),
        ((Dense(3),), (3, 4, 4), "layer 0, Dense: takes a vector, and gets 3 x 4 x 4"),
        ((Conv(8, 4, 4, whole=True),), (3, 8, 10), "windows of 4, 4 apart, do not fill 10; 8 and 12 would"),
    ],
)
def test_what_does_not_fit_is_named(layers: tuple[Conv, ...], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        walk(layers, shape)


@pytest.mark.parametrize(("name", "fits", "edges"), [("vit-b-16", 384, 230), ("vit-tiny", 28, 30)])
def test_patches_take_in_the_whole_image(name: str, fits: int, edges: int) -> None:
    assert models.sized(name, fits).placed
    with pytest.raises(UsageError, match=rf"layer 0, Conv: .* do not fill {edges}; .* would$"):
        assert models.sized(name, edges).placed


def test_sizes_and_optimisers_of_a_point() -> None:
    work = Workload(
        model="bert-tiny", data="synthetic-tokens", batch_rule="weak", batch_size=1, sequence_length=32,
        unit="tokens", optimizer="sgd",
    )  # fmt: skip
    spec = models.of(work)
    assert isinstance(spec.input, Tokens)
    assert spec.input.length == 32
    assert (spec.recipe.optimizer, spec.recipe.rate) == ("sgd", 0.01)
    assert work.units_per_sample == 32
    assert models.spec("bert-tiny").recipe.optimizer == "adamw"


def test_no_keras_example_decays_its_weights() -> None:
    """What CIFAR-10's calls decay is that of its rate."""
    examples = [spec for spec in models.CATALOGUE.values() if spec.source == models.KERAS]
    assert len(examples) == 5
    assert {spec.recipe.decay for spec in examples} == {0.0}


# Which data fits which model, and where it is looked for.


def test_what_is_published_is_said_of_every_set() -> None:
    for name, spec in data.CATALOGUE.items():
        assert spec.name == name and spec.text
        if spec.splits:
            assert spec.licence and spec.source and spec.classes
        assert bool(spec.files) == spec.is_read
        assert bool(spec.pickles) == bool(spec.instead)
        if spec.gives == "images":
            assert len(spec.mean) == len(spec.deviation)


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("digit", "digits-cnn", "--data digit: unknown; did you mean 'digits'"),
        ("digits", "gpt2", "has images, --model gpt2 takes rows of tokens; there are nietzsche, tokens, "),
        ("synthetic", "gpt2", "has images, --model gpt2 takes rows of tokens; there are"),
        ("tokens", "resnet50", "has rows of tokens, --model resnet50 takes images; there are digits, "),
        ("synthetic-tokens", "resnet50", "has rows of tokens, --model resnet50 takes images"),
        ("imdb", "bert-base", "has labelled reviews, --model bert-base takes rows of tokens"),
        ("nietzsche", "imdb-lstm", "takes labelled reviews; there are imdb, synthetic-tokens"),
        ("imagenet", "digits-cnn", "has 1000 classes; the model has 10, so that labels from 10 on "),
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
    said = "has 257 classes, the last of them 257.clutter; the model has 256, so that labels from 256 on are out"
    with pytest.raises(UsageError, match=said):
        data.fits("caltech256", replace(resnet, target=Classes(count=256)))


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


def test_what_is_missing_is_named_unless_it_is_held_out(tmp_path: Path) -> None:
    spec, place = data.spec("mnist"), written.idx(tmp_path / "mnist")
    with pytest.raises(UsageError, match=r"--data-dir /nowhere: no such folder"):
        data.locate(spec, "/nowhere")
    with pytest.raises(UsageError, match=r"--data-dir x{300}: x{300}: File name too long"):
        data.locate(spec, "x" * 300)
    (place / "t10k-images-idx3-ubyte").unlink()
    assert data.locate(spec, str(place)) == place
    with pytest.raises(UsageError, match="has no t10k-images"):
        data.locate(spec, str(place), ("test",))
    (place / "train-labels-idx1-ubyte").unlink()
    said = f"^--data-dir {tmp_path}: --data mnist has no train-labels-idx1-ubyte in {place}; it comes from LeCun"
    with pytest.raises(UsageError, match=said):
        data.locate(spec, str(tmp_path))


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
    said = f"{path} holds Python pickles, which run code when they are read; take {instead}"
    for given in (tmp_path, path):
        with pytest.raises(UsageError, match=said):
            data.locate(data.spec(name), str(given))
