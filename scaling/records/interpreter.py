"""A Python beside the agent's own, and what it says of itself."""

from __future__ import annotations

from scaling.records.point import Record


class Interpreter(Record, frozen=True, kw_only=True):
    """The Python that runs a framework's children on a host, where that is not the agent's own.

    `python` is its version, "" where it does not work; `versions` are those of the framework's packages there;
    `cuda` is the CUDA release that its torch is built with, "" for a build without any, None without torch;
    `compile_lacks` is what its torch.compile would need and does not find.
    """

    framework: str
    path: str
    python: str = ""
    versions: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""


class Installed(Record, frozen=True, kw_only=True):
    """What such a Python answers: its version, its packages, why strategies cannot run in it, or not on GPUs, and
    which address those take that obey no --interconnect."""

    python: str = ""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    missing_on_cuda: dict[str, str] = {}
    name_addresses: dict[str, str] = {}
    cuda: str | None = None
    compile_lacks: str = ""
