"""Environments made for a test: they find what this one has, and before it what is put into them."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path


class Environment:
    """A venv of this Python at `folder`, without pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        (self.packages / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    @property
    def packages(self) -> Path:
        """Where pip would install."""
        (found,) = self.folder.glob("lib/python3*/site-packages")
        return found

    def install(self, name: str, version: str, code: str = "") -> None:
        """Put a package there as pip leaves it; whoever imports it runs `code`."""
        (self.packages / name).mkdir()
        (self.packages / name / "__init__.py").write_text(code)
        metadata = self.packages / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
