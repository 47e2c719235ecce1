"""What `nvidia-smi topo -m` printed on real machines, columns of network cards left out, and GPUs that NVML would
tell of there. The last rows of some were cut off where they were found, and follow by symmetry."""

from __future__ import annotations

from tests.support.fake_nvml import GPU, SWITCH, FakeGpu

# How far apart the kernel numbers the two hardware threads of a core, by machine, and what was printed.
MATRICES: dict[str, tuple[int, str]] = {
    # https://github.com/vllm-project/vllm/issues/13855
    "8 x H100": (
        112,
        """
        GPU0 X NV18 NV18 NV18 NV18 NV18 NV18 NV18 0-55,112-167 0
        GPU1 NV18 X NV18 NV18 NV18 NV18 NV18 NV18 0-55,112-167 0
        GPU2 NV18 NV18 X NV18 NV18 NV18 NV18 NV18 0-55,112-167 0
        GPU3 NV18 NV18 NV18 X NV18 NV18 NV18 NV18 0-55,112-167 0
        GPU4 NV18 NV18 NV18 NV18 X NV18 NV18 NV18 56-111,168-223 1
        GPU5 NV18 NV18 NV18 NV18 NV18 X NV18 NV18 56-111,168-223 1
        GPU6 NV18 NV18 NV18 NV18 NV18 NV18 X NV18 56-111,168-223 1
        GPU7 NV18 NV18 NV18 NV18 NV18 NV18 NV18 X 56-111,168-223 1
        """,
    ),
    # https://github.com/warpem/miss-alignment/issues/106
    "4 x L40S": (
        192,
        """
        GPU0 X NODE SYS SYS 0-95,192-287 0
        GPU1 NODE X SYS SYS 0-95,192-287 0
        GPU2 SYS SYS X NODE 96-191,288-383 1
        GPU3 SYS SYS NODE X 96-191,288-383 1
        """,
    ),
    # https://github.com/noonghunna/club-3090/issues/46
    "5 x GeForce": (
        16,
        """
        GPU0 X SYS SYS SYS SYS 8-15,24-31 1
        GPU1 SYS X PHB NODE NODE 0-7,16-23 0
        GPU2 SYS PHB X NODE NODE 0-7,16-23 0
        GPU3 SYS NODE NODE X PHB 0-7,16-23 0
        GPU4 SYS NODE NODE PHB X 0-7,16-23 0
        """,
    ),
    # https://github.com/rapidsai/dask-cuda/issues/1358: two GPUs of a node that a batch system granted
    "2 x A100": (
        128,
        """
        GPU0 X NV12 48-63,176-191 3
        GPU1 NV12 X 48-63,176-191 3
        """,
    ),
    # https://github.com/NVIDIA/nccl/issues/428: one GPU on a socket, three on the other
    "4 x T4": (
        32,
        """
        GPU0 X SYS SYS SYS 0-15,32-47 0
        GPU1 SYS X NODE NODE 16-31,48-63 1
        GPU2 SYS NODE X NODE 16-31,48-63 1
        GPU3 SYS NODE NODE X 16-31,48-63 1
        """,
    ),
    # https://github.com/NVIDIA/nccl-tests/issues/29 (one or two links between some pairs, none between others)
    "8 x V100": (
        48,
        """
        GPU0 X NV2 NV2 NV1 NV1 SYS SYS SYS 0-23,48-71 0
        GPU1 NV2 X NV1 NV2 SYS NV1 SYS SYS 0-23,48-71 0
        GPU2 NV2 NV1 X NV1 SYS SYS NV2 SYS 0-23,48-71 0
        GPU3 NV1 NV2 NV1 X SYS SYS SYS NV2 0-23,48-71 0
        GPU4 NV1 SYS SYS SYS X NV2 NV2 NV1 24-47,72-95 1
        GPU5 SYS NV1 SYS SYS NV2 X NV1 NV2 24-47,72-95 1
        GPU6 SYS SYS NV2 SYS NV2 NV1 X NV1 24-47,72-95 1
        GPU7 SYS SYS SYS NV2 NV1 NV2 NV1 X 24-47,72-95 1
        """,
    ),
}
# Machines of which every pair of GPUs has links of its own, where others have a switch.
POINT_TO_POINT = {"8 x V100"}
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}


def two_pairs() -> list[FakeGpu]:
    """Two pairs, joined by 4 NVLinks inside a pair; the second pair hangs on the other socket."""
    gpus = []
    for bus in range(4):
        mate = bus ^ 1
        topology = {other: LEVELS["PIX"] if other == mate else LEVELS["SYS"] for other in range(4)}
        p2p = {mate: {0, 2}}
        uuid = f"GPU-{'abcd'[bus]}000-{bus}"
        links = ((GPU, mate),) * 4
        gpus.append(FakeGpu(uuid=uuid, bus=bus, nvlinks=links, topology=topology, p2p=p2p))
    return gpus


def matrix(machine: str) -> list[tuple[str, ...]]:
    """How each GPU reaches each, as printed, with "self" for itself."""
    return [tuple("self" if word == "X" else word for word in words[1:-2]) for words in _lines(machine)]


def threads_apart(machine: str) -> int:
    """Between the numbers of the two hardware threads of a core."""
    return MATRICES[machine][0]


def near(machine: str) -> list[str]:
    """The CPUs near each GPU, as printed."""
    return [words[-2] for words in _lines(machine)]


def fake_gpus(machine: str) -> list[FakeGpu]:
    """GPUs that NVML tells so."""
    return [
        FakeGpu(
            uuid=f"GPU-{bus}", bus=bus, near=cpus(near(machine)[bus]),
            nvlinks=_links(machine, row),
            topology={other: LEVELS[word] for other, word in enumerate(row) if word in LEVELS},
            p2p={other: {0, 2} for other, word in enumerate(row) if _nvlinks(word)},
        )
        for bus, row in enumerate(matrix(machine))
    ]  # fmt: skip


def cpus(text: str) -> tuple[int, ...]:
    """Of a list as the kernel writes it."""
    bounds = [[int(number) for number in part.split("-")] for part in text.split(",")]
    return tuple(cpu for first, *last in bounds for cpu in range(first, (last or [first])[0] + 1))


def _links(machine: str, row: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    if machine in POINT_TO_POINT:
        return tuple((GPU, other) for other, word in enumerate(row) for _ in range(_nvlinks(word)))
    return tuple((SWITCH, 200) for _ in range(max(map(_nvlinks, row))))


def _lines(machine: str) -> list[list[str]]:
    return [line.split() for line in MATRICES[machine][1].split("\n") if line.strip()]


def _nvlinks(word: str) -> int:
    return int(word[2:]) if word.startswith("NV") else 0
