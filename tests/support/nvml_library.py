"""A libnvidia-ml.so.1 of our own below the real nvidia-ml-py: what a process sees that loads it.

As a program it is that process: `python -m tests.support.nvml_library` reads variables as JSON, a line for each
machine, and forks. The fork prints as JSON what an agent finds, and what it reads of each GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from scaling import frameworks
from scaling.agent import strategies
from scaling.agent.watch import Watch
from scaling.hosts import gpus, info
from tests.support.points import POINT, TASK, changed

Ask = Callable[..., dict[str, Any]]

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
ROOT = Path(__file__).parents[2]


def build(folder: Path, *flags: str) -> Path:
    """Compile it; returns its folder. Skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: apt-get install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    command = [
        compiler,
        *["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"],
        *flags,
        "-o",
        str(library),
        str(SOURCE),
    ]
    subprocess.run(command, check=True, timeout=60)
    return folder


def environ(folder: Path, machine: str, *, visible: str | None = None, log: Path | None = None) -> dict[str, str]:
    made = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    made |= {"LD_LIBRARY_PATH": str(folder), "FAKE_NVML": machine, "PYTHONPATH": str(ROOT)}
    made |= {"CUDA_VISIBLE_DEVICES": visible} if visible is not None else {}
    return made | ({"FAKE_NVML_LOG": str(log)} if log is not None else {})


@contextmanager
def asking(folder: Path) -> Iterator[Ask]:
    """Ask what an agent finds on a machine: ask(machine), with `visible` devices and a `log` of calls."""
    command = [sys.executable, "-m", "tests.support.nvml_library"]
    env = environ(folder, "")
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin and process.stdout
        lines, answers = process.stdin, process.stdout

        def ask(machine: str, **changes: Any) -> dict[str, Any]:
            print(json.dumps(environ(folder, machine, **changes)), file=lines, flush=True)
            found: dict[str, Any] = json.loads(answers.readline())
            return found

        yield ask
        process.stdin.close()


def _report() -> dict[str, Any]:
    """As an agent: enrol, then watch a worker on each GPU."""
    host = info.gather({})
    lacking = strategies.lacking((*frameworks.NAMES, *frameworks.BASELINES))
    telemetry = []
    for index, gpu in enumerate(host.gpus):
        shown = gpu.uuid if gpu.parent else ""
        point = changed(POINT, device="cuda")
        task = replace(TASK, point=point, device_indices=(0 if shown else index,), shown_gpu=shown)
        watch = Watch(task, os.getpid(), computes=True)
        watch.begin(1, 0.0)
        telemetry.append(watch.close())
    found: dict[str, Any] = msgspec.to_builtins(
        {
            "gpus": host.gpus,
            "driver": host.gpu_driver,
            "reachable": host.reachable_gpus,
            "health": gpus.gather_health().gpus,
            "telemetry": telemetry,
            "missing": lacking.missing_on_cuda,
        }
    )
    return found


def main() -> None:
    for line in sys.stdin:
        if pid := os.fork():
            if os.waitpid(pid, 0)[1]:
                print("{}", flush=True)  # no answer comes, and nobody must wait for it
            continue
        os.environ.update(json.loads(line))
        print(json.dumps(_report()), flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
