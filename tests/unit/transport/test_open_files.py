"""How many files a rank may open: raised as far as the system lets it, refused where that is too few."""

from __future__ import annotations

import resource

import pytest

from scaling.errors import LaunchError
from scaling.transport.launch import ENOUGH, open_files_limit

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "allowed"),
    [
        (1024, 4096, 4096),
        (20, 1 << 20, ENOUGH),
        (1024, ENDLESS, ENOUGH),
        (1 << 20, 1 << 20, 1 << 20),
        (ENDLESS, ENDLESS, ENDLESS),
    ],
)
def test_the_limit_is_raised_and_never_lowered(soft: int, hard: int, allowed: int) -> None:
    assert open_files_limit(soft, hard) == allowed


def test_too_few_are_refused() -> None:
    with pytest.raises(LaunchError, match=r"ulimit -n 64: .* needs 256 at least"):
        open_files_limit(20, 64)
