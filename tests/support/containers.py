"""Images and containers of tests: buildah and podman, on a storage in a folder that is gone afterwards.

Each command has mounts of its own, so that none is seen outside and none outlives it. Containers have no cgroups.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from scaling.records.point import Record
from tests.support import debian
from tests.support.fresh_machine import REPOSITORY
from tests.support.labs import reason_against

PACKAGES = ("buildah", "podman", "crun", "mmdebstrap")
SUITE = "bookworm"
# That of no commit, to be found again in an image.
REVISION = "0123456789abcdef0123456789abcdef01234567"
# As Debian's own image has it; an archive of files says nothing of it.
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# crun takes cgroups of version 1 or 2, not both at once.
ONE_VERSION = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "sh", "-c", ONE_VERSION, "sh")
# Low enough for any machine: podman would raise them, which not every root may.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000")
MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
# Debian's image of this kind is without them too.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*", "/var/log/apt/*")
ROOM_BYTES = 8e9
# Podman's, whatever storage it is given.
LOCKS = Path("/dev/shm/libpod_lock")
PIP = ("index-url", "extra-index-url", "find-links", "cert")


def missing() -> str | None:
    """Install what is not there. Why no image can be built here, or None."""
    if against := reason_against().replace("a lab", "a container"):
        return against
    if not all(map(shutil.which, PACKAGES)) and (reason := debian.install(*PACKAGES)):
        return reason
    return None if has_overlay() else f"no overlay of folders in {roomy() or tempfile.gettempdir()}"


def has_overlay() -> bool:
    """Whether images can be kept as layers where the storage would be."""
    with tempfile.TemporaryDirectory(dir=roomy()) as folder:
        for name in ("low", "up", "work", "seen"):
            (Path(folder) / name).mkdir()
        layers = f"lowerdir={folder}/low,upperdir={folder}/up,workdir={folder}/work"
        mounted = [*OWN_MOUNTS, "mount", "-t", "overlay", "overlay", "-o", layers, f"{folder}/seen"]
        return subprocess.run(mounted, capture_output=True, check=False).returncode == 0


class Store(Record, frozen=True, kw_only=True):
    """Where images and containers are kept."""

    folder: Path

    def words(self, program: str) -> list[str]:
        paths = ["--root", str(self.folder / "root"), "--runroot", str(self.folder / "run")]
        return [*OWN_MOUNTS, program, "--storage-driver", "overlay", *paths]

    def buildah(self, *words: str, within_s: float = 60) -> str:
        return said([*self.words("buildah"), *words], within_s)

    def podman(self, *words: str, within_s: float = 60) -> str:
        return said([*self.words("podman"), "--cgroup-manager", "cgroupfs", *words], within_s)

    def build(self, image: str, file: Path, within_s: float = 600, **arguments: str) -> None:
        """Build an image of the repository, with this machine's settings of pip."""
        settings = pip_settings()
        given = [f"--build-arg={name}={value}" for name, value in (settings | arguments).items()]
        how = ("--isolation", "chroot", "--network", "host", "--pull-never", *volumes(settings.values()))
        self.buildah("bud", *how, *given, "--file", str(file), "--tag", image, str(REPOSITORY), within_s=within_s)

    def command(self, image: str, *words: str, flags: tuple[str, ...] = ("--network", "none")) -> list[str]:
        """How a container is run in the foreground, and removed at its end."""
        run = ["--cgroup-manager", "cgroupfs", "run", "--rm", "--cgroups", "disabled", *LIMITS, *flags]
        return [*self.words("podman"), *run, image, *words]

    def run(
        self, image: str, *words: str, flags: tuple[str, ...] = ("--network", "none"), within_s: float = 120
    ) -> str:
        """What a container prints, by default one without a network; AssertionError where it fails."""
        return said(self.command(image, *words, flags=flags), within_s)


@contextlib.contextmanager
def store() -> Iterator[Store]:
    """An empty storage; at the end all of its containers, files and processes are gone."""
    kept = Store(folder=Path(tempfile.mkdtemp(prefix="containers-", dir=roomy())))
    had_locks = LOCKS.exists()
    try:
        yield kept
    finally:
        kept.podman("rm", "--all", "--force", "--time", "0")
        mine = list(processes(kept.folder))
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(mine, timeout=5)
        shutil.rmtree(kept.folder)
        if not had_locks:
            LOCKS.unlink(missing_ok=True)
    assert str(kept.folder) not in Path("/proc/self/mountinfo").read_text()


def roomy() -> str | None:
    """Where a few GB are written and removed fastest; None for the usual place of temporary files."""
    memory = Path("/dev/shm")
    enough = memory.is_dir() and shutil.disk_usage(memory).free > ROOM_BYTES
    return str(memory) if enough and psutil.virtual_memory().available > 2 * ROOM_BYTES else None


def processes(folder: Path) -> Iterator[psutil.Process]:
    """Those that were called with a folder, as monitors of containers are."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(folder) in word for word in process.cmdline()):
                yield process


def said(command: list[str], within_s: float) -> str:
    """What a command prints; AssertionError with all of it where it fails or is not done in time."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code: int | str = process.wait(within_s)
        except subprocess.TimeoutExpired:
            code = f"none after {within_s:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        printed = out.read()
    assert code == 0, f"{' '.join(command)}: exit code {code}\n{printed[-6000:]}"
    return printed


def debian_base(kept: Store, image: str) -> None:
    """Make an image of Debian's smallest system, since no registry is needed for that."""
    archive = kept.folder / "base.tar"
    slim = [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    packages = "--include=ca-certificates,usr-is-merged"  # else usrmerge, which brings all of Perl
    command = ["mmdebstrap", "--variant=minbase", packages, f"--hook-dir={MERGED}", *slim, SUITE, str(archive)]
    said([*OWN_MOUNTS, *command], 240)
    kept.podman("import", "--change", f"ENV {PATH}", str(archive), image)
    archive.unlink()


def pip_settings() -> dict[str, str]:
    listed = said([sys.executable, "-m", "pip", "config", "list"], 60)
    found = dict(re.findall(r"^[\w:]+\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    return {f"PIP_{name.replace('-', '_').upper()}": found[name] for name in PIP if name in found}


def volumes(settings: Iterable[str]) -> list[str]:
    """The folders of this machine that settings of pip name: an index's files lie beside its pages."""
    words = [word for setting in settings for word in setting.split()]
    urls = {Path(word.removeprefix("file://")).parent for word in words if word.startswith("file://")}
    paths = {Path(word) for word in words if word.startswith("/")}
    folders = {path if path.is_dir() else path.parent for path in paths if path.exists()} | urls
    return [word for folder in sorted(folders) for word in ("--volume", f"{folder}:{folder}:ro")]


def torch_without_cuda() -> bool:
    """Whether pip finds a torch of moderate size here: it did for these tests' own environment."""
    with contextlib.suppress(PackageNotFoundError):
        return version("torch").endswith("+cpu")
    return False
