"""What a device does alone, published or fitted: the reader of profiles.toml. Pure but for reading that file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from scaling.errors import UsageError, near
from scaling.tools.emulated import fits, layers
from scaling.tools.emulated.published import File, Profile, Rate

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


def rate(name: str, model: str, batch_size: int | None = None, image_size: int = 0) -> Rate:
    """What a device does with a model at a batch, by default the first batch that is listed, and at an image size,
    0 for the model's own: as published, else as fitted to the batches that were, else as at another size, in
    proportion to the operations.

    Raises UsageError that lists what there is: nothing is estimated from other models or far from those batches.
    """
    profile = find(name)
    of_model = [published for published in profile.rates if published.model == model]
    if not of_model:
        models = ", ".join(dict.fromkeys(published.model for published in profile.rates))
        raise UsageError(f"--model {model}: profile {name} has no images/s of it; it has {models}")
    for size in dict.fromkeys((image_size, *(published.image_size for published in of_model))):
        if found := _at(profile, model, batch_size, size):
            return found if size == image_size else _resized(found, image_size)
    fit = fits.fit(profile, model)
    batches = ", ".join(f"{published.batch_size}{pixels(published.image_size)}" for published in of_model)
    between = f", fitted ones from {fit.least} to {fit.most}{pixels(fit.image_size)}" if fit else ""
    raise UsageError(
        f"--device {PREFIX}{name}: no images/s of {model} at batch {batch_size} per device; it has batch "
        f"{batches}{between}"
    )


def pixels(image_size: int) -> str:
    """` at 256 px`; nothing at the model's own size."""
    return f" at {image_size} px" if image_size else ""


def _at(profile: Profile, model: str, batch_size: int | None, image_size: int) -> Rate | None:
    """As published, or as fitted to what was, at this size."""
    for one in profile.rates:
        if (one.model, one.image_size) == (model, image_size) and batch_size in (None, one.batch_size):
            return one
    fit = fits.fit(profile, model, image_size)
    if fit is not None and batch_size is not None and fit.least <= batch_size <= fit.most:
        return fit.at(batch_size)
    return None


def _resized(one: Rate, image_size: int) -> Rate:
    """The same operations a second, on images of another size. Nobody has tried how far that holds."""
    times = layers.operations(one.model, one.image_size) / layers.operations(one.model, image_size)
    where = pixels(one.image_size) or " at its own size"
    before = f"; {one.fitted}" if one.fitted else ""
    return fits.Fitted(
        model=one.model,
        batch_size=one.batch_size,
        samples_per_s=one.samples_per_s * times,
        source=one.source,
        image_size=image_size,
        how=f"{one.samples_per_s:.4g} images/s{where} x {times:.3f}, as many operations a second{before}",
    )


def source(published: Rate) -> str:
    """Where a rate was published."""
    return read().sources[published.source]
