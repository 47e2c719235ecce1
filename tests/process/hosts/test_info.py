"""Facts of this host by a real git, loader, kernel and resolver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.frameworks.horovod import strategy as hvd
from scaling.hosts import connections, proc
from scaling.hosts.info import revision
from scaling.records.telemetry import Flow
from scaling.worker import run_task
from tests.support.waiting import eventually

# The revision of the code, by a real git.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `tmp_path/repo` with the package `scaling` in it; not a repository yet.

    A git hook that runs the tests sets GIT_DIR: git would then write into the hook's own repository.
    """
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "repo/scaling"
    (folder / "worker").mkdir(parents=True)
    (folder / "__init__.py").write_text("one")
    (folder / "worker/loop.py").write_text("two")
    return folder


def git(repository: Path, *args: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(repository), *identity, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(repository: Path) -> str:
    git(repository, "init", "-q")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "all")
    return git(repository, "rev-parse", "HEAD")[:10]


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_revision_of_a_checkout(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert revision(package) == ""
    commit = commit_all(package.parent)
    assert revision(package) == commit
    (package.parent / "notes.txt").write_text("beside the package")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert revision(package) == commit
    (package / "new.py").touch()
    assert revision(package) == f"{commit}-dirty"


@needs_git
def test_a_package_installed_inside_someone_elses_checkout_has_no_revision(package: Path) -> None:
    (package.parent / ".gitignore").write_text("scaling/\n")
    commit_all(package.parent)
    assert revision(package) == ""


@needs_git
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("is_old", [False, True], ids=["new", "before 2.38"])
def test_a_checkout_of_another_user_as_in_a_container_has_its_revision(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_old: bool
) -> None:
    """Git before 2.38, as of Ubuntu 22.04, ignores `-c safe.directory=*`."""
    commit = commit_all(package.parent)
    if is_old:
        script = tmp_path / "bin/git"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\n[ "$1" != -c ] || shift 2\nexec {shutil.which("git")} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    for path in (package.parent, *package.parent.rglob("*")):
        os.chown(path, 12345, 12345)
    assert revision(package) == commit


def test_without_a_checkout_the_stamp_of_the_image_tells(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(package) == ""
    (package / "REVISION").write_text("0123456789abcdef\n")
    assert revision(package) == "0123456789"


# Where Gloo listens that is told no interface: at an address of the host's name, tried by binding it.


@pytest.mark.parametrize(
    ("answers", "address"),
    [(("203.0.113.7",), ""), ((), ""), (("203.0.113.7", "127.0.0.1"), "127.0.0.1")],
    ids=["another host's", "none", "the first of its own"],
)
def test_the_address_of_a_name_is_the_first_that_can_be_bound(
    answers: tuple[str, ...], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (answer, 0)) for answer in answers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert hvd.address_of_name.__wrapped__() == address


# Files are dropped from the page cache, and the kernel says so.


def test_files_that_are_dropped_are_not_cached_any_more(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "none")]
    for path in paths[:2]:
        with Path(path).open("wb") as file:
            file.write(bytes(200_000))
            file.flush()
            os.fsync(file.fileno())
    Path(paths[2]).touch()
    assert run_task.cached_fraction(paths) == 1.0
    run_task.drop_cached(paths[:1])
    if run_task.cached_fraction(paths[:1]) == 1.0:
        pytest.skip("files lie in memory here (tmpfs)")
    assert run_task.cached_fraction(paths) == 0.5
    run_task.drop_cached(paths)
    assert run_task.cached_fraction(paths) == 0.0


def test_files_that_are_not_there(tmp_path: Path) -> None:
    assert run_task.cached_fraction([]) is None
    with pytest.raises(FileNotFoundError):
        run_task.drop_cached([str(tmp_path / "none")])


# What other commands print.


def test_output_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    assert proc.output("sh", "-c", 'echo "$LC_ALL${GIT_DIR-unset}"') == "Cunset\n"
    assert proc.output("sh", "-c", "echo printed; exit 3") == ""
    assert proc.output("no-such-command-anywhere") == ""


# The kernel's account of TCP connections, from sockets between two addresses of this host.


def sent_to_far(before: connections.Reading) -> list[Flow]:
    return [one for one in connections.since(before, connections.read()) if one.peer == "127.0.0.2"]


@pytest.mark.parametrize(("family", "here", "there"), [
    (socket.AF_INET, "127.0.0.1", "127.0.0.2"),
    (socket.AF_INET6, "::ffff:127.0.0.1", "::ffff:127.0.0.2"),
])  # fmt: skip
def test_a_connection_is_counted_in_bytes_and_busy_while_its_reader_sleeps(
    family: socket.AddressFamily, here: str, there: str
) -> None:
    with socket.socket(family) as server:
        server.bind((there, 0))
        server.listen()
        sender = socket.socket(family)
        sender.bind((here, 0))
        sender.connect(server.getsockname())
        receiver, _ = server.accept()
        with sender, receiver:
            before = connections.read()
            sender.settimeout(0.1)
            sent = 0
            with pytest.raises(TimeoutError):
                while True:
                    sent += sender.send(bytes(1 << 16))
            eventually(lambda: any(one.busy_s > 0.1 for one in sent_to_far(before)))
            receiver.settimeout(5)
            left = sent
            while left:
                left -= len(receiver.recv(1 << 20))
            # The acknowledgement of the last bytes may be on its way.
            (found,) = eventually(lambda: [one for one in sent_to_far(before) if one.sent_bytes == sent])
    assert found.address == "127.0.0.1"
    assert found.busy_s > 0.1


def test_connections_inside_the_host_are_not_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        receiver, _ = server.accept()
        with receiver:
            assert not any(one.address == one.peer for one in connections.read())


# Which allocator a process finds that a real loader started.

ROOT = Path(__file__).parents[3]
# glibc's own under the name by which an allocator is found.
SOURCE = """
extern void *__libc_memalign(unsigned long, unsigned long);
int posix_memalign(void **made, unsigned long alignment, unsigned long bytes) {
    return (*made = __libc_memalign(alignment, bytes)) ? 0 : 12;
}
"""
TOLD = """
import os
from scaling.hosts import info
print(info.allocator_in_use(), info.allocator_brought_by(os.environ), sep=",")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    made = tmp_path_factory.mktemp("allocator") / "libjemalloc.so.2"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    subprocess.run(command, input=SOURCE, text=True, check=True, timeout=60)
    return made


def told(preload: str, code: str = TOLD) -> str:
    environ = {**os.environ, "LD_PRELOAD": preload, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.strip()


def test_one_that_is_preloaded_is_found_also_by_its_other_name(library: Path) -> None:
    link = library.with_name("libjemalloc.so")
    link.symlink_to(library.name)
    assert told(str(library)) == told(str(link)) == "jemalloc,LD_PRELOAD"


def test_one_that_is_not_there_is_not_found() -> None:
    assert told("/nowhere/libjemalloc.so.2") == ","


def test_one_that_ld_preload_does_not_name_any_more_is_found(library: Path) -> None:
    """As from /etc/ld.so.preload, or linked to Python."""
    assert told(str(library), f"import os; os.environ['LD_PRELOAD'] = ''; {TOLD}") == "jemalloc,"


def test_one_that_an_extension_loads_for_itself_is_none(library: Path) -> None:
    assert told("", f"import ctypes; ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL); {TOLD}") == ","
