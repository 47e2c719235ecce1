"""How options are read that several strategies have, and the one that every training loop has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scaling.frameworks.base import Option, read_options
from scaling.records.point import Point


def positive_integer(text: str) -> int:
    """1, 2, ...; ValueError for anything else."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def count_from_0(text: str) -> int:
    """0, 1, 2, ...; ValueError for anything else."""
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def number_from_0(text: str) -> float:
    """A finite number, 0 or more; ValueError for anything else."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def positive_number(text: str) -> float:
    """A finite number above 0; ValueError for anything else."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """A reader that takes these words and raises ValueError for any other; errors call it by its name."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    read.__name__ = " or ".join(words)
    return read


LOOP: Mapping[str, Option] = {
    "accumulate": Option(
        type=positive_integer,
        default=1,
        help="micro-batches that a device's batch is computed in; gradients are exchanged after the last",
    ),
}


def accumulated(point: Point) -> int:
    """Micro-batches of a step."""
    known = {key: point.options[key] for key in LOOP if key in point.options}
    return int(read_options(LOOP, known)["accumulate"])


def refuse(point: Point) -> str | None:
    """Micro-batches must be of equal size: the mean of their means is then that of the batch."""
    parts, work = accumulated(point), point.workload
    if parts > 1 and not work.trains:
        return f"--option accumulate={parts}: --pass {work.pass_} is of a whole minibatch; leave it out"
    if point.workload.batch_size % parts:
        return f"--option accumulate={parts}: does not divide the batch of {point.workload.batch_size} per device"
    return None
