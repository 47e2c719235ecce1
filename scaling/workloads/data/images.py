"""Images: IDX of MNIST and Fashion-MNIST, CIFAR-10's binary version, and trees of pictures, which stay encoded.

IDX has a magic number, big-endian sizes, then bytes (yann.lecun.com/exdb/mnist, "the IDX file format"). Files may
be packed with gzip.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling import files
from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.workloads.data import DataSpec, Split, reading, text_of

# The third byte means unsigned bytes, the fourth is the number of dimensions.
IMAGES, LABELS = 0x803, 0x801


def read_idx(place: Path, spec: DataSpec, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels (count, 1, height, width) and labels (count,). Raises UsageError with the found and the
    expected value if files are not as published."""
    # The shorter name is the unpacked file.
    of_images, of_labels = (
        min(place.glob(pattern), key=lambda path: len(path.name)) for pattern in spec.files[split]
    )
    images, labels = _idx(of_images, IMAGES), _idx(of_labels, LABELS)
    if len(images) != len(labels):
        raise UsageError(f"{of_images}: {len(images)} images, but {len(labels)} labels in {of_labels}")
    check_count(of_images, len(images), spec, split)
    if not images.size:
        raise UsageError(f"{of_images}: {' x '.join(map(str, images.shape))} pixels, which is none")
    _check_labels(of_labels, labels, spec)
    return images.reshape(-1, 1, *images.shape[1:]), labels.astype(np.int64)


def _idx(path: Path, expected: int) -> NDArray[np.uint8]:
    try:
        content = gzip.decompress(files.read(path)) if path.suffix == ".gz" else files.read(path)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    magic = int.from_bytes(content[:4], "big")
    if magic != expected:
        raise UsageError(f"{path}: magic number {magic}, expected {expected}: not an IDX file of --data")
    dimensions = magic & 0xFF
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise UsageError(f"{path}: {len(content)} bytes, shorter than its header")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    size = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != size:
        raise UsageError(f"{path}: {len(content):,} bytes, expected {size:,} for {shape}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def check_count(path: Path, found: int, spec: DataSpec, split: Split) -> None:
    """Refuse another number of samples than was published. Raises UsageError."""
    expected = spec.splits.get(split, found)
    if found != expected:
        raise UsageError(f"{path}: {found:,} samples, expected {expected:,} of --data {spec.name} ({split})")


def _check_labels(path: Path, labels: NDArray[np.uint8], spec: DataSpec) -> None:
    if spec.classes is not None and labels.max() >= spec.classes:
        raise UsageError(f"{path}: label {labels.max()}, expected 0 to {spec.classes - 1}")


# ---------------------------------------------------------------- cifar
#
# CIFAR-10's binary version: records of one label byte and 3,072 pixel bytes, 32 x 32 for each colour.


SHAPE = (3, 32, 32)
RECORD_BYTES = 1 + 3 * 32 * 32


def read_cifar(place: Path, spec: DataSpec, split: Split) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return pixels (count, 3, 32, 32) and labels (count,). Raises UsageError for a file of another format."""
    names = spec.files[split]
    count = spec.splits[split] // len(names)
    read = []
    for path in (place / name for name in names):
        with reading(path):
            content = np.fromfile(path, np.uint8)
        if len(content) != count * RECORD_BYTES:
            raise UsageError(
                f"{path}: {len(content):,} bytes, expected {count * RECORD_BYTES:,}: {count:,} records of "
                f"{RECORD_BYTES:,} bytes"
            )
        read.append(content.reshape(-1, RECORD_BYTES))
        _check_labels(path, read[-1][:, 0], spec)
    records = np.concatenate(read)
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


# ---------------------------------------------------------------- trees
#
# A folder of pictures per class. Classes are numbered in the order of sorted folders, as in torchvision's
# ImageFolder and MXNet's im2rec.


SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".webp")
# They give the classes of pictures in a flat val/: one line per sorted picture, or `picture,class x y x y ...`.
BY_LINE, BY_NAME = "imagenet_2012_validation_synset_labels.txt", "LOC_val_solution.csv"
# For Caltech-256: training samples of each class, drawn with a fixed seed, as in BEEVA's study.
TRAINED, SHUFFLE = 60, 0


class Tree(Record, frozen=True, kw_only=True):
    """Pictures: their `paths`, the numbers of their classes (`labels`), and the names of all classes."""

    paths: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an encoded picture and its class. Raises UsageError if it cannot be read."""
        with reading(self.paths[index]):
            return Path(self.paths[index]).read_bytes(), self.labels[index]


def listing(place: Path, spec: DataSpec, split: Split) -> Tree:
    """Return the pictures of a split. Raises UsageError if classes or counts differ from the published ones."""
    if spec.name == "caltech256":
        root, classes = place, _folders(place)
        paths, labels = _drawn(*_pictures(place, classes), split)
    else:
        root, classes = place / ("train" if split == "train" else "val"), _folders(place / "train")
        paths, labels = _pictures(root, classes) if split == "train" else _held_out(root, classes)
    if spec.classes is not None and len(classes) != spec.classes:
        raise UsageError(f"{root}: {len(classes)} folders, expected {spec.classes} classes of --data {spec.name}")
    check_count(root, len(paths), spec, split)
    if not paths:
        raise UsageError(f"{root}: no pictures in its folders ({', '.join(SUFFIXES)})")
    return Tree(paths=tuple(paths), labels=tuple(labels), classes=classes)


# Pictures, and the numbers of their classes. ImageNet has a million: a list of pairs takes seconds.
Pictures = tuple[list[str], list[int]]


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in _entries(root) if one.is_dir() and not one.name.startswith(".")))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with reading(folder):
        return list(os.scandir(folder))


def _in_folder(folder: Path) -> list[str]:
    return sorted(one.path for one in _entries(folder) if one.name.lower().endswith(SUFFIXES))


def _pictures(root: Path, classes: Sequence[str], folders: Sequence[str] = ()) -> Pictures:
    """Return the pictures in the folders, by default those of all classes."""
    numbers = {name: number for number, name in enumerate(classes)}
    paths: list[str] = []
    labels: list[int] = []
    for name in folders or classes:
        paths += _in_folder(root / name)
        labels += [numbers[name]] * (len(paths) - len(labels))
    return paths, labels


def _drawn(paths: list[str], labels: list[int], split: Split) -> Pictures:
    numbers, chosen = np.array(labels), []
    for label in np.unique(numbers):
        order = np.random.default_rng((SHUFFLE, label)).permutation(np.flatnonzero(numbers == label))
        chosen += sorted(order[:TRAINED] if split == "train" else order[TRAINED:])
    return [paths[place] for place in chosen], [labels[place] for place in chosen]


def _held_out(root: Path, classes: Sequence[str]) -> Pictures:
    """Return val/ in folders, or flat with a file that names classes. Its classes are numbered as in train/."""
    if named := _folders(root):
        if lost := sorted(set(named) - set(classes)):
            raise UsageError(f"{root}: has {lost[0]}, which train has not")
        return _pictures(root, classes, named)
    numbers = {name: number for number, name in enumerate(classes)}
    found = list(_flat(root))
    if lost := sorted({name for _, name in found} - set(classes)):
        raise UsageError(f"{root}: {lost[0]} is no folder of train")
    return [path for path, _ in found], [numbers[name] for _, name in found]


def _flat(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each picture and the name of its class."""
    paths = _in_folder(root)
    # In Kaggle's archive the file is next to ILSVRC/, above Data/CLS-LOC/val.
    places = (root, *list(root.parents)[:4])
    by_line, by_name = (
        next((one / name for one in places if (one / name).is_file()), None) for name in (BY_LINE, BY_NAME)
    )
    if by_line is not None:
        names = text_of(by_line).split()
        if len(names) != len(paths):
            raise UsageError(f"{by_line}: {len(names):,} classes, but {len(paths):,} pictures in {root}")
        yield from zip(paths, names, strict=True)
    elif by_name is not None:
        lines = (line.partition(",") for line in text_of(by_name).splitlines()[1:])
        known = {picture: rest.split()[0] for picture, _, rest in lines if rest.split()}
        for path in paths:
            if Path(path).stem not in known:
                raise UsageError(f"{by_name}: does not name {Path(path).name}")
            yield path, known[Path(path).stem]
    else:
        raise UsageError(f"{root}: neither folders of classes, nor {BY_LINE} or {BY_NAME}, which name them")
