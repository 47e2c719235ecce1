"""Where the files of a set of data lie on this host. Nothing is opened here: every agent asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from scaling.errors import UsageError
from scaling.workloads.data.specs import TRAIN, DataSpec, Split, shown


def locate(spec: DataSpec, data_dir: str, splits: Sequence[Split] = TRAIN) -> Path:
    """The folder of the data, or its file where --data-dir names one.

    Looked for in --data-dir and the folders that archives unpack into, without it where packages put it. Raises
    UsageError naming what is not there.
    """
    try:
        return _found(spec, data_dir, splits)
    except OSError as error:
        raise UsageError(f"--data-dir {data_dir}: {error.filename}: {error.strerror}") from None


def _found(spec: DataSpec, data_dir: str, splits: Sequence[Split]) -> Path:
    if data_dir and Path(data_dir).is_file():
        return _file(spec, Path(data_dir))
    places = list(_places(spec, data_dir))
    for place in places:
        if not list(lacking(spec, place, splits)):
            return place
    raise UsageError(_absence(spec, data_dir, places, splits))


def lacking(spec: DataSpec, place: Path, splits: Sequence[Split] = TRAIN) -> Iterator[str]:
    """The patterns that nothing in a folder matches; those that end with / are folders."""
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
    if not Path(data_dir).is_dir():
        return f"--data-dir {data_dir}: no such folder"
    for pattern in spec.pickles:
        _refuse_pickle(spec, next(Path(data_dir).glob(pattern), None))
    # The place that has the most of it is the one that was meant.
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
