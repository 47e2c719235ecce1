"""How well a point is emulated, as far as that is known before it is measured."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.bounds import Amount, Seconds
from scaling.records.other_code import own
from scaling.records.point import Point, Record

# Whose exchange emulated/scale.py is a model of: DDP's over Gloo's ring, its buckets as they are by default, which
# may be said.
MODELLED, DEFAULT_BUCKETS_MB = "torch:gloo", ("25", "25.0")


class Emulation(Record, frozen=True, kw_only=True):
    """Of a point on emulated devices; seconds are those of the cluster that it stands for.

    `samples_per_s` is what one device does alone at the point's batch, `fitted` how that was fitted to published
    batches, "" where it was published itself. The last bucket of gradients that DDP has by default, which nothing
    hides, takes this machine `tail_s` by the model in emulated/scale.py, the links between nodes `wire_s` (0: none
    are between, or their rate is not known), and those inside a node, called `inside`, `inside_s`: nobody slows
    these down here. `error_fraction` is by how much of a step the machine is too late at most; None where that is
    not known, since the point exchanges otherwise.
    """

    samples_per_s: Amount
    fitted: str = ""
    tail_s: Seconds = 0.0
    wire_s: Seconds = 0.0
    error_fraction: Amount | None = 0.0
    inside: str = ""
    inside_s: Seconds = 0.0

    def of(self, point: Point) -> Emulation:
        """The same without a bound where the model is of another exchange than the point's: first versions had one
        for all."""
        return self if _is_modelled(point) else replace(self, error_fraction=None)


def _is_modelled(point: Point) -> bool:
    """Whether the model is of this point's exchange, or nothing is exchanged."""
    if point.kind != "exchange" or point.world_size == 1:
        return True
    buckets_mb = point.options.get("bucket_cap_mb", DEFAULT_BUCKETS_MB[0])
    return own(point.strategy) == MODELLED and buckets_mb in DEFAULT_BUCKETS_MB
