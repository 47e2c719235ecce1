"""Where Python has no ensurepip, pip comes from the package index: a local one here, with its own wheel."""

from __future__ import annotations

import hashlib
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from launch import _get_pip
from tests.support.fresh_machine import Machine

INSTALLER = """\
import shutil, sys, sysconfig
assert sys.argv[1:-1] == ["install", "--quiet", "--no-index"]
shutil.copytree({pip!r}, sysconfig.get_path("purelib"), dirs_exist_ok=True)
"""


class Handler(SimpleHTTPRequestHandler):
    """A static index; under /private/ for a user with a password only."""

    def send_head(self) -> Any:
        login = b64encode(b"ann:p@ss").decode()
        if self.path.startswith("/private/") and self.headers["Authorization"] != f"Basic {login}":
            self.send_error(401)
            return None
        return super().send_head()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without pip; `tmp_path / "pip"` is what the wheel would install."""
    machine = Machine(tmp_path)
    machine.packages.rename(tmp_path / "pip")
    machine.module("ensurepip", 'raise SystemExit("Debian has it in python3-venv")')
    return machine


@pytest.fixture
def index(machine: Machine, tmp_path: Path) -> Iterator[str]:
    for folder in (tmp_path / "index/open/pip", tmp_path / "index/private/pip"):
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / _get_pip.WHEEL, "w") as wheel:
            wheel.writestr("pip/__main__.py", INSTALLER.format(pip=str(tmp_path / "pip")))
        (folder / "index.html").write_text(f'<a href="../pip/{_get_pip.WHEEL}#sha256=0">pip</a>')
    digest = hashlib.sha256((folder / _get_pip.WHEEL).read_bytes()).hexdigest()
    script = machine.root / "launch/_get_pip.py"
    script.write_text(script.read_text().replace(_get_pip.SHA256, digest))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "index"))) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def failure(machine: Machine, **environ: str) -> str:
    done = machine.run("launch/local", **environ)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()[-1]


def test_pip_comes_from_the_index_of_the_variable(machine: Machine, index: str) -> None:
    machine.launched(PIP_INDEX_URL=f"{index}/open")
    assert [call[-1] for call in machine.pip_calls] == [f"{machine.root}[torch]"]


def test_pip_comes_from_the_index_of_the_configuration(machine: Machine, index: str, tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text(f"[global]\nindex-url = {index}/open/\n")
    machine.launched()
    assert len(machine.pip_calls) == 1


def test_wheel_of_another_hash_is_refused(machine: Machine, index: str, tmp_path: Path) -> None:
    with (tmp_path / "index/open/pip" / _get_pip.WHEEL).open("ab") as wheel:
        wheel.write(b"!")
    assert "has another SHA-256 than expected" in failure(machine, PIP_INDEX_URL=f"{index}/open")
    assert machine.pip_calls == []


def test_index_without_the_wheel(machine: Machine, index: str, tmp_path: Path) -> None:
    (tmp_path / "index/open/pip/index.html").write_text('<a href="pip-9.0-py3-none-any.whl">pip</a>')
    assert f"it has no {_get_pip.WHEEL}" in failure(machine, PIP_INDEX_URL=f"{index}/open")


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "no-address"])
def test_no_index_names_the_ways_out(machine: Machine, address: str) -> None:
    line = failure(machine, PIP_INDEX_URL=address)
    assert line.startswith(f"launch: no pip from {address} (")
    assert "set PIP_INDEX_URL" in line
    assert "apt-get install python3-venv" in line


def test_login_is_sent_and_not_shown(
    machine: Machine, index: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    private = index.replace("//", "//ann:p%40ss@") + "/private/pip/"
    monkeypatch.setattr(_get_pip, "SHA256", hashlib.sha256(b"").hexdigest())
    assert _get_pip.WHEEL in _get_pip.fetch(private).decode()
    line = failure(machine, PIP_INDEX_URL=private.replace("ss@", "sword@"))
    assert "401" in line
    assert "sword" not in line
