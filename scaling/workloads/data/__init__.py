"""Data that models are trained on: the catalogue, its places on this host, and which data fits which model.

Agents and the plan import this. It imports NumPy only when files are opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from scaling import files
from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.workloads.specs import Binary, Classes, Images, ModelSpec

Format = Literal["digits", "idx", "cifar", "folders", "tfrecord", "recordio", "acl", "text", "tokens", "made"]
# Images with a class; reviews, good or bad; one long row of tokens.
Gives = Literal["images", "reviews", "tokens"]
Split = Literal["train", "test"]
TRAIN: tuple[Split, ...] = ("train",)
# Samples of these formats are decoded for each batch, which may take longer than a step.
DECODED: tuple[Format, ...] = ("folders", "tfrecord", "recordio")
Values: TypeAlias = tuple[float, ...]


class Augment(Record, frozen=True, kw_only=True):
    """The most that an image may be changed.

    * rotate: degrees
    * shift: fraction of height and width
    * shear: radians
    * zoom: fraction of the size
    * flip: mirror half of the images
    """

    rotate: float = 0.0
    shift: float = 0.0
    shear: float = 0.0
    zoom: float = 0.0
    flip: bool = False


class DataSpec(Record, frozen=True, kw_only=True):
    """A set of data as its authors publish it. Nothing here downloads data.

    * classes, splits: the published number of classes and of samples by split; None and {} for the user's own
      data.
    * files: by split, patterns of what a folder must contain.
    * inside: usual folders below --data-dir; usual: folders that are searched without --data-dir.
    * pickles: names of the same data as Python pickles, which are refused; instead: what to use for these.
    * channels, mean, deviation: of images; mean and deviation normalise each channel, for pixels from 0 to 1.
    * augment: how images may be changed; None if unknown.
    """

    name: str
    format: Format
    gives: Gives
    text: str
    classes: int | None = None
    splits: dict[Split, int] = {}
    files: dict[Split, tuple[str, ...]] = {}
    inside: tuple[str, ...] = ()
    usual: tuple[str, ...] = ()
    pickles: tuple[str, ...] = ()
    instead: str = ""
    channels: int = 3
    mean: Values = (0.485, 0.456, 0.406)
    deviation: Values = (0.229, 0.224, 0.225)
    augment: Augment | None = None
    licence: str = ""
    source: str = ""

    @property
    def augments(self) -> bool:
        return self.augment is not None

    @property
    def is_read(self) -> bool:
        return self.format not in ("digits", "made")

    @property
    def expected(self) -> str:
        """Return `train-images-idx3-ubyte, train-labels-idx1-ubyte, ...`."""
        return shown(name for names in self.files.values() for name in names)


def shown(patterns: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(one.replace("[-.]", "-").replace("ubyte*", "ubyte") for one in patterns))


# ---------------------------------------------------------------- reading


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Raise a UsageError with this path for an OSError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def text_of(path: Path) -> str:
    """Return a text file. Raises UsageError if it cannot be read or is not UTF-8."""
    with reading(path):
        content = files.read(path)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None


# ---------------------------------------------------------------- catalogue
#
# Each set of data is in the format in which it is published.


_IDX: dict[Split, tuple[str, ...]] = {
    "train": ("train-images[-.]idx3-ubyte*", "train-labels[-.]idx1-ubyte*"),
    "test": ("t10k-images[-.]idx3-ubyte*", "t10k-labels[-.]idx1-ubyte*"),
}
# From Domino's study of Fashion-MNIST, whose shear is in radians as in Keras 2, and from the Keras example for
# CIFAR-10. The values for photographs are this project's.
_DOMINO = Augment(rotate=8, shift=0.08, shear=0.3, zoom=0.08)
_CIFAR10 = Augment(shift=0.1, flip=True)
_PHOTOGRAPH = Augment(shift=0.1, zoom=0.1, flip=True)
_mnist = partial(
    DataSpec, format="idx", gives="images", classes=10, channels=1, splits={"train": 60_000, "test": 10_000},
    files=_IDX, augment=_DOMINO,
)  # fmt: skip
_pictures = partial(DataSpec, gives="images", augment=_PHOTOGRAPH)
_imagenet = partial(
    _pictures, classes=1000, splits={"train": 1_281_167, "test": 50_000}, source="Russakovsky 2015, image-net.org",
    licence="image-net.org's terms: research, not commercial",
)  # fmt: skip

_ALL = (
    DataSpec(
        name="digits", format="digits", gives="images", classes=10, channels=1,
        splits={"train": 1437, "test": 360}, augment=Augment(rotate=10, shift=0.1, zoom=0.1),
        text="1,797 real handwritten digits that scikit-learn ships, resized to the model's input",
        licence="CC BY 4.0", source='UCI, "Optical Recognition of Handwritten Digits", test set',
    ),
    _mnist(
        name="fashion-mnist", mean=(0.2860,), deviation=(0.3530,),
        inside=("fashion-mnist", "FashionMNIST/raw"), usual=("/usr/share/datasets/fashion-mnist",),
        text="70,000 pictures of clothes, 28 x 28; Debian: apt-get install dataset-fashion-mnist",
        licence="MIT", source="github.com/zalandoresearch/fashion-mnist",
    ),
    _mnist(
        name="mnist", mean=(0.1307,), deviation=(0.3081,),
        inside=("mnist", "MNIST/raw"), usual=("/usr/share/datasets/mnist",),
        text="70,000 handwritten digits, 28 x 28", licence="CC BY-SA 3.0",
        source="LeCun, Cortes and Burges: four IDX files, yann.lecun.com/exdb/mnist",
    ),
    DataSpec(
        name="cifar10", format="cifar", gives="images", classes=10, splits={"train": 50_000, "test": 10_000},
        files={"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)},
        inside=("cifar-10-batches-bin",),
        pickles=("cifar-10-batches-py/data_batch_1", "data_batch_1", "cifar-10-python.tar.gz"),
        instead="the binary version, cifar-10-batches-bin (cifar-10-binary.tar.gz)",
        mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616), augment=_CIFAR10,
        text="60,000 colour pictures, 32 x 32", licence="none stated",
        source="Krizhevsky 2009, www.cs.toronto.edu/~kriz/cifar.html: cifar-10-binary.tar.gz",
    ),
    _imagenet(
        name="imagenet", format="folders",
        files={"train": ("train/*/",), "test": ("val/",)}, inside=("imagenet", "ILSVRC/Data/CLS-LOC"),
        text="ILSVRC 2012: train/n01440764/*.JPEG, and val/ in such folders, or flat beside "
        "imagenet_2012_validation_synset_labels.txt or LOC_val_solution.csv",
    ),
    _imagenet(
        name="imagenet-tfrecord", format="tfrecord", inside=("train", "imagenet"),
        files={"train": ("train-00000-of-*",), "test": ("validation-00000-of-*",)},
        text="ILSVRC 2012 as TensorFlow's converter writes it: train-00000-of-01024, labels from 1",
    ),
    _imagenet(
        name="imagenet-rec", format="recordio", files={"train": ("train.rec",), "test": ("val.rec",)},
        inside=("imagenet",), text="ILSVRC 2012 as MXNet's im2rec writes it: train.rec, with train.idx or without",
    ),
    _pictures(
        name="caltech256", format="folders", classes=257, splits={"train": 15_420, "test": 15_187},
        files={"train": ("001.*/", "257.clutter/")}, inside=("256_ObjectCategories",),
        text="30,607 pictures of 256 objects, and 257.clutter: 257 classes; 60 of each train, the rest is "
        "held out. BEEVA trained 256 of its 257 classes (--num-classes 256): label 256 was out of range there",
        licence="CC BY 4.0", source="Griffin 2007, data.caltech.edu/records/nyy15-4j048",
    ),
    _pictures(
        name="folders", format="folders", files={"train": ("train/*/",), "test": ("val/*/",)},
        text="pictures of your own: train/CLASS/*.jpg and val/CLASS/*.jpg",
    ),
    _pictures(
        name="tfrecord", format="tfrecord", files={"train": ("train-*",), "test": ("validation-*",)},
        text="pictures of your own, as imagenet-tfrecord has them: image/encoded, image/class/label from 1",
    ),
    _pictures(
        name="recordio", format="recordio", files={"train": ("train.rec",), "test": ("val.rec",)},
        text="pictures of your own, as im2rec writes them: train.rec, val.rec",
    ),
    DataSpec(
        name="imdb", format="acl", gives="reviews", classes=2, splits={"train": 25_000, "test": 25_000},
        files={split: (f"{split}/pos/", f"{split}/neg/", "imdb.vocab") for split in ("train", "test")},
        inside=("aclImdb",), pickles=("imdb.npz", "imdb.pkl"),
        instead="the reviews themselves, aclImdb (aclImdb_v1.tar.gz)",
        text="50,000 reviews of films, good and bad: their last 100 words",
        licence="none stated; cite Maas 2011", source="Maas 2011, ai.stanford.edu/~amaas/data/sentiment",
    ),
    DataSpec(
        name="nietzsche", format="text", gives="tokens", files={"train": ("nietzsche.txt",)},
        text="characters of a text in lower case, by default nietzsche.txt; the last tenth is held out",
        licence="public domain", source="s3.amazonaws.com/text-datasets/nietzsche.txt, of the Keras example",
    ),
    DataSpec(
        name="tokens", format="tokens", gives="tokens",
        files={"train": ("*train*.bin",), "test": ("*val*.bin",)},
        text="tokens of your own: train.bin and val.bin of 16-bit numbers (nanoGPT, llm.c), or --data-dir "
        "FILE.txt, whose bytes are the tokens and whose last tenth is held out",
    ),
    DataSpec(
        name="synthetic", format="made", gives="images",
        text="seeded noise of the model's input shape with random labels, made once",
    ),
    DataSpec(
        name="synthetic-tokens", format="made", gives="tokens",
        text="seeded random tokens below the model's number of words, made once",
    ),
)  # fmt: skip
CATALOGUE: dict[str, DataSpec] = {spec.name: spec for spec in _ALL}
# Data of a user's own training.
OWN = DataSpec(name="its own", format="made", gives="images", classes=1, text="what the script reads")


def spec(name: str) -> DataSpec:
    """Return the description of a set of data. Raises UsageError with the nearest match."""
    if name == OWN.name:
        return OWN
    if name not in CATALOGUE:
        raise UsageError(f"--data {name}: unknown; {near(name, CATALOGUE)}")
    return CATALOGUE[name]


# ---------------------------------------------------------------- places
#
# Every agent asks for places, so nothing is opened here.


def locate(spec: DataSpec, data_dir: str, splits: Sequence[Split] = TRAIN) -> Path:
    """Return the folder of the data, or the file that --data-dir names. It is in --data-dir or a folder that
    archives unpack into; without --data-dir, where packages install it. Raises UsageError with the missing files.
    """
    roots = (data_dir,) if data_dir else spec.usual
    places = [Path(root, inside) for root in roots for inside in ("", *spec.inside)]
    try:
        if data_dir and files.is_file(path := Path(data_dir)):
            _refuse_pickle(spec, path)
            if spec.format in ("text", "tokens"):
                return path
            raise UsageError(
                f"--data-dir {path}: a file; --data {spec.name} takes the folder with {spec.expected}"
            )
        for place in places:
            if not list(_lacking(spec, place, splits)):
                return place
        raise UsageError(_absence(spec, data_dir, places, splits))
    except OSError as error:
        raise UsageError(f"--data-dir {data_dir}: {error.filename}: {error.strerror}") from None


def _lacking(spec: DataSpec, place: Path, splits: Sequence[Split]) -> Iterator[str]:
    """Yield the patterns that nothing in a folder matches. A pattern that ends with / is a folder."""
    for split in splits:
        for pattern in spec.files.get(split, ()):
            if not any(one.is_dir() or not pattern.endswith("/") for one in place.glob(pattern.rstrip("/"))):
                yield pattern


def _absence(spec: DataSpec, data_dir: str, places: Sequence[Path], splits: Sequence[Split]) -> str:
    source = f"; it comes from {spec.source}" if spec.source else ""
    if not data_dir:
        looked = f" (not in {', '.join(spec.usual)})" if spec.usual else ""
        made = "synthetic" if spec.gives == "images" else "synthetic-tokens"
        needs = f"needs --data-dir, the folder with {spec.expected}{looked}"
        return f"--data {spec.name}: {needs}{source}; or take --data {made}"
    if not files.is_folder(Path(data_dir)):
        return f"--data-dir {data_dir}: no such folder"
    for pattern in spec.pickles:
        _refuse_pickle(spec, next(Path(data_dir).glob(pattern), None))
    # The place with the most files was probably meant.
    nearest = min(places, key=lambda place: len(list(_lacking(spec, place, splits))))
    missing = shown(_lacking(spec, nearest, splits))
    return f"--data-dir {data_dir}: --data {spec.name} has no {missing} in {nearest}{source}"


def _refuse_pickle(spec: DataSpec, path: Path | None) -> None:
    if path is not None and any(path.match(pattern) for pattern in spec.pickles):
        raise UsageError(
            f"--data-dir: {path} holds Python pickles, which run code when they are read; take {spec.instead}"
        )


# ---------------------------------------------------------------- data and models

_WORDS: dict[Gives, str] = {"images": "images", "reviews": "labelled reviews", "tokens": "rows of tokens"}


def fits(name: str, model: ModelSpec) -> DataSpec:
    """Return the description of data for a model. Raises UsageError if they do not fit."""
    found = spec(name)
    if not _suits(found, model):
        others = ", ".join(one.name for one in CATALOGUE.values() if _suits(one, model))
        raise UsageError(
            f"--data {name}: has {_WORDS[found.gives]}, --model {model.name} takes {_WORDS[_takes(model)]}; "
            f"there are {others}"
        )
    if isinstance(model.target, Classes):
        check_classes(name, found.classes or 0, model.target.count)
    if isinstance(model.input, Images) and found.format == "cifar" and found.channels > model.input.channels:
        raise UsageError(
            f"--data {name}: has {found.channels} channels, --model {model.name} takes {model.input.channels}"
        )
    return found


def check_classes(name: str, count: int, known: int) -> None:
    """Refuse data with more classes than the `known` ones of the model: its labels would be out of range."""
    if count <= known:
        return
    clutter = ", the last of them 257.clutter" if name == "caltech256" else ""
    raise UsageError(
        f"--data {name}: has {count} classes{clutter}; the model has {known}, so that labels from {known} on are "
        "out of range"
    )


def check_part(name: str, split: Split, wanted: int, found: int | None) -> None:
    """Refuse more samples than a split has. `found` is None while their number is unknown."""
    if found is not None and wanted > found:
        raise UsageError(
            f"--{split}-samples {wanted}: --data {name} has {found:,} in its {split} split; take fewer"
        )


def _takes(model: ModelSpec) -> Gives:
    if isinstance(model.input, Images):
        return "images"
    return "reviews" if isinstance(model.target, Binary) else "tokens"


def _suits(found: DataSpec, model: ModelSpec) -> bool:
    wanted = _takes(model)
    return found.gives == wanted or (found.name == "synthetic-tokens" and wanted == "reviews")
