"""What a new run takes over from an older one, and what flags displace of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.plan import config
from scaling.plan.config import SweepConfig
from scaling.plan.fields import fields_of
from scaling.run import flags, invocation, ranks
from scaling.run.invocation import Invocation
from tests.support.compared_runs import on_disk, without_noise

NATIVE = {"data": "folders", "feed": "native", "feed_workers": 4, "drop_caches": True}
FIRST = {"world_sizes": [1, 2, 4], "predict_first": 2}


def resolved(older: dict[str, Any], *argv: str) -> SweepConfig:
    return invocation.resolve(flags.parse(argv), older)


def test_weights_and_the_other_revision_stay_those_of_the_older_run() -> None:
    older = {"save_weights": "/old.npz", "against": "c0de", "strategy": ["fake:a", "fake:a@c0de"], "rounds": 2}
    assert invocation.alike(older) == {"strategy": ["fake:a"], "rounds": 2}
    assert invocation.inherited(older) == {name: older[name] for name in older if name != "save_weights"}
    assert invocation.alike({"rounds": 2}) == {"rounds": 2}


def test_older_runs_are_read_so(tmp_path: Path) -> None:
    fields = {"save_weights": "/old.npz", "against": "c0de", "strategy": ["fake:a", "fake:a@c0de"]}
    first, records = without_noise()
    run = Path(on_disk(tmp_path / "older", (replace(first, config=fields), records)))
    plain = Invocation(given={}, base={})
    assert ranks._settings(plain) is None
    assert ranks._settings(replace(plain, like=run)) == invocation.alike(fields)
    assert ranks._settings(replace(plain, against=run)) == invocation.inherited(fields)


def test_settings_of_a_newer_version_are_named_with_the_flag_and_the_run(tmp_path: Path) -> None:
    first, records = without_noise()
    newer = replace(first, config={"rounds": 2, "novel": 1}, version="9.9")
    run = Path(on_disk(tmp_path / "newer", (newer, records)))
    for flag in ("like", "against"):
        asked = replace(Invocation(given={}, base={}), **{flag: run})
        with pytest.raises(UsageError, match=rf"--{flag} {run}: was measured by scaling 9\.9 .* know: novel;"):
            ranks._settings(asked)


def test_another_feed_displaces_the_workers_of_the_native_one() -> None:
    found = resolved(NATIVE, "--feed", "reference")
    assert (found.feed, found.feed_workers, found.drop_caches) == ("reference", None, True)
    assert resolved(NATIVE, "--feed", "native").feed_workers == 4


@pytest.mark.parametrize("argv", [("--data", "digits"), ("--model", "digits-cnn"), ("--device", "cpu")])
def test_how_data_was_fed_goes_with_it(argv: tuple[str, str]) -> None:
    found = resolved({**NATIVE, "epochs": 2, "train_samples": 9, "test_samples": 8}, *argv)
    assert (found.feed, found.feed_workers, found.drop_caches) == ("reference", None, False)
    assert (found.train_samples, found.test_samples) == (None, None)


@pytest.mark.parametrize(
    "argv",
    [
        ("--target-ci", "1%"),
        ("--pass", "forward"),
        ("--epochs", "2"),
        ("--world-sizes", "1,2"),
        ("--global-batch-size", "64"),
        ("--batch-rule", "node"),
    ],
)
def test_what_cannot_be_predicted_takes_predict_first_back(argv: tuple[str, str]) -> None:
    assert resolved(FIRST, *argv).predict_first is None
    assert resolved(FIRST, "--rounds", "3").predict_first == 2
    assert resolved(FIRST, "--world-sizes", "1,2,4,8", "--predict-first", "4").predict_first == 4


def test_displaced_names_are_fields() -> None:
    displaced = {other for field in fields_of(SweepConfig).values() for other in field.flag.displaces}
    assert displaced and displaced <= set(config.FIELDS)
