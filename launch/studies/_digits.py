"""Stand-in data for fine-tuning: scikit-learn's digits in two tasks, 0 to 4 and 5 to 9."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.workloads.feeds import pictures

# Classes of read_digits, whose pixels are 0 to 16. Every fifth picture of a class is held out.
TASKS = (range(5), range(5, 10))
BRIGHTEST, FIFTH = 16, 5


def halves(folder: Path) -> tuple[Path, Path]:
    """Write both tasks; return their folders, with a folder per class. Raises ModuleNotFoundError without
    scikit-learn."""
    pixels, labels = pictures.read_digits()
    first, second = (folder / name for name in ("0-4", "5-9"))
    for place, classes in ((first, TASKS[0]), (second, TASKS[1])):
        for label in classes:
            _write(place, label, pixels[labels == label])
    return first, second


def _write(place: Path, label: int, shown: NDArray[np.uint8]) -> None:
    """Writes portable grey maps (netpbm's P5), which Pillow reads as .ppm."""
    for number, picture in enumerate(shown):
        split = "val" if number % FIFTH == 0 else "train"
        file = place / split / str(label) / f"{number:04}.ppm"
        file.parent.mkdir(parents=True, exist_ok=True)
        height, width = picture.shape
        shades = (picture.astype(np.uint16) * 255 // BRIGHTEST).astype(np.uint8)
        file.write_bytes(b"P5 %d %d 255\n" % (width, height) + shades.tobytes())


def headless(file: Path) -> None:
    """Remove all classes from the last layer of saved weights (.npz): --weights then draws it for any number of
    classes."""
    with np.load(file) as found:
        arrays = dict(found)
    for name in list(arrays)[-2:]:
        arrays[name] = arrays[name][:0]
    np.savez(file, **arrays)
