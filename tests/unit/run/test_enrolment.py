"""Who may take part in a launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import LaunchError, UsageError
from scaling.run.enrolment import check_same_launch, check_versions
from tests.support import scripted_records
from tests.support.inline import enrol, host


def test_ranks_of_another_version_are_refused_by_host() -> None:
    with pytest.raises(LaunchError) as error:
        check_versions([enrol(host("node1")), enrol(host("node2"), version="0.0.9")])
    assert "rank 1 on node2 runs scaling 0.0.9" in str(error.value)
    with pytest.raises(LaunchError, match="node3"):
        check_versions([enrol(host("node1")), enrol(host("node3"), code="beef")])


def test_a_run_goes_on_with_the_variables_that_it_began_with() -> None:
    ring = host(variables={"NCCL_ALGO": "Ring"})
    begun = scripted_records.header([ring], host_of_rank=("node1", "node1"))
    check_same_launch(begun, [enrol(ring)] * 2, Path("run"))
    with pytest.raises(UsageError, match=r"NCCL_ALGO was Ring, is unset \| Tree; TF_X was unset"):
        other = [enrol(host(variables={})), enrol(host(variables={"NCCL_ALGO": "Tree", "TF_X": "1"}))]
        check_same_launch(begun, other, Path("run"))
    older = scripted_records.header([host()], host_of_rank=("node1",))
    check_same_launch(older, [enrol(ring)], Path("run"))
