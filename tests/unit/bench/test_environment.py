"""What both programs of a comparison are started with."""

from __future__ import annotations

import pytest

from scaling.agent import environment
from tests.bench.environment import ONE_THREAD, with_heap


def test_the_heap_is_that_of_scalings_workers_and_not_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.KEPT_HEAP, "MALLOC_TOP_PAD_", "7")
    assert with_heap({}) == {**ONE_THREAD, **environment.KEPT_HEAP}


def test_what_the_environment_says_of_heap_and_threads_does_not_count() -> None:
    own = {"MALLOC_TOP_PAD_": "7", "OMP_NUM_THREADS": "2", "HOME": "/h"}
    assert with_heap(own) == {"HOME": "/h", **ONE_THREAD, **environment.KEPT_HEAP}
    assert with_heap(own, kept=False) == {"HOME": "/h", **ONE_THREAD}
