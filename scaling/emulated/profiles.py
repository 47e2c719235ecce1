"""Rates of devices, published or fitted: reads profiles.toml."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from statistics import linear_regression

import msgspec
from msgspec.structs import replace

from scaling.emulated import layers
from scaling.errors import UsageError, near
from scaling.records.point import Record

# ---------------------------------------------------------------- published


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate of one device. `image_size` is in pixels, 0 for the model. `fitted` is how it was fitted or converted,
    "" if it was published: `236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4 in a node`. A rate of
    one of several `devices` in a node includes the node's losses, so only fits use it."""

    model: str
    batch_size: int
    samples_per_s: float
    source: str
    image_size: int = 0
    fitted: str = ""
    devices: int = 1

    @property
    def step_s(self) -> float:
        """Seconds of forward, backward and update."""
        return self.batch_size / self.samples_per_s


class Link(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The link between a node's devices. `bytes_per_s` is the maximum that one device sends."""

    name: str
    bytes_per_s: float
    source: str


class Profile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str
    rates: tuple[Rate, ...]
    in_node: tuple[Rate, ...] = ()
    inside: Link | None = None


class File(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[str, str]
    profiles: dict[str, Profile]


# ---------------------------------------------------------------- fits
# Rates at unpublished batches b are c b / (b + h): a time per sample, and a fixed time of h samples. 1/r is fitted
# linearly in 1/b (Lineweaver and Burk, 1934). A V100's ResNet-50 fitted at 64 and 128 (MXNet) is 3.3 % too fast at
# 32 and 9.7 % at 8, so fits end at half the smallest and twice the largest batch.


class Fit(Record, frozen=True, kw_only=True):
    """The rate c b / (b + h) in samples/s, for batches b from `least` to `most`. `off` is the largest relative
    error."""

    model: str
    c: float
    h: float
    fitted_to: str
    off: float
    source: str
    least: int
    most: int
    image_size: int = 0

    def __str__(self) -> str:
        within = f", at most {100 * self.off:.1f} % off" if self.off >= 5e-4 else ""
        return f"{self.c:.1f} b / (b + {self.h:.1f}), fitted to {self.fitted_to}{within}"

    def samples_per_s(self, batch_size: float) -> float:
        return self.c * batch_size / (batch_size + self.h)

    def at(self, batch_size: int) -> Rate:
        return Rate(
            model=self.model,
            batch_size=batch_size,
            samples_per_s=self.samples_per_s(batch_size),
            source=self.source,
            image_size=self.image_size,
            fitted=str(self),
        )


def fitted_rate(profile: Profile, model: str, image_size: int | None = None) -> Fit | None:
    """Fit the first source with two batches of the model at an image size (None: any). None without such a source,
    or if step times do not grow with the batch."""
    known = (*profile.rates, *profile.in_node)
    published = [one for one in known if one.model == model and image_size in (None, one.image_size)]
    for source, size in dict.fromkeys((one.source, one.image_size) for one in published):
        points = [one for one in published if (one.source, one.image_size) == (source, size)]
        if len({one.batch_size for one in points}) > 1:
            return _fitted(model, source, points)
    return None


def _fitted(model: str, source: str, points: Sequence[Rate]) -> Fit | None:
    batches, rates = [one.batch_size for one in points], [one.samples_per_s for one in points]
    slope, each_s = linear_regression([1 / batch for batch in batches], [1 / rate for rate in rates])
    if slope < 0 or each_s <= 0:
        return None
    c, h = 1 / each_s, slope / each_s
    alone = ", ".join(str(one.batch_size) for one in points if one.devices == 1)
    shared = [f"{one.batch_size} as one of {one.devices} in a node" for one in points if one.devices > 1]
    return Fit(
        model=model,
        c=c,
        h=h,
        fitted_to=f"batch {', and '.join(filter(None, (alone, *shared)))}",
        off=max(abs(c * batch / (batch + h) / rate - 1) for batch, rate in zip(batches, rates, strict=True)),
        source=source,
        least=-(-min(batches) // 2),
        most=2 * max(batches),
        image_size=points[0].image_size,
    )


# ---------------------------------------------------------------- profiles

FILE = Path(__file__).with_name("profiles.toml")
PREFIX = "emulated:"


@lru_cache(maxsize=1)
def read() -> File:
    return msgspec.toml.decode(FILE.read_bytes(), type=File)


def name_of(device: str) -> str:
    """Return the profile's name in `emulated:p100`, "" for a device that is not emulated."""
    return device.removeprefix(PREFIX) if device.startswith(PREFIX) else ""


def find(name: str) -> Profile:
    """Find a profile. Raises UsageError with the nearest name."""
    known = read().profiles
    if name not in known:
        raise UsageError(f"--device {PREFIX}{name}: unknown profile; {near(name, known)}")
    return known[name]


def rate(name: str, model: str, batch_size: int | None = None, image_size: int = 0) -> Rate:
    """Return a model's rate at a batch (default: the first listed): published, else fitted, else converted from
    another image size. Raises UsageError with the available batches."""
    profile = find(name)
    of_model = [published for published in profile.rates if published.model == model]
    if not of_model:
        models = ", ".join(dict.fromkeys(published.model for published in profile.rates))
        raise UsageError(f"--model {model}: profile {name} has no images/s of it; it has {models}")
    for size in dict.fromkeys((image_size, *(published.image_size for published in of_model))):
        if found := _at(profile, model, batch_size, size):
            return found if size == image_size else _resized(found, image_size)
    fit = fitted_rate(profile, model)
    batches = ", ".join(f"{published.batch_size}{pixels(published.image_size)}" for published in of_model)
    between = f", fitted ones from {fit.least} to {fit.most}{pixels(fit.image_size)}" if fit else ""
    raise UsageError(
        f"--device {PREFIX}{name}: no images/s of {model} at batch {batch_size} per device; it has batch "
        f"{batches}{between}"
    )


def pixels(image_size: int) -> str:
    """Format an image size: ` at 256 px`, "" for the model's own."""
    return f" at {image_size} px" if image_size else ""


def _at(profile: Profile, model: str, batch_size: int | None, image_size: int) -> Rate | None:
    for one in profile.rates:
        if (one.model, one.image_size) == (model, image_size) and batch_size in (None, one.batch_size):
            return one
    fit = fitted_rate(profile, model, image_size)
    if fit is not None and batch_size is not None and fit.least <= batch_size <= fit.most:
        return fit.at(batch_size)
    return None


def _resized(one: Rate, image_size: int) -> Rate:
    """Assumes equal operations/s at another image size, which was never tested."""
    times = layers.operations(one.model, one.image_size) / layers.operations(one.model, image_size)
    where = pixels(one.image_size) or " at its own size"
    before = f"; {one.fitted}" if one.fitted else ""
    how = f"{one.samples_per_s:.4g} images/s{where} x {times:.3f}, as many operations a second{before}"
    return replace(one, samples_per_s=one.samples_per_s * times, image_size=image_size, fitted=how)


def source(published: Rate) -> str:
    return read().sources[published.source]
