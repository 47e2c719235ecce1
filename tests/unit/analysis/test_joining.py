"""Several runs in one table."""

from __future__ import annotations

from math import sqrt

import pytest

from scaling.analysis.table.analyse import comparisons, join, joinable
from scaling.records.host import Gpu
from scaling.records.run import Header
from tests.support.scripted_records import by_size, close, header, host, mean, point, record, sweep


def test_like_runs_are_joinable() -> None:
    assert joinable([header(), header(created_unix_s=1.0, seed=2, git="other")]) == ()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (header([host("node2")]), "hosts differ: node1 | node2"),
        (header(version="0.2.0"), "versions of scaling differ: 0.1.0 | 0.2.0"),
        (header(code="beef"), "revisions of its code differ: c0de | beef"),
        (header(mpi="MPICH 4"), "MPI libraries differ: Open MPI 5.0.11 | MPICH 4"),
        (header([host(cpu_model="Other CPU")]), "devices differ: cpu, Test CPU 2.0 GHz | cpu, Other CPU"),
        (header([host(versions={"torch": "2.12.0"})]), "versions of torch differ: 2.13.0 | 2.12.0"),
        (header([host(variables={"NCCL_ALGO": "Ring"})]), "values of NCCL_ALGO differ: none | Ring"),
        (
            header([host(variables={"NCCL_ALGO": "Ring"}), host(variables={})]),
            "values of NCCL_ALGO differ: none | Ring | unset",
        ),
        (header([host(python="3.12.1")]), "versions of Python differ: 3.11.7 | 3.12.1"),
    ],
)
def test_unlike_runs_say_what_differs(other: Header, reason: str) -> None:
    assert joinable([header([host(variables={})]), other]) == (reason,)


def test_variables_are_compared_where_all_runs_recorded_them() -> None:
    known = header([host(variables={"NCCL_ALGO": "Ring"})])
    assert joinable([header(), known]) == joinable([known, known]) == ()


def test_gpus_are_told_apart_by_name() -> None:
    def gpu(name: str) -> Header:
        made = Gpu(index=0, name=name, uuid="u", memory_bytes=1, power_limit_w=1.0, max_sm_clock_mhz=1.0)
        return header([host(gpus=(made,))], device="cuda")

    assert joinable([gpu("H100"), gpu("H200")]) == ("devices differ: cuda, H100 | cuda, H200",)


def test_joined_runs_keep_their_rounds_apart() -> None:
    """Run 1: 0.8. Run 2, on a machine twice as slow: 0.5. Each against its own baseline, then pooled."""
    joined = join([sweep(0, 0.1, {2: 0.125}), sweep(0, 0.2, {2: 0.4})])
    row = by_size(joined)[2]
    assert row.rounds == 2
    assert mean(row.efficiency) == close(sqrt(0.8 * 0.5))


def test_strategies_of_different_runs_are_not_compared() -> None:
    a = [record(point("exchange", 2, n, strategy="fake:a"), 0.1) for n in range(3)]
    b = [record(point("exchange", 2, n, strategy="fake:b"), 0.2) for n in range(3)]
    (found,) = comparisons(join([a, b]))
    assert found.advantage is None
