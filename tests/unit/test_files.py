"""Files that a user names: a pipe or a device would be read for ever."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from scaling import files
from scaling.analysis.table import cost
from scaling.errors import UsageError
from scaling.hosts import networks
from scaling.records import store
from scaling.run import flags
from scaling.workloads import models, weights
from tests.bench import published

READERS: dict[str, Callable[[Path], object]] = {
    "run.jsonl": store.load,
    "run.toml": flags.read_file,
    "fabric.toml": lambda path: networks.read_fabric(str(path)),
    "prices.toml": cost.read_prices,
    "published.json": published.read,
    **dict.fromkeys(
        ("weights.npz", "weights.safetensors"),
        lambda path: weights.of_file(replace(models.spec("resnet50"), weights=str(path))),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=rf"{re.escape(name)}: .*is a pipe, name a file$"):
        READERS[name](tmp_path / name)


def test_devices_and_sockets_are_refused_and_links_followed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is a device, name a file"):
        files.read(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="is a socket, name a file"):
            files.read(tmp_path / "socket")
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    assert files.read(tmp_path / "link") == b"text"
    with pytest.raises(IsADirectoryError):
        files.read(tmp_path)


def test_what_is_read_is_known_meanwhile() -> None:
    with files.loading("outer"):
        with files.loading(Path("inner")):
            assert files.loading_now() == "inner"
        assert files.loading_now() == "outer"
    assert files.loading_now() == ""
