"""Environment variables that hold each library to one network, and what NCCL logs of its choice.

Every rendezvous and server also gets its address there (`task.address`, `task.addresses`, `task.servers`). One
that listens on all interfaces sends through the interface to the peer's address.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from scaling.records.network import ANY, NcclChoice
from scaling.records.task import Task


def nccl(task: Task) -> dict[str, str]:
    """Return NCCL's variables: RDMA over the network's card, or sockets over its interface. Empty without GPUs.
    `=` makes NCCL match the whole name. Only the rendezvous gets the interface on one host, with any RDMA card, or
    with a plugin, which NCCL_NET=IB would exclude. With `--interconnect auto` the agent drops what the user has
    set (`granted`)."""
    if task.point.hardware.device != "cuda":
        return {}
    bootstrap = {"NCCL_SOCKET_IFNAME": f"={task.place.interface}"}
    if task.place.hca == ANY or task.place.plugin or task.place.interface == "lo":
        return bootstrap
    if task.place.hca:
        return {**bootstrap, "NCCL_NET": "IB", "NCCL_IB_HCA": f"={task.place.hca}"}
    return {**bootstrap, "NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"}


def nccl_log(task: Task) -> dict[str, str]:
    """Return variables that log NCCL's choices next to the rank's log. Empty without GPUs or a log. TUNING logs
    every collective and slows the step: only in the first round of `comm`, which is in no efficiency."""
    if task.point.hardware.device != "cuda" or not task.log:
        return {}
    tuning = ("TUNING",) if task.point.kind == "comm" and task.point.round == 0 else ()
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": ",".join(("INIT", "GRAPH", "NET", "ENV", *tuning)),
        "NCCL_DEBUG_FILE": f"{task.log.replace('%', '%%')}.nccl.%p",
    }


def gloo(task: Task) -> dict[str, str]:
    """Return Gloo's interface. Without it, Gloo uses the address of the host's name, whatever MASTER_ADDR is."""
    return {"GLOO_SOCKET_IFNAME": task.place.interface}


# ---------------------------------------------------------------- nccl log
#
# Parse what NCCL chose from the file that NCCL_DEBUG_FILE names.
#
# The patterns fit versions 2.18 to 2.29 (src/init.cc, src/enqueue.cc and src/transport of github.com/NVIDIA/nccl).
# Other lines are ignored. tests/unit/frameworks/nccl_logs has real files.


# NCCL_DEBUG_SUBSYS=TUNING writes a line for every collective: the first ones show all sizes.
MOST_BYTES = 1 << 20
MOST_WARNINGS = 2

# enqueue.cc before 2.24 prints numbers. These are the names of nccl_tuner.h, in order.
ALGORITHMS = ("tree", "ring", "collnet direct", "collnet chain", "nvls", "nvls tree", "pat")
PROTOCOLS = ("LL", "LL128", "simple")
_NAMES = {"COLLNET_DIRECT": "collnet direct", "COLLNET_CHAIN": "collnet chain", "NVLS_TREE": "nvls tree"}

_VERSION = re.compile(r"NCCL version (\S+?)\+cuda")
_NETWORK = re.compile(r"NCCL INFO Using network (.+)$")
_PROVIDER = re.compile(r"NET/OFI Selected provider is ([\w;-]+)", re.IGNORECASE)
_LISTED = re.compile(r"NCCL INFO NET/(\w+) : Using (\[.*)$")
_CARD = re.compile(r"\[(\d+)\] ?([A-Za-z][\w.-]*)")
_VIRTUAL = re.compile(r"NET/IB : Made virtual device \[(\d+)\] name=(\S+)")
_VIA = re.compile(r" via (P2P|SHM|NET|COLLNET)/(.+)$")
_CONNECTION = re.compile(r"(?P<network>.+?)/(?P<device>\d+)(?:\(\d+\))?(?P<more>.*)")
_NVLS = re.compile(r"NCCL INFO .*\b([1-9]\d*) nvls channels")
_REDUCED = re.compile(r"NCCL INFO (?:(\w+): +)?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_WARNING = re.compile(r"NCCL WARN (.+)$")


def read_nccl_log(debug_file: str, pid: int) -> NcclChoice | None:
    """Read what a worker's NCCL wrote, and truncate its file to MOST_BYTES. None if there is none. `debug_file` is
    the worker's NCCL_DEBUG_FILE; its `%p` is the worker's `pid`."""
    try:
        return (
            parse_nccl_log(_head(Path(debug_file.replace("%p", str(pid)).replace("%%", "%"))))
            if debug_file
            else None
        )
    except OSError:
        return None


def _head(file: Path) -> list[str]:
    with file.open("r+b") as log:
        head = log.read(MOST_BYTES)
        log.truncate()
    return head.decode(errors="replace").splitlines()


def parse_nccl_log(lines: Iterable[str]) -> NcclChoice | None:
    """Parse the lines of one worker; None if NCCL wrote none of them."""
    own = [line.rstrip() for line in lines if "NCCL" in line]
    if not own:
        return None
    network, (transports, devices, gpu_direct) = _last(own, _NETWORK), _connections(own)
    return NcclChoice(
        version=_last(own, _VERSION),
        network=network,
        provider=_last(own, _PROVIDER),
        cards=_cards(own, network, devices),
        transports=transports,
        gpu_direct=gpu_direct,
        algorithms=_algorithms(own),
        nvls=any(_NVLS.search(line) for line in own),
        warnings=tuple(islice(dict.fromkeys(_all(own, _WARNING)), MOST_WARNINGS)),
    )


def _all(lines: Iterable[str], pattern: re.Pattern[str]) -> Iterable[str]:
    return (found[1] for line in lines if (found := pattern.search(line)))


def _last(lines: Iterable[str], pattern: re.Pattern[str]) -> str:
    return next(iter(reversed(list(_all(lines, pattern)))), "")


def _connections(lines: Iterable[str]) -> tuple[dict[str, int], set[int], int]:
    """Return connections by transport, the network devices in use, and the number of GPUDirect connections."""
    transports, devices, gpu_direct = Counter[str](), set[int](), 0
    for line in lines:
        if (via := _VIA.search(line)) is None:
            continue
        kind, rest = via.groups()
        over = _CONNECTION.match(rest) if kind.endswith("NET") else None
        if over is None:
            transports[f"{kind}/{rest.partition('/')[0]}"] += 1
            continue
        transports[f"{kind}/{over['network']}"] += 1
        devices.add(int(over["device"]))
        gpu_direct += "/GDRDMA" in over["more"]
    return dict(transports), devices, gpu_direct


def _cards(lines: Iterable[str], network: str, devices: set[int]) -> tuple[str, ...]:
    """Return the names of the devices in use; all listed names if no number matches."""
    # InfiniBand plugins list their cards as NCCL does.
    kinds = (network, "Socket" if network == "Socket" else "IB")
    names: dict[int, str] = {}
    for line in lines:
        if (listed := _LISTED.search(line)) and listed[1] in kinds:
            names |= {int(number): card for number, card in _CARD.findall(listed[2])}
        elif (virtual := _VIRTUAL.search(line)) and network != "Socket":
            names[int(virtual[1])] = virtual[2]
    taken = {names[number] for number in devices if number in names}
    return tuple(sorted(taken or set(names.values())))


def _algorithms(lines: Iterable[str]) -> dict[str, int]:
    """Sum the bytes of all-reduces by algorithm and protocol. Older releases do not name the collective."""
    found = Counter[str]()
    for line in lines:
        if (told := _REDUCED.search(line)) and told[1] in (None, "AllReduce"):
            algorithm, protocol = _word(told[3], ALGORITHMS), _word(told[4], PROTOCOLS)
            found[f"{algorithm} {protocol}"] += int(told[2])
    return dict(found)


def _word(said: str, names: tuple[str, ...]) -> str:
    if said.isdecimal():
        return names[int(said)] if int(said) < len(names) else said
    named: Mapping[str, str] = {name.upper(): name for name in names} | _NAMES
    return named.get(said.upper(), said.lower())
