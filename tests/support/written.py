"""Sets of data as their authors publish them, written by hand and small: no reader of ours has a part in it."""

from __future__ import annotations

import gzip
import io
import struct
from pathlib import Path

from msgspec.structs import replace

from scaling.workloads import data
from scaling.workloads.data import DataSpec, Split

COUNTS: dict[Split, int] = {"train": 40, "test": 12}


def few(name: str, counts: dict[Split, int] | None = None, **fields: object) -> DataSpec:
    """The description of a set, of fewer samples than were published."""
    return replace(data.spec(name), splits=COUNTS if counts is None else counts, **fields)


def idx(folder: Path, *, side: int = 28, packed: bool = False, train: int = 40, test: int = 12) -> Path:
    """MNIST's four files: pixel p of image n is (n + p) % 256, its label n % 10."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        pixels = bytes((n + p) % 256 for n in range(count) for p in range(side * side))
        labels = bytes(n % 10 for n in range(count))
        _put(folder / f"{prefix}-images-idx3-ubyte", struct.pack(">4I", 2051, count, side, side) + pixels, packed)
        _put(folder / f"{prefix}-labels-idx1-ubyte", struct.pack(">2I", 2049, count) + labels, packed)
    return folder


def _put(path: Path, content: bytes, packed: bool) -> None:
    if packed:
        path = path.with_name(f"{path.name}.gz")
        content = gzip.compress(content)
    path.write_bytes(content)


def cifar(folder: Path, *, each: int = 8) -> Path:
    """Six files of records, whose planes are of 10, 20 and 30 and the label."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate((*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")):
        records = [
            bytes([(number + n) % 10]) + b"".join(bytes([plane + number]) * 1024 for plane in (10, 20, 30))
            for n in range(each)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    return folder


def reviews(folder: Path, *, train: int = 20, test: int = 6) -> Path:
    """aclImdb of a vocabulary of seven; good reviews say `great`, bad ones `awful`."""
    (folder / "imdb.vocab").parent.mkdir(parents=True, exist_ok=True)
    (folder / "imdb.vocab").write_text("the\nand\na\nfilm\ngreat\nawful\n!\n")
    for split, count in (("train", train), ("test", test)):
        for kind, word in (("pos", "GREAT"), ("neg", "awful")):
            (folder / split / kind).mkdir(parents=True)
            for n in range(count // 2):
                text = f"The film and<br /><br />the {'a ' * n}{word}! Zyzzyva"
                (folder / split / kind / f"{n}_9.txt").write_text(text)
    return folder


def picture(red: int, *, side: int = 40, kind: str = "PNG") -> bytes:
    """A picture of one colour."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (side, side + 10), (red, 100, 50)).save(content, kind)
    return content.getvalue()


def folders(root: Path, classes: dict[str, int], *, first: int = 0) -> Path:
    """As many pictures of each class, redder from one to the next."""
    red = first
    for name, count in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            (root / name / f"{number:04}.png").write_bytes(picture(red))
            red += 1
    return root


def record(content: bytes) -> bytes:
    """A record of a RecordIO file, whole."""
    head = struct.pack("<2I", 0xCED7230A, len(content))
    return head + content + bytes(-len(content) % 4)
