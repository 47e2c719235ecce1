"""What NCCL chose in one worker: the network, the transports, whether GPUs' memory was read directly."""

from __future__ import annotations

from scaling.records.bounds import Count
from scaling.records.point import Record


class NcclChoice(Record, frozen=True, kw_only=True):
    """What NCCL's own log tells of one worker, or of several together.

    `network` is what it calls its network: IB, Socket, or a plugin's name; `provider` that of libfabric under a
    plugin. `cards` are those that its connections took, else all that it listed. `transports` counts connections
    by what carries them (NET/IB, P2P/CUMEM, SHM/direct), `gpu_direct` those over a network that read and write the
    GPU's memory. `algorithms` are the bytes of all-reduces by algorithm and protocol ("ring simple"), told by one
    rank of a point alone. `nvls`: NVLink SHARP was set up. `warnings` are its first ones.
    """

    version: str = ""
    network: str = ""
    provider: str = ""
    cards: tuple[str, ...] = ()
    transports: dict[str, Count] = {}
    gpu_direct: Count = 0
    algorithms: dict[str, Count] = {}
    nvls: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def over_network(self) -> int:
        """How many of its connections went over a network."""
        return sum(count for name, count in self.transports.items() if name.startswith(("NET/", "COLLNET/")))
