"""The fabric file: what it may say, and what a wrong line gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.hosts import fabric
from scaling.hosts.fabric import Entry


def test_networks_by_name(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(
        '[ib]\ninterface = "ib0"\nhca = "mlx5_0"\nrate_gbit = 100\n[ethernet]\nsubnet = "10.0.0.0/8"\n'
    )
    assert fabric.read(str(path)) == {
        "ib": Entry(interface="ib0", hca="mlx5_0", rate_gbit=100),
        "ethernet": Entry(subnet="10.0.0.0/8"),
    }
    assert fabric.read(None) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ib", "fabric.toml: "),
        ("ib = 3", r"fabric.toml: \[ib\]: expected `object`, got `int`"),
        ("[ib]\nface = 'ib0'", r"fabric.toml: \[ib\]: object contains unknown field `face`"),
        ("[ib]\nhca = 'mlx5_0'", r"fabric.toml: \[ib\] has neither interface nor subnet; write interface"),
        ("[ib]\ninterface = 'ib0'\nhca = 'mlx5_0/1'", r"\[ib\] hca: 'mlx5_0/1' is no card; write \"mlx5_0\""),
        ("[ib]\ninterface = 'ib0'\nhca = { a = '' }", r"\[ib\] hca: '' is no card"),
        ("[ib]\ninterface = 'ib0'\nhca = 3", r"\[ib\] hca: expected `str"),
        ("[ib]\ninterface = 'ib0'\nrate_gbit = 0", r"\[ib\] rate_gbit = 0: must be a number above 0"),
        ("[ib]\ninterface = 'ib0'\nrate_gbit = 'fast'", r"fabric.toml: \[ib\] rate_gbit: expected `float"),
        ("[ib]\nsubnet = '10.0.0.1/8'", r"\[ib\] subnet 10.0.0.1/8: 10.0.0.1/8 has host bits set"),
        ("[auto]\ninterface = 'ib0'", r"\[auto\] means the fastest network; take another name"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        fabric.read(str(path))


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ('"mlx5_0, mlx5_1"', {"node1": "mlx5_0,mlx5_1", "gpu-7": "mlx5_0,mlx5_1"}),
        ('["mlx5_0", "mlx4_0:2"]', {"node1": "mlx5_0,mlx4_0:2", "gpu-7": "mlx5_0,mlx4_0:2"}),
        ('{ node1 = "mlx5_0", "gpu-*" = ["mlx5_2", "mlx5_3"] }', {"node1": "mlx5_0", "gpu-7": "mlx5_2,mlx5_3"}),
        ('{ node1 = "mlx5_0" }', {"node1": "mlx5_0", "gpu-7": None}),
        ('"any"', {"node1": "any", "gpu-7": "any"}),
    ],
)
def test_cards_as_a_list_and_by_node(tmp_path: Path, text: str, cards: dict[str, str | None]) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(f'[ib]\ninterface = "ib0"\nhca = {text}\n')
    (entry,) = fabric.read(str(path)).values()
    assert {host: entry.cards(host) for host in cards} == cards


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"--fabric /nowhere/fabric\.toml: No such file"):
        fabric.read("/nowhere/fabric.toml")


def test_a_file_that_the_environment_names_is_refused_by_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCALING_FABRIC", "/nope/fabric.toml")
    with pytest.raises(UsageError, match=r"^SCALING_FABRIC=/nope/fabric.toml: No such file"):
        fabric.read("/nope/fabric.toml")
