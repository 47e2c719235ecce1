"""What a lab leaves is seen, and what others make meanwhile is not taken for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling.tools.lab.state import Lab
from tests.support import labs
from tests.support.labs import needs_lab

pytestmark = needs_lab


@contextmanager
def held(lab: Lab, _folder: Path) -> Iterator[None]:
    descriptor = os.open(room(lab), os.O_RDONLY)
    yield
    os.close(descriptor)


@contextmanager
def bound(lab: Lab, folder: Path) -> Iterator[None]:
    """A namespace that a mount keeps, as `ip netns` does it."""
    (folder / "kept").touch()
    with mounted("--bind", room(lab), str(folder / "kept")):
        yield


@contextmanager
def called(lab: Lab, _folder: Path) -> Iterator[None]:
    with subprocess.Popen(["sh", "-c", "read word", lab.name], stdin=subprocess.PIPE) as process:
        yield
        process.kill()


@contextmanager
def filed(lab: Lab, _folder: Path) -> Iterator[None]:
    yield
    lab.folder.rmdir()


def room(lab: Lab) -> str:
    return f"/proc/{lab.holder.program.pid}/fd/{lab.holder.namespaces['node2']['net']}"


@contextmanager
def mounted(*words: str) -> Iterator[None]:
    subprocess.run(["mount", *words], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", words[-1]], check=True)


@pytest.mark.parametrize("plant", [held, bound, called, filed])
def test_what_a_lab_leaves_is_a_trace(
    plant: Callable[[Lab, Path], AbstractContextManager[None]], tmp_path: Path
) -> None:
    lab = labs.make("leaves")
    try:
        with plant(lab, tmp_path):
            labs.end("leaves")
            if plant is filed:
                lab.folder.mkdir(parents=True)  # the last lab takes the folder of all with it
            assert len(labs.traces(lab)) == 1
    finally:
        labs.end("leaves")
    assert labs.traces(lab) == []


def test_a_mount_or_a_card_of_a_lab_is_seen_outside() -> None:
    before = labs.outside()
    for words in (["--bind", "/etc/hosts", "/etc/hosts"], ["-t", "tmpfs", "tmpfs", "/dev/shm"]):
        with mounted(*words):
            assert not labs.outside() <= before
    subprocess.run(["ip", "link", "add", "n9c9", "type", "veth", "peer", "name", "n9c8"], check=True)
    try:
        assert labs.outside() - before == {"n9c8", "n9c9"}
    finally:
        subprocess.run(["ip", "link", "delete", "n9c9"], check=True)
    assert labs.outside() <= before


def test_what_others_make_is_no_trace(tmp_path: Path) -> None:
    """Not even a namespace to which the kernel gives the number of one that is gone."""
    before, lab = labs.outside(), labs.make("gone")
    labs.end("gone")
    words = ["unshare", "--net", "--mount", "sh", "-c", "echo up; read word"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        number = Path(f"/proc/{other.pid}/ns/net").stat().st_ino
        again = replace(lab, holder=replace(lab.holder, inodes={"node1": number}))
        with mounted("-t", "tmpfs", "tmpfs", str(tmp_path)):
            assert labs.traces(again) == []
            assert labs.outside() <= before
        other.kill()
