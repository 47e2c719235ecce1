"""Priors: what a known truth teaches, and the file."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.tools.predict import beliefs, priors
from scaling.tools.predict.learn import fitting
from scaling.tools.predict.learn.__main__ import main, priors_before, priors_toml
from scaling.tools.predict.published import Series
from scaling.tools.predict.setting import Observed
from tests.support.scripted_clusters import ONE, RESNET50, at, truth


def test_a_bus_twice_as_slow_as_believed_is_learned() -> None:
    """Eight clusters without overlap, whose exchange is most of their step."""
    weak = beliefs.before()
    slow = replace(weak.constants["bus.pcie"], mean=log(2.5e9), sd=0.1)
    world = replace(weak, constants={**weak.constants, "bus.pcie": slow})
    serial = replace(RESNET50, gradient_bytes=800e6, overlap="serial", link="none", messages="one")
    points = [at(2), at(4)]
    taught = [
        Series(
            name=f"s{seed}", source=f"s{seed}", trust="A", setting=serial, anchor=ONE,
            observed=tuple(Observed(at=one, value=value) for one, value in zip(
                points, truth(serial, world, points, seed), strict=True)),
        )
        for seed in range(8)
    ]  # fmt: skip
    found = fitting.learn(taught, rounds=3, draws=800)
    rate = float(np.exp(found.constants["bus.pcie"].mean))
    assert 2.2e9 < rate < 3.6e9
    assert found.constants["bus.pcie"].series == 8
    assert found.constants["alpha.tcp"] == weak.constants["alpha.tcp"]


def test_series_of_trust_c_teach_nothing() -> None:
    odd = Series(
        name="s", source="s", trust="C", setting=RESNET50, anchor=ONE, observed=(Observed(at=at(4), value=0.1),)
    )
    assert fitting.learn([odd], rounds=1).constants == beliefs.before().constants


def test_the_shipped_file_is_what_learning_writes_of_these_beliefs() -> None:
    """Whoever repeats the learning gets the same words; figures take 10 s, and are compared by hand."""
    shipped = priors.read().constants
    assert list(shipped) == list(beliefs.BELIEFS)
    assert {name: one.before for name, one in shipped.items()} == {
        name: priors_before(belief) for name, belief in beliefs.BELIEFS.items()
    }


def test_the_file_says_what_was_learned_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "priors.toml"
    path.write_text(priors_toml(beliefs.before(), "published.json"))
    found = priors.read(path)
    assert found.walk == beliefs.WALK
    for name, prior in beliefs.before().constants.items():
        assert found.constants[name].mean == pytest.approx(prior.mean, abs=1e-3)
        assert found.constants[name].before


def test_the_package_has_every_constant_with_its_sources() -> None:
    found = priors.read()
    assert set(found.constants) == set(beliefs.BELIEFS) == set(priors.NAMES)
    for name, prior in found.constants.items():
        assert bool(prior.series) == bool(prior.sources), name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "walk"),
        ("walk = 1", "walk"),
        ("[walk]\ninside = 1\nleaving = 1\nbeyond = 1\n[constants]\n", "missing"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        priors.read(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("inside = 0.0257", "inside = nan", "inside, leaving and beyond must be 0 to 1"),
        ("beyond = 0.0256", "beyond = -0.1", "inside, leaving and beyond must be 0 to 1"),
        ("freedom = 5", "freedom = 0", "freedom must be 1 or more"),
        ("sd = 0.3112", "sd = 1e9", "network.rdma: sd must be 0 to 100"),
        ("sd = 0.3112", "sd = nan", "network.rdma: sd must be 0 to 100"),
    ],
)
def test_numbers_that_are_no_belief(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A step of nan made intervals narrower; no freedom ended in a traceback."""
    shipped = priors.FILE.read_text()
    assert old in shipped
    path = tmp_path / "bad.toml"
    path.write_text(shipped.replace(old, new, 1))
    with pytest.raises(UsageError, match=said):
        priors.read(path)


def test_learning_from_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.json").write_text("[]")
    for argv in ([], [str(tmp_path / "none.json")], [str(tmp_path / "absent.json")]):
        assert main(argv) == 2
        assert capsys.readouterr().err.count("\n") == 1
