"""Trees of pictures with a folder per class: their paths and labels. Nothing is decoded here.

Classes are numbered in the order of sorted folders, as in torchvision's ImageFolder and MXNet's im2rec.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.errors import UsageError
from scaling.records.point import Record
from scaling.workloads.data.images import check_count
from scaling.workloads.data.specs import DataSpec, Split, reading, text_of

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
        found = _cut(_tree(place, _folders(place)), split)
    elif split == "train":
        found = _tree(place / "train", _folders(place / "train"))
    else:
        found = _held_out(place)
    root = place if spec.name == "caltech256" else place / ("train" if split == "train" else "val")
    if spec.classes is not None and len(found.classes) != spec.classes:
        raise UsageError(
            f"{root}: {len(found.classes)} folders, expected {spec.classes} classes of --data {spec.name}"
        )
    check_count(root, len(found), spec, split)
    if not len(found):
        raise UsageError(f"{root}: no pictures in its folders ({', '.join(SUFFIXES)})")
    return found


def _folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(one.name for one in _entries(root) if one.is_dir() and not one.name.startswith(".")))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with reading(folder):
        return list(os.scandir(folder))


def _tree(root: Path, classes: Sequence[str]) -> Tree:
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = _pictures(root / name)
        paths += found
        labels += [label] * len(found)
    return Tree(paths=tuple(paths), labels=tuple(labels), classes=tuple(classes))


def _pictures(folder: Path) -> list[str]:
    return sorted(one.path for one in _entries(folder) if one.name.lower().endswith(SUFFIXES))


def _cut(tree: Tree, split: Split) -> Tree:
    labels = np.asarray(tree.labels)
    chosen = [place for label in range(len(tree.classes)) for place in _drawn(labels, label, split)]
    return Tree(
        paths=tuple(tree.paths[place] for place in chosen),
        labels=tuple(tree.labels[place] for place in chosen),
        classes=tree.classes,
    )


def _drawn(labels: NDArray[np.int64], label: int, split: Split) -> list[int]:
    order = np.random.default_rng((SHUFFLE, label)).permutation(np.flatnonzero(labels == label))
    return sorted(map(int, order[:TRAINED] if split == "train" else order[TRAINED:]))


# ---------------------------------------------------------------- val


def _held_out(place: Path) -> Tree:
    """Return val/ in folders, or flat with a file that names classes. Its classes are numbered as in train/."""
    classes, root = _folders(place / "train"), place / "val"
    if named := _folders(root):
        if lost := sorted(set(named) - set(classes)):
            raise UsageError(f"{root}: has {lost[0]}, which train has not")
        tree = _tree(root, classes if set(classes) == set(named) else named)
        numbers = {name: number for number, name in enumerate(classes)}
        labels = tuple(numbers[tree.classes[label]] for label in tree.labels)
        return Tree(paths=tree.paths, labels=labels, classes=classes)
    numbers = {name: number for number, name in enumerate(classes)}
    found = list(_flat(root))
    if lost := sorted({name for _, name in found} - set(classes)):
        raise UsageError(f"{root}: {lost[0]} is no folder of train")
    paths, labels = tuple(path for path, _ in found), tuple(numbers[name] for _, name in found)
    return Tree(paths=paths, labels=labels, classes=classes)


def _flat(root: Path) -> Iterator[tuple[str, str]]:
    paths = _pictures(root)
    by_line, by_name = (_beside(root, name) for name in (BY_LINE, BY_NAME))
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


def _beside(root: Path, name: str) -> Path | None:
    """Find a file in the folder or above it: in Kaggle's archive it is next to ILSVRC/, above Data/CLS-LOC/val."""
    return next((one / name for one in (root, *list(root.parents)[:4]) if (one / name).is_file()), None)
