"""Flags that change nothing on the devices that were found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scaling.errors import UsageError
from scaling.plan import plan
from scaling.records.host import Gpu, HostInfo
from scaling.run import flags, invocation
from tests.support.inline import enrol, host

GIB = 1 << 30
ON_CPU = host(cores=2, memory_bytes=512 * GIB)
ON_GPUS = host(
    cores=2,
    memory_bytes=512 * GIB,
    gpu_driver="580.95.05",
    gpus=tuple(
        Gpu(index=n, name="NVIDIA H100", uuid=f"GPU-{n}", memory_bytes=80 * GIB, compute_capability=(9, 0))
        for n in range(2)
    ),
)


def check(command: str, on: HostInfo, older: dict[str, Any] | None = None) -> plan.Plan:
    """What a command line plans on two ranks of this host, after its flags were looked at."""
    words = command.split()
    asked = flags.parse([*(() if "--strategy" in words else ("--strategy", "torch:gloo")), *words])
    made = plan.make(invocation.resolve(asked, older), [enrol(on)] * 2)
    plan.check_given(made, asked.given)
    return made


@pytest.mark.parametrize(
    ("command", "on", "words"),
    [
        ("--malloc system", ON_GPUS, "--malloc: is of workers on CPUs, and all of these are on GPUs; leave it"),
        ("--malloc keep", ON_GPUS, "--malloc: is of workers on CPUs"),
        ("--fresh-workers", ON_GPUS, "--fresh-workers: is of workers on CPUs"),
        ("--interleave --world-sizes 1 --kinds exchange", ON_CPU, "--interleave: no two points of a framework"),
        ("--interleave --world-sizes 1 --kinds exchange", ON_GPUS, "--interleave: no two points of a framework"),
        ("--interleave --pass forward --strategy torch:plain", ON_CPU, "--interleave: no two points"),
        ("--interleave --world-sizes 1 --kinds exchange --strategy torch:gloo,mxnet:dist_sync", ON_CPU, "--inter"),
    ],
)  # fmt: skip
def test_a_flag_that_changes_nothing_here_is_refused(command: str, on: HostInfo, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(command, on)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("command", "on"),
    [
        ("--malloc system --fresh-workers", ON_CPU),
        ("--malloc system --fresh-workers --device cpu", ON_GPUS),
        ("--malloc system --fresh-workers --baseline-device cpu", ON_GPUS),
        ("--malloc system --fresh-workers --device emulated:p100", ON_CPU),
        ("--interleave --world-sizes 1,2 --kinds exchange", ON_CPU),
        ("--interleave --world-sizes 1 --kinds exchange,solo", ON_GPUS),
        ("--no-interleave --world-sizes 1 --kinds exchange", ON_CPU),
        ("--world-sizes 1 --kinds exchange", ON_CPU),
    ],
)
def test_what_has_its_use_is_taken(command: str, on: HostInfo) -> None:
    check(command, on)


def test_what_memory_keeps_apart_is_no_mistake() -> None:
    small = host(cores=2, memory_bytes=GIB)
    assert not check("--interleave --world-sizes 1,2 --kinds exchange", small).side_by_side


def test_what_a_file_or_an_older_run_says_beyond_need_is_no_mistake(tmp_path: Path) -> None:
    older = {"malloc": "system", "fresh_workers": True, "interleave": True}
    check("--world-sizes 1 --kinds exchange", ON_GPUS, older)
    file = tmp_path / "run.toml"
    file.write_text("malloc = 'system'\nfresh_workers = true\ninterleave = true")
    check(f"--world-sizes 1 --kinds exchange --config {file}", ON_GPUS)
