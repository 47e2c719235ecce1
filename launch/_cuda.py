r"""Chooses the CUDA of the wheels: by `--cuda`, else by this machine's driver and GPUs. Standard library only.

Supported compute capabilities and drivers (NVIDIA, CUDA compatibility, table 1):
* torch on PyPI, CUDA 13: from 7.5, driver 580
* torch with CUDA 12.6: 5.0 to 9.0 (pytorch#172352), driver 525
* MXNet's last CUDA builds: code for 5.0 to 8.6, which also runs on 8.9; no PTX for newer GPUs
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WHEELS = ("12", "13", "none")
TORCH_INDEX = {
    "12": "https://download.pytorch.org/whl/cu126",
    "none": "https://download.pytorch.org/whl/cpu",
}
DRIVER_OF = {"12": 525, "13": 580}
TOO_OLD_FOR_13, TOO_NEW_FOR_12 = 7.5, 10.0
MXNET_FROM, MXNET_BELOW = 5.0, 9.0
ANSWER_S = 30  # of nvidia-smi, which can hang on a broken driver
PROC = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The CUDA of the wheels ("none": CPU wheels), the reason, and the GPUs' compute capabilities if known."""

    wheels: str
    why: str
    capabilities: tuple[float, ...] = ()
    is_asked: bool = False

    @property
    def is_cuda(self) -> bool:
        return self.wheels != "none"

    def pip_options(self, extras: Sequence[str]) -> list[str]:
        """Return pip's options for torch's index: PyPI, unless another build is needed or asked for."""
        is_other = "torch" in extras and (self.is_cuda or self.is_asked)
        index = TORCH_INDEX.get(self.wheels) if is_other else None
        return ["--extra-index-url", index] if index else []

    def noted(self) -> dict[str, Any]:
        return {"cuda": self.wheels, "for_want_of_driver": not (self.is_cuda or self.is_asked or driver())}

    def told(self) -> str:
        return f"wheels for {f'CUDA {self.wheels}' if self.is_cuda else 'CPUs'}: {self.why}"

    def without_mxnet(self) -> str | None:
        """Return why MXNet's CUDA builds do not run on these GPUs, or None."""
        lacking = [f"{one:.1f}" for one in self.capabilities if not MXNET_FROM <= one < MXNET_BELOW]
        if not lacking:
            return None
        return f"MXNet 1.9.1 has no code for compute capability {', '.join(dict.fromkeys(lacking))} (5.0 to 8.9)"


def split(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split `--cuda WHICH` from the rest. SystemExit(2) for anything but 12, 13 and none."""
    asked, rest = None, []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name != "--cuda":
            rest.append(word)
            continue
        asked = value if equals else next(words, "")
        if asked not in WHEELS:
            sys.stderr.write(f"launch: --cuda {asked or '(nothing)'}: expected 12, 13 or none\n")
            raise SystemExit(2)
    return asked, rest


def choose(asked: str | None) -> Choice:
    capabilities, driver = machine()
    if asked is not None:
        return Choice(wheels=asked, why=f"--cuda {asked}", capabilities=capabilities, is_asked=True)
    return judged(capabilities, driver)


def judged(capabilities: tuple[float, ...], driver: str | None) -> Choice:
    """Choose for these compute capabilities and this driver (None: no driver, "": unknown version)."""
    if driver is None:
        return Choice(wheels="none", why="no NVIDIA driver here")
    release = int(driver.partition(".")[0] or DRIVER_OF["13"])
    old = [one for one in capabilities if one < TOO_OLD_FOR_13]
    if release < DRIVER_OF["12"]:
        return Choice(wheels="none", why=f"driver {driver} is older than {DRIVER_OF['12']}, which CUDA 12 needs")
    if release < DRIVER_OF["13"]:
        why = f"driver {driver}; CUDA 13 needs {DRIVER_OF['13']}"
        return Choice(wheels="12", why=why + unfit(capabilities), capabilities=capabilities)
    if old:
        why = f"a GPU of compute capability {min(old):.1f}, for which CUDA 13 has nothing"
        return Choice(wheels="12", why=why + unfit(capabilities), capabilities=capabilities)
    why = f"driver {driver}" if driver else "a driver of no known version"
    return Choice(wheels="13", why=why, capabilities=capabilities)


def unfit(capabilities: Sequence[float]) -> str:
    new = [one for one in capabilities if one >= TOO_NEW_FOR_12]
    return f"; but torch for CUDA 12.6 has nothing for compute capability {max(new):.1f}" if new else ""


def machine() -> tuple[tuple[float, ...], str | None]:
    """Return the GPUs' compute capabilities and the driver's version (None: no driver, "": unknown)."""
    if not driver():
        return (), None
    found = re.findall(r"^([\d.]+), *([\d.]+)$", smi("compute_cap,driver_version"), re.MULTILINE)
    if found:
        return tuple(float(capability) for capability, _ in found), found[0][1]
    # Drivers before 510 have no compute_cap. A container may have no nvidia-smi.
    with suppress(OSError):
        if version := re.search(r"Kernel Module.*?\b(\d+\.[\d.]+)", PROC.read_text()):
            return (), version[1]
    version = re.search(r"^[\d.]+$", smi("driver_version"), re.MULTILINE)
    return (), version[0] if version else ""


def driver() -> bool:
    return PROC.exists() or shutil.which("nvidia-smi") is not None


def smi(fields: str) -> str:
    """Return nvidia-smi's output for each GPU, "" without an answer."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=False).stdout
    return ""


# ---------------------------------------------------------------- an installed torch


def other_torch(choice: Choice) -> str | None:
    """Return the CUDA of an installed torch that does not fit the choice ("none": CPU build), else None."""
    if not (choice.is_cuda or choice.is_asked):
        return None
    spec: Any = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    with suppress(OSError):
        text = Path(spec.origin).with_name("version.py").read_text()
        if found := re.search(r"^cuda\b.*= *(?:'(\d+)[^']*'|None)$", text, re.MULTILINE):
            cuda = found[1] or "none"
            # CUDA 12 also runs on a driver for CUDA 13
            fits = cuda == choice.wheels or (not choice.is_asked and (cuda, choice.wheels) == ("12", "13"))
            return None if fits else cuda
    return None
