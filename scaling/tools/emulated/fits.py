"""A device's rate at batches that nobody published, fitted to those that were. Pure.

    r(b) = c b / (b + h)        a step takes (b + h) / c: so much per sample, and h samples' time in any case

Two batches give c and h; of more, 1/r is fitted linearly in 1/b (Lineweaver and Burk, 1934, for this law). Tried
where more are known: fitted to a V100's ResNet-50 at 64 and 128 (MXNet), it is 3.3 % too fast at 32, 2.1 % at 16,
9.7 % at 8; fitted to Dell's GoogLeNet on one and four P100s, it is 0.2 % off on two. So nothing is estimated
beyond half and twice the published batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression

from scaling.records.point import Record
from scaling.tools.emulated.published import InNode, Profile, Rate


class Fitted(Rate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rate that follows from others, and how: nobody published it."""

    how: str

    @property
    def fitted(self) -> str:
        """`236.2 b / (b + 10.6), fitted to batch 144, and 36 as one of 4 in a node`."""
        return self.how


class Fit(Record, frozen=True, kw_only=True):
    """c b / (b + h) samples/s of a model at batch b, for batches from `least` to `most`.

    `fitted_to` are the batches in words, `off` by how much of the published rates it misses them at most.
    """

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
        within = f", which it misses by {100 * self.off:.1f} % at most" if self.off >= 5e-4 else ""
        return f"{self.c:.1f} b / (b + {self.h:.1f}), fitted to {self.fitted_to}{within}"

    def samples_per_s(self, batch_size: float) -> float:
        """r(b)."""
        return self.c * batch_size / (batch_size + self.h)

    def at(self, batch_size: int) -> Fitted:
        """The rate at a batch."""
        return Fitted(
            model=self.model,
            batch_size=batch_size,
            samples_per_s=self.samples_per_s(batch_size),
            source=self.source,
            image_size=self.image_size,
            how=str(self),
        )


def fit(profile: Profile, model: str, image_size: int | None = None) -> Fit | None:
    """Of the first source that has two batches of the model at an image size, or at any; None where none has, or
    where step times do not grow with the batch in such a way."""
    known: tuple[Rate | InNode, ...] = (*profile.rates, *profile.in_node)
    published = [one for one in known if one.model == model and image_size in (None, one.image_size)]
    for source, size in dict.fromkeys((one.source, one.image_size) for one in published):
        points = [one for one in published if (one.source, one.image_size) == (source, size)]
        if len({one.batch_size for one in points}) > 1:
            return _fitted(model, source, points)
    return None


def _fitted(model: str, source: str, points: Sequence[Rate | InNode]) -> Fit | None:
    slope, each_s = linear_regression(
        [1 / one.batch_size for one in points], [1 / one.samples_per_s for one in points]
    )
    if slope < 0 or each_s <= 0:
        return None
    c, h = 1 / each_s, slope / each_s
    batches = [one.batch_size for one in points]
    return Fit(
        model=model,
        c=c,
        h=h,
        fitted_to=_words(points),
        off=max(abs(c * one.batch_size / (one.batch_size + h) / one.samples_per_s - 1) for one in points),
        source=source,
        least=-(-min(batches) // 2),
        most=2 * max(batches),
        image_size=points[0].image_size,
    )


def _words(points: Sequence[Rate | InNode]) -> str:
    """`batch 144, and 36 as one of 4 in a node`."""
    alone = ", ".join(str(one.batch_size) for one in points if not isinstance(one, InNode))
    shared = [f"{one.batch_size} as one of {one.devices} in a node" for one in points if isinstance(one, InNode)]
    return f"batch {', and '.join(filter(None, (alone, *shared)))}"
