"""What a device does alone, as published: the reader of profiles.toml. Pure but for reading that file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from scaling.errors import UsageError, near
from scaling.records.point import Record

FILE = Path(__file__).with_name("profiles.toml")
PREFIX = "emulated:"


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast one device trains a model at a batch; `source` is a key of the file's sources. All rates that were
    published are of images."""

    model: str
    batch_size: int
    samples_per_s: float
    source: str

    @property
    def step_s(self) -> float:
        """Seconds of a step: forward, backward, update."""
        return self.batch_size / self.samples_per_s


class Profile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device by its full name, and what is known of it."""

    device: str
    rates: tuple[Rate, ...]


class File(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of profiles.toml."""

    sources: dict[str, str]
    profiles: dict[str, Profile]


@lru_cache(maxsize=1)
def read() -> File:
    """The profiles that come with this package."""
    return msgspec.toml.decode(FILE.read_bytes(), type=File)


def name_of(device: str) -> str:
    """The profile's name in `emulated:p100`; "" for a device that is not emulated."""
    return device.removeprefix(PREFIX) if device.startswith(PREFIX) else ""


def find(name: str) -> Profile:
    """A profile by its name; UsageError with the near match."""
    known = read().profiles
    if name not in known:
        raise UsageError(f"--device {PREFIX}{name}: unknown profile; {near(name, known)}")
    return known[name]


def rate(name: str, model: str, batch_size: int | None = None) -> Rate:
    """What a device does with a model at a batch, by default the first batch that is listed.

    Raises UsageError that lists what there is: nothing is estimated from other batches or models.
    """
    rates = find(name).rates
    of_model = [published for published in rates if published.model == model]
    if not of_model:
        models = ", ".join(dict.fromkeys(published.model for published in rates))
        raise UsageError(f"--model {model}: profile {name} has no images/s of it; it has {models}")
    for published in of_model:
        if batch_size in (None, published.batch_size):
            return published
    batches = ", ".join(str(published.batch_size) for published in of_model)
    raise UsageError(
        f"--device {PREFIX}{name}: no images/s of {model} at batch {batch_size} per device; it has batch {batches}"
    )


def source(published: Rate) -> str:
    """Where a rate was published."""
    return read().sources[published.source]
