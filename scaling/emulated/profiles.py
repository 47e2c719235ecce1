"""What a device does alone, published or fitted: the reader of profiles.toml. Pure but for reading that file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from scaling.emulated import fits
from scaling.emulated.published import File, Profile, Rate
from scaling.errors import UsageError, near

FILE = Path(__file__).with_name("profiles.toml")
PREFIX = "emulated:"


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
    """What a device does with a model at a batch, by default the first batch that is listed: as published, else as
    fitted to the batches that were.

    Raises UsageError that lists what there is: nothing is estimated from other models or far from those batches.
    """
    profile = find(name)
    of_model = [published for published in profile.rates if published.model == model]
    if not of_model:
        models = ", ".join(dict.fromkeys(published.model for published in profile.rates))
        raise UsageError(f"--model {model}: profile {name} has no images/s of it; it has {models}")
    for published in of_model:
        if batch_size in (None, published.batch_size):
            return published
    fit = fits.fit(profile, model)
    if fit is not None and batch_size is not None and fit.least <= batch_size <= fit.most:
        return fit.at(batch_size)
    batches = ", ".join(str(published.batch_size) for published in of_model)
    between = f", fitted ones from {fit.least} to {fit.most}" if fit else ""
    raise UsageError(
        f"--device {PREFIX}{name}: no images/s of {model} at batch {batch_size} per device; it has batch "
        f"{batches}{between}"
    )


def source(published: Rate) -> str:
    """Where a rate was published."""
    return read().sources[published.source]
