"""Who may take part in a launch."""

from __future__ import annotations

import pytest

from scaling.errors import LaunchError
from scaling.run.enrolment import check_versions
from tests.support.inline import enrol, host


def test_ranks_of_another_version_are_refused_by_host() -> None:
    with pytest.raises(LaunchError) as error:
        check_versions([enrol(host("node1")), enrol(host("node2"), version="0.0.9")])
    assert "rank 1 on node2 runs scaling 0.0.9" in str(error.value)
    with pytest.raises(LaunchError, match="node3"):
        check_versions([enrol(host("node1")), enrol(host("node3"), code="beef")])
