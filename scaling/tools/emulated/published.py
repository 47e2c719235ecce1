"""What profiles.toml has: figures that somebody published, each with its source."""

from __future__ import annotations

from scaling.records.point import Record


class Rate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast one device trains a model at a batch; `source` is a key of the file's sources. All rates that were
    published are of images, of `image_size` pixels a side, 0 for the model's own."""

    model: str
    batch_size: int
    samples_per_s: float
    source: str
    image_size: int = 0

    @property
    def step_s(self) -> float:
        """Seconds of a step: forward, backward, update."""
        return self.batch_size / self.samples_per_s

    @property
    def fitted(self) -> str:
        """How it was fitted to others; nothing of one that was published."""
        return ""


class InNode(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast each of `devices` devices of a node trained at a batch: all that the node loses is in it, so that
    nothing but a fit may rest on it."""

    model: str
    batch_size: int
    devices: int
    samples_per_s: float
    source: str
    image_size: int = 0


class Link(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What joins the devices of a node: its name, and the bytes that one device sends over it at most."""

    name: str
    bytes_per_s: float
    source: str


class Profile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device by its full name, and what is known of it."""

    device: str
    rates: tuple[Rate, ...]
    in_node: tuple[InNode, ...] = ()
    inside: Link | None = None


class File(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of profiles.toml."""

    sources: dict[str, str]
    profiles: dict[str, Profile]
