"""What a host says of itself, its allocator and its revision."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped, unused-ignore]
import pynvml as real  # type: ignore[import-untyped, unused-ignore]
import pytest
from msgspec.structs import replace

import scaling
from scaling import frameworks
from scaling.agent.environment import KEPT_HEAP
from scaling.errors import LaunchError
from scaling.hosts import info, interfaces, proc
from scaling.hosts.info import check_names, code_hash, describe, gather, joined, pick_cpus
from scaling.records.host import Gpu, HostInfo
from tests.support.fake_nvml import FakeGpu, Install
from tests.support.inline import host as described

# The description of a host.

PACKAGES = frameworks.distributions()

# ---------------------------------------------------------------- gather


def test_this_host() -> None:
    host = gather(PACKAGES)
    assert host.hostname == socket.gethostname()
    assert host.kernel == os.uname().release
    assert host.cpu_model
    assert host.os
    assert host.sockets >= 1
    assert {cpu for core in host.cores for cpu in core} == os.sched_getaffinity(0)
    assert 0 < host.memory_bytes <= psutil.virtual_memory().total
    assert host.python == ".".join(map(str, sys.version_info[:3]))
    assert host.versions["scaling"] == scaling.__version__
    assert host.versions["mpi4py"].startswith("4.")
    assert ("lo", "127.0.0.1", "255.0.0.0", None) in [
        (nic.name, nic.address, nic.netmask, nic.speed_bits_per_s) for nic in host.nics
    ]
    assert [gpu.index for gpu in host.gpus] == list(range(len(host.gpus)))
    assert msgspec.json.decode(msgspec.json.encode(host), type=HostInfo) == host


def test_another_allocator_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "allocator_in_use", lambda: "jemalloc")
    for preload, by in (("libjemalloc.so.2", "LD_PRELOAD"), ("", "")):
        monkeypatch.setenv("LD_PRELOAD", preload)
        host = gather(PACKAGES)
        assert (host.allocator, host.allocator_by) == ("jemalloc", by)


def test_what_the_user_has_set_of_the_heap_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    assert "MALLOC_TRIM_THRESHOLD_=0" in gather(PACKAGES).heap_settings


def test_different_variables_of_ranks_are_listed_together() -> None:
    ranks = [described(variables=one) for one in ({"A": "1", "B": "1"}, {"A": "1"}, {"A": "1", "B": "2"})]
    assert joined(ranks).variables == {"A": "1", "B": "1 | unset | 2"}
    assert joined(ranks[:1]) == ranks[0]


def test_a_rank_that_its_launcher_bound_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1} if pid else {1})
    monkeypatch.setattr(proc, "physical_cores", lambda cpus: tuple((cpu,) for cpu in sorted(cpus)))
    host = gather(PACKAGES)
    assert (len(host.cores), host.launcher_cores) == (1, 2)


def test_an_allocator_that_is_only_named_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = gather(PACKAGES)
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/libjemalloc.so.2")
    host = gather(PACKAGES)
    assert (host.allocator, host.allocator_by) == (own.allocator, own.allocator_by)


def test_gpus_and_driver_are_in_it(install: Install) -> None:
    install(FakeGpu())
    host = gather(PACKAGES)
    assert ([gpu.name for gpu in host.gpus], host.gpu_driver) == (["NVIDIA H200"], "570.86.15")


def test_no_gpu(install: Install) -> None:
    install(init_error=real.NVML_ERROR_LIBRARY_NOT_FOUND)
    host = gather(PACKAGES)
    assert (host.gpus, host.gpu_driver) == ((), "")
    assert describe(host).endswith("; no GPU")


def test_the_cgroups_limit_counts_when_it_is_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limit, expected in ((None, total), (2**30, 2**30), (2**62, total)):
        monkeypatch.setattr(proc, "memory_limit_bytes", lambda limit=limit: limit)
        assert gather(PACKAGES).memory_bytes == expected


def test_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(family: int, text: str) -> Any:
        return SimpleNamespace(family=family, address=text, netmask=None)

    def state(speed: int) -> Any:
        return SimpleNamespace(isup=True, mtu=9000, speed=speed)

    v4, v6 = socket.AF_INET, socket.AF_INET6
    addresses = {
        "eth0": [address(v6, "fe80::1"), address(v4, "10.0.0.1"), address(v4, "10.0.0.2")],
        "ib0": [address(v4, "10.10.0.1")],
        "old0": [address(v4, "10.11.0.1")],
        "veth0": [address(v4, "10.13.0.1")],
        "v6only": [address(v6, "fe80::2")],
        "ib0:1": [address(v4, "10.10.1.1")],
        "gone:1": [address(v4, "10.12.1.1")],
        "gone": [address(v4, "10.12.0.1")],
    }
    states = {"eth0": state(0), "ib0": state(400_000), "old0": state(65535), "v6only": state(1000)}
    states["veth0"] = state(10_000)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
    monkeypatch.setattr(interfaces, "has_card", lambda name: name != "veth0")
    host = gather(PACKAGES)
    assert host.ipv6_only == ("v6only",)
    assert [(nic.name, nic.address, nic.netmask, nic.speed_bits_per_s) for nic in host.nics] == [
        ("eth0", "10.0.0.1", "", None),
        ("eth0", "10.0.0.2", "", None),
        ("ib0", "10.10.0.1", "", 400e9),
        ("old0", "10.11.0.1", "", None),
        ("veth0", "10.13.0.1", "", None),
        ("ib0", "10.10.1.1", "", 400e9),
    ]


@pytest.mark.parametrize(
    ("installed", "known"),
    [
        (
            ("tensorflow-cpu", "keras", "mxnet", "mxnet-cu112", "horovod"),
            {"tensorflow": "tensorflow-cpu", "keras": "keras", "mxnet": "mxnet", "horovod": "horovod"},
        ),
        (("mxnet-cu117",), {"mxnet": "mxnet-cu117"}),
        (("mxnet-cu113",), {"mxnet": "mxnet-cu113"}),
        *(((name,), {name: name}) for name in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")),
        (("triton",), {"triton": "triton"}),
    ],
)
def test_versions_under_other_distribution_names(
    installed: tuple[str, ...], known: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name in installed:
            return name
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    assert gather(PACKAGES).versions == {"scaling": scaling.__version__, **known}


@pytest.mark.parametrize("error", [None, KeyError("Version"), FileNotFoundError()])
def test_a_package_that_is_half_removed_is_not_installed(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder of metadata remains, empty: its version is None, which rank 0 would not read. Python 3.12 warns
    that this will be an error."""

    def version(name: str) -> str | None:
        if name == "mxnet" and error is not None:
            raise error
        return None if name == "mxnet" else name

    monkeypatch.setattr(metadata, "version", version)
    found = info.versions({"numpy": ("mxnet",), "mxnet": ("mxnet", "mxnet-cu112")})
    assert found == {"mxnet": "mxnet-cu112"}


# ---------------------------------------------------------------- describe


def host(**fields: Any) -> HostInfo:
    plain: dict[str, Any] = {
        "hostname": "host", "os": "Debian GNU/Linux 12 (bookworm)", "kernel": "6.1", "cpu_model": "AMD EPYC",
        "sockets": 1, "cores": ((0,), (1,)), "memory_bytes": 25_232_932_864, "load_1m": 0.0,
        "python": "3.11.2", "versions": {},
    }  # fmt: skip
    return HostInfo(**(plain | fields))


def gpu(index: int, *links: str, name: str = "NVIDIA H200") -> Gpu:
    return Gpu(
        index=index, name=name, uuid=f"GPU-{index}", memory_bytes=150 << 30, power_limit_w=700.0,
        max_sm_clock_mhz=1980.0, links=links,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "host: AMD EPYC, 2 cores, 23.5 GiB, Debian 12; no GPU"),
        (
            {
                "cpu_model": "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz",
                "os": "Rocky Linux 9.4 (Blue Onyx)",
                "cores": ((0, 1),),
            },
            "host: Intel Xeon Platinum 8480C, 1 core, 23.5 GiB, Rocky Linux 9.4; no GPU",
        ),
        (
            {"cpu_model": "AMD EPYC 9654 96-Core Processor", "os": "Ubuntu 24.04.1 LTS"},
            "host: AMD EPYC 9654, 2 cores, 23.5 GiB, Ubuntu 24.04.1 LTS; no GPU",
        ),
    ],
)
def test_a_host_in_one_line(fields: dict[str, Any], expected: str) -> None:
    assert describe(host(**fields)) == expected


@pytest.mark.parametrize(
    ("gpus", "driver", "expected"),
    [
        ((), "unusable: Driver Not Loaded", "no GPU visible (driver unusable: Driver Not Loaded)"),
        ((gpu(0, "self"),), "570.86", "1 x NVIDIA H200 (driver 570.86)"),
        (
            (gpu(0, "self", "NV18"), gpu(1, "NV18", "self")),
            "570.86",
            "2 x NVIDIA H200 (driver 570.86), NVLink NV18",
        ),
        (
            (gpu(0, "self", "NV4"), gpu(1, "NV4", "self"), gpu(2, "SYS", "SYS", name="T4")),
            "570.86",
            "2 x NVIDIA H200, 1 x T4 (driver 570.86), linked by NV4/SYS",
        ),
        ((gpu(0, "self", "?"), gpu(1, "?", "self")), "", "2 x NVIDIA H200"),
    ],
)
def test_gpus_in_one_line(gpus: tuple[Gpu, ...], driver: str, expected: str) -> None:
    assert describe(host(gpus=gpus, gpu_driver=driver)).split("; ", 1)[1] == expected


# ---------------------------------------------------------------- pick_cpus


CORES = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("local_rank", "per_rank", "expected"),
    [
        (0, 1, (0, 4)),
        (3, 1, (3, 7)),
        (1, 2, (2, 6, 3, 7)),
        (4, 1, (0, 4)),
        (1, 3, (3, 7, 0, 4, 1, 5)),
        (0, 9, (0, 4, 1, 5, 2, 6, 3, 7)),
    ],
)
def test_pick_cpus(local_rank: int, per_rank: int, expected: tuple[int, ...]) -> None:
    assert pick_cpus(CORES, local_rank=local_rank, per_rank=per_rank) == expected


def test_ranks_that_fit_share_no_cpu() -> None:
    picked = [cpu for rank in range(2) for cpu in pick_cpus(CORES, local_rank=rank, per_rank=2)]
    assert sorted(picked) == list(range(8))


# ---------------------------------------------------------------- names


def test_two_machines_of_one_name_are_refused() -> None:
    one, same, other = (host(hostname="localhost", boot_id=boot_id) for boot_id in ("a", "a", "b"))
    with pytest.raises(LaunchError, match="ranks 0 and 2 run on two machines that both call themselves localhost"):
        check_names([one, same, other])


def test_two_containers_of_one_kernel_and_one_name_are_refused() -> None:
    one, same, other = (host(hostname="box", boot_id="a", network_id=f"net:[{number}]") for number in (1, 1, 2))
    check_names([one, same, replace(other, hostname="box2")])
    check_names([one, replace(one, network_id="")])
    with pytest.raises(
        LaunchError, match=r"ranks 0 and 2 run on two containers .* themselves box; .*--hostname NAME"
    ):
        check_names([one, same, other])


def test_this_host_tells_its_network_namespace() -> None:
    assert re.fullmatch(r"net:\[\d+\]", gather({}).network_id)


def test_ranks_of_one_machine_nodes_of_one_and_those_who_cannot_tell_are_not() -> None:
    check_names([host(hostname=name, boot_id=boot_id) for name, boot_id in ("a1", "b1", "a1", "c2", "b1")])
    check_names([host(hostname="a"), host(hostname="a", boot_id="1")])


# Which library allocates memory, whether LD_PRELOAD brought it, and what the user has set of glibc's heap.


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2", "jemalloc"),
        ("libtcmalloc_minimal.so.4", "tcmalloc"),
        ("/opt/mimalloc/libmimalloc-secure.so", "mimalloc"),
        ("/usr/lib/libtbbmalloc_proxy.so.2", "tbbmalloc"),
        ("/opt/lib/libmesh.so.1", "mesh"),
        ("/opt/jemalloc/lib/libmesh.so", "mesh"),  # a folder's name says nothing
        ("/usr/lib/libc_malloc_debug.so.0", "c_malloc_debug"),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", ""),
        ("/lib/x86_64-linux-gnu/libc-2.31.so", ""),
        ("/lib/ld-musl-x86_64.so.1", ""),
        ("/usr/bin/python3.11", ""),
        ("", ""),
    ],
)
def test_an_allocator_is_known_by_its_library(path: str, name: str) -> None:
    assert info.allocator_named(path) == name


@pytest.mark.parametrize(
    ("preload", "by"),
    [
        ("libjemalloc.so.2", "LD_PRELOAD"),
        ("/usr/$LIB/libjemalloc.so", "LD_PRELOAD"),
        ("libfoo.so:libjemalloc.so", "LD_PRELOAD"),
        ("libfoo.so libjemalloc.so", "LD_PRELOAD"),
        ("/nowhere/libjemalloc.so.2", ""),
        ("libtcmalloc.so.4", ""),
        ("", ""),
    ],
)
def test_whether_ld_preload_brought_it(preload: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "allocator_in_use", lambda: "jemalloc")
    assert info.allocator_brought_by({"LD_PRELOAD": preload}) == by


def test_nothing_brought_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "allocator_in_use", lambda: "")
    assert info.allocator_brought_by({"LD_PRELOAD": "libjemalloc.so.2"}) == ""
    assert info.allocator_brought_by({}) == ""


# ---------------------------------------------------------------- glibc's settings


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({}, ()),
        ({"MALLOC_TRIM_THRESHOLD_": "0"}, ("MALLOC_TRIM_THRESHOLD_=0",)),
        ({"MALLOC_TOP_PAD_": ""}, ("MALLOC_TOP_PAD_=",)),  # glibc takes it for 0
        ({"MALLOC_CONF": "narenas:1", "MALLOC_TRACE": "/x"}, ()),  # jemalloc's, mtrace(3)'s
        ({"GLIBC_TUNABLES": "glibc.malloc.top_pad=1:glibc.rtld.nns=2"}, ("glibc.malloc.top_pad=1",)),
        (
            {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1", "MALLOC_ARENA_MAX": "2"},
            ("MALLOC_ARENA_MAX=2", "glibc.malloc.arena_max=1"),
        ),
    ],
)
def test_what_the_user_has_set(environ: dict[str, str], found: tuple[str, ...]) -> None:
    assert info.heap_settings(environ) == found


def test_all_that_workers_are_given_the_user_may_have_set() -> None:
    assert KEPT_HEAP.keys() <= set(info.HEAP_VARIABLES)


# The hash of the code that runs on a host.


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "repo/scaling"
    (folder / "worker").mkdir(parents=True)
    (folder / "__init__.py").write_text("one")
    (folder / "worker/loop.py").write_text("two")
    return folder


def test_code_hash_knows_names_and_contents(package: Path) -> None:
    hashes = [code_hash(package)]
    (package / "worker/loop.py").write_text("three")
    hashes.append(code_hash(package))
    (package / "worker/loop.py").rename(package / "loop.py")
    hashes.append(code_hash(package))
    (package / "empty.py").touch()
    hashes.append(code_hash(package))
    assert len(set(hashes)) == 4
    assert all(len(text) == 12 and set(text) <= set("0123456789abcdef") for text in hashes)


def test_code_hash_is_equal_on_hosts_that_have_the_same_code(package: Path, tmp_path: Path) -> None:
    before = code_hash(package)
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__/loop.cpython-311.pyc").write_bytes(b"compiled")
    (copy / "README.md").write_text("for people")
    assert code_hash(copy) == before
