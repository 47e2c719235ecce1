"""Data that models are trained on: the catalogue, its places on this host, and which data fits which model.

Agents and the plan import this. It imports NumPy only when files are opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling import files
from scaling.errors import UsageError, near
from scaling.workloads.data.specs import DECODED, TRAIN, Augment, DataSpec, Gives, Split, shown
from scaling.workloads.specs import Binary, Classes, Images, ModelSpec

# ---------------------------------------------------------------- catalogue
#
# Each set of data is in the format in which it is published.


_IDX: dict[Split, tuple[str, ...]] = {
    "train": ("train-images[-.]idx3-ubyte*", "train-labels[-.]idx1-ubyte*"),
    "test": ("t10k-images[-.]idx3-ubyte*", "t10k-labels[-.]idx1-ubyte*"),
}
_IMAGENET: dict[Split, int] = {"train": 1_281_167, "test": 50_000}
# From Domino's study of Fashion-MNIST, whose shear is in radians as in Keras 2, and from the Keras example for
# CIFAR-10. The values for photographs are this project's.
_DOMINO = Augment(rotate=8, shift=0.08, shear=0.3, zoom=0.08)
_CIFAR10 = Augment(shift=0.1, flip=True)
_PHOTOGRAPH = Augment(shift=0.1, zoom=0.1, flip=True)
_TERMS = "image-net.org's terms: research, not commercial"


def _in_memory() -> tuple[DataSpec, ...]:
    return (
        DataSpec(
            name="digits", format="digits", gives="images", classes=10, channels=1,
            splits={"train": 1437, "test": 360},
            augment=Augment(rotate=10, shift=0.1, zoom=0.1),
            text="1,797 real handwritten digits that scikit-learn ships, resized to the model's input",
            licence="CC BY 4.0", source='UCI, "Optical Recognition of Handwritten Digits", test set',
        ),
        DataSpec(
            name="fashion-mnist", format="idx", gives="images", classes=10, channels=1,
            splits={"train": 60_000, "test": 10_000}, files=_IDX,
            inside=("fashion-mnist", "FashionMNIST/raw"), usual=("/usr/share/datasets/fashion-mnist",),
            mean=(0.2860,), deviation=(0.3530,), augment=_DOMINO,
            text="70,000 pictures of clothes, 28 x 28; Debian: apt-get install dataset-fashion-mnist",
            licence="MIT", source="github.com/zalandoresearch/fashion-mnist",
        ),
        DataSpec(
            name="mnist", format="idx", gives="images", classes=10, channels=1,
            splits={"train": 60_000, "test": 10_000}, files=_IDX,
            inside=("mnist", "MNIST/raw"), usual=("/usr/share/datasets/mnist",),
            mean=(0.1307,), deviation=(0.3081,), augment=_DOMINO,
            text="70,000 handwritten digits, 28 x 28", licence="CC BY-SA 3.0",
            source="LeCun, Cortes and Burges: four IDX files, yann.lecun.com/exdb/mnist",
        ),
        DataSpec(
            name="cifar10", format="cifar", gives="images", classes=10,
            splits={"train": 50_000, "test": 10_000},
            files={"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)},
            inside=("cifar-10-batches-bin",),
            pickles=("cifar-10-batches-py/data_batch_1", "data_batch_1", "cifar-10-python.tar.gz"),
            instead="the binary version, cifar-10-batches-bin (cifar-10-binary.tar.gz)",
            mean=(0.4914, 0.4822, 0.4465), deviation=(0.2470, 0.2435, 0.2616), augment=_CIFAR10,
            text="60,000 colour pictures, 32 x 32", licence="none stated",
            source="Krizhevsky 2009, www.cs.toronto.edu/~kriz/cifar.html: cifar-10-binary.tar.gz",
        ),
    )  # fmt: skip


def _published_pictures() -> tuple[DataSpec, ...]:
    return (
        DataSpec(
            name="imagenet", format="folders", gives="images", classes=1000, splits=_IMAGENET,
            augment=_PHOTOGRAPH,
            files={"train": ("train/*/",), "test": ("val/",)}, inside=("imagenet", "ILSVRC/Data/CLS-LOC"),
            text="ILSVRC 2012: train/n01440764/*.JPEG, and val/ in such folders, or flat beside "
            "imagenet_2012_validation_synset_labels.txt or LOC_val_solution.csv",
            licence=_TERMS, source="Russakovsky 2015, image-net.org",
        ),
        DataSpec(
            name="imagenet-tfrecord", format="tfrecord", gives="images", classes=1000, splits=_IMAGENET,
            augment=_PHOTOGRAPH,
            files={"train": ("train-00000-of-*",), "test": ("validation-00000-of-*",)},
            inside=("train", "imagenet"),
            text="ILSVRC 2012 as TensorFlow's converter writes it: train-00000-of-01024, labels from 1",
            licence=_TERMS, source="Russakovsky 2015, image-net.org",
        ),
        DataSpec(
            name="imagenet-rec", format="recordio", gives="images", classes=1000, splits=_IMAGENET,
            augment=_PHOTOGRAPH,
            files={"train": ("train.rec",), "test": ("val.rec",)}, inside=("imagenet",),
            text="ILSVRC 2012 as MXNet's im2rec writes it: train.rec, with train.idx or without",
            licence=_TERMS, source="Russakovsky 2015, image-net.org",
        ),
        DataSpec(
            name="caltech256", format="folders", gives="images", augment=_PHOTOGRAPH, classes=257,
            splits={"train": 15_420, "test": 15_187},
            files={"train": ("001.*/", "257.clutter/")}, inside=("256_ObjectCategories",),
            text="30,607 pictures of 256 objects, and 257.clutter: 257 classes; 60 of each train, the rest is "
            "held out. BEEVA trained 256 of its 257 classes (--num-classes 256): label 256 was out of range there",
            licence="CC BY 4.0", source="Griffin 2007, data.caltech.edu/records/nyy15-4j048",
        ),
    )  # fmt: skip


def _own_pictures() -> tuple[DataSpec, ...]:
    return (
        DataSpec(
            name="folders", format="folders", gives="images", augment=_PHOTOGRAPH,
            files={"train": ("train/*/",), "test": ("val/*/",)},
            text="pictures of your own: train/CLASS/*.jpg and val/CLASS/*.jpg",
        ),
        DataSpec(
            name="tfrecord", format="tfrecord", gives="images", augment=_PHOTOGRAPH,
            files={"train": ("train-*",), "test": ("validation-*",)},
            text="pictures of your own, as imagenet-tfrecord has them: image/encoded, image/class/label from 1",
        ),
        DataSpec(
            name="recordio", format="recordio", gives="images", augment=_PHOTOGRAPH,
            files={"train": ("train.rec",), "test": ("val.rec",)},
            text="pictures of your own, as im2rec writes them: train.rec, val.rec",
        ),
    )  # fmt: skip


def _texts() -> tuple[DataSpec, ...]:
    reviews: dict[Split, tuple[str, ...]] = {
        split: (f"{split}/pos/", f"{split}/neg/", "imdb.vocab") for split in ("train", "test")
    }
    return (
        DataSpec(
            name="imdb", format="acl", gives="reviews", classes=2, splits={"train": 25_000, "test": 25_000},
            files=reviews, inside=("aclImdb",), pickles=("imdb.npz", "imdb.pkl"),
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
    )  # fmt: skip


def _made() -> tuple[DataSpec, ...]:
    return (
        DataSpec(
            name="synthetic", format="made", gives="images",
            text="seeded noise of the model's input shape with random labels, made once",
        ),
        DataSpec(
            name="synthetic-tokens", format="made", gives="tokens",
            text="seeded random tokens below the model's number of words, made once",
        ),
    )  # fmt: skip


def _all() -> tuple[DataSpec, ...]:
    return (*_in_memory(), *_published_pictures(), *_own_pictures(), *_texts(), *_made())


CATALOGUE: dict[str, DataSpec] = {spec.name: spec for spec in _all()}
# Data of a user's own training.
OWN = DataSpec(name="its own", format="made", gives="images", classes=1, text="what the script reads")


# ---------------------------------------------------------------- places
#
# Every agent asks for places, so nothing is opened here.


def locate(spec: DataSpec, data_dir: str, splits: Sequence[Split] = TRAIN) -> Path:
    """Return the folder of the data, or the file that --data-dir names. It is in --data-dir or a folder that
    archives unpack into; without --data-dir, where packages install it. Raises UsageError with the missing files.
    """
    try:
        return _found(spec, data_dir, splits)
    except OSError as error:
        raise UsageError(f"--data-dir {data_dir}: {error.filename}: {error.strerror}") from None


def _found(spec: DataSpec, data_dir: str, splits: Sequence[Split]) -> Path:
    if data_dir and files.is_file(Path(data_dir)):
        return _file(spec, Path(data_dir))
    places = list(_places(spec, data_dir))
    for place in places:
        if not list(lacking(spec, place, splits)):
            return place
    raise UsageError(_absence(spec, data_dir, places, splits))


def lacking(spec: DataSpec, place: Path, splits: Sequence[Split] = TRAIN) -> Iterator[str]:
    """Yield the patterns that nothing in a folder matches. A pattern that ends with / is a folder."""
    for split in splits:
        for pattern in spec.files.get(split, ()):
            if not any(one.is_dir() or not pattern.endswith("/") for one in place.glob(pattern.rstrip("/"))):
                yield pattern


def _places(spec: DataSpec, data_dir: str) -> Iterator[Path]:
    for root in (data_dir,) if data_dir else spec.usual:
        yield Path(root)
        yield from (Path(root, inside) for inside in spec.inside)


def _file(spec: DataSpec, path: Path) -> Path:
    _refuse_pickle(spec, path)
    if spec.format not in ("text", "tokens"):
        raise UsageError(f"--data-dir {path}: a file; --data {spec.name} takes the folder with {spec.expected}")
    return path


def _absence(spec: DataSpec, data_dir: str, places: Sequence[Path], splits: Sequence[Split]) -> str:
    if not data_dir:
        looked = f" (not in {', '.join(spec.usual)})" if spec.usual else ""
        made = "synthetic" if spec.gives == "images" else "synthetic-tokens"
        needs = f"needs --data-dir, the folder with {spec.expected}{looked}"
        return f"--data {spec.name}: {needs}{_from(spec)}; or take --data {made}"
    if not files.is_folder(Path(data_dir)):
        return f"--data-dir {data_dir}: no such folder"
    for pattern in spec.pickles:
        _refuse_pickle(spec, next(Path(data_dir).glob(pattern), None))
    # The place with the most files was probably meant.
    nearest = min(places, key=lambda place: len(list(lacking(spec, place, splits))))
    missing = shown(lacking(spec, nearest, splits))
    return f"--data-dir {data_dir}: --data {spec.name} has no {missing} in {nearest}{_from(spec)}"


def _from(spec: DataSpec) -> str:
    return f"; it comes from {spec.source}" if spec.source else ""


def _refuse_pickle(spec: DataSpec, path: Path | None) -> None:
    if path is not None and any(path.match(pattern) for pattern in spec.pickles):
        raise UsageError(
            f"--data-dir: {path} holds Python pickles, which run code when they are read; take {spec.instead}"
        )


# ---------------------------------------------------------------- specs

__all__ = [
    "CATALOGUE",
    "DECODED",
    "TRAIN",
    "Augment",
    "DataSpec",
    "Split",
    "check_classes",
    "check_part",
    "fits",
    "locate",
    "spec",
]
_WORDS: dict[Gives, str] = {"images": "images", "reviews": "labelled reviews", "tokens": "rows of tokens"}


def spec(name: str) -> DataSpec:
    """Return the description of a set of data. Raises UsageError with the nearest match."""
    if name == OWN.name:
        return OWN
    if name not in CATALOGUE:
        raise UsageError(f"--data {name}: unknown; {near(name, CATALOGUE)}")
    return CATALOGUE[name]


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
