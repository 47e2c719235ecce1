"""How well a point is emulated, as far as that is known before it is measured."""

from __future__ import annotations

from scaling.records.point import Record


class Emulation(Record, frozen=True, kw_only=True):
    """Of a point on emulated devices; seconds are those of the cluster that it stands for.

    `samples_per_s` is what one device does alone at the point's batch, `fitted` how that was fitted to published
    batches, "" where it was published itself. The last bucket of gradients, which nothing hides, takes this
    machine `tail_s` by the model in emulated/scale.py, the links between nodes `wire_s` (0: none are between, or
    their rate is not known), and those inside a node, called `inside`, `inside_s`: nobody slows these down here.
    `error_fraction` is by how much of a step the machine is too late at most.
    """

    samples_per_s: float
    fitted: str = ""
    tail_s: float = 0.0
    wire_s: float = 0.0
    error_fraction: float = 0.0
    inside: str = ""
    inside_s: float = 0.0
