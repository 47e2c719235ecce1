"""Forecasts without a run: today's nodes, their buses and exchanges, and what a host sends over TCP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from scaling.errors import UsageError
from scaling.tools.predict import __main__ as command
from scaling.tools.predict import evidence, model
from scaling.tools.predict import setting as settings
from scaling.tools.predict.__main__ import Forecast, forecasts
from scaling.tools.predict.flags import Asked
from scaling.tools.predict.setting import At, Setting
from tests.support.scripted_clusters import RESNET50

PRIORS = settings.read()
GB = 1e9
# 8 GPUs of an NVSwitch node, 40 ms a step.
NODE: dict[str, Any] = {
    "cold": True, "rate": 6400.0, "model": "resnet50", "batch_size": 256, "devices_per_node": 8,
    "network": "ib:400x8", "bus": "nvswitch",
}  # fmt: skip


def setting(**changes: Any) -> Setting:
    return evidence.cold(Asked(**{**NODE, **changes})).setting


def row(size: int, **changes: Any) -> Forecast:
    asked = Asked(**{**NODE, **changes})
    return forecasts(command.case_of(asked, None), (size,))[0]


def test_a_short_step_is_not_said_to_lose_a_sixth_to_contention() -> None:
    """17 % with an exponent of 0.75."""
    assert 0.01 < row(8).losses["contention"] < 0.12


def test_contention_has_a_share_of_each_step_and_a_time_of_each() -> None:
    """An exchange without bytes: 1 % and 2 ms of steps of 10 ms and 1 s; one time for four micro steps."""
    names = model.keys(RESNET50)
    values = {role: np.zeros((1, 1)) for role in names} | {
        "bus": np.ones((1, 1)), "tax": np.full((1, 1), 0.01), "tax_s": np.full((1, 1), 0.002),
    }  # fmt: skip
    for step_s, steps, lost in ((0.01, 1, 0.21), (1.0, 1, 0.012), (0.01, 4, 0.06)):
        at = [At(world_size=2, nodes=1, accumulation=steps)]
        parts = model.parts(replace(RESNET50, gradient_bytes=0.0), values, at, np.array([step_s]))
        assert float((parts.contention_s / parts.alone_s)[0, 0]) == pytest.approx(lost)


def test_sharded_parameters_have_a_tax_of_their_own_and_are_gathered_in_forward_too() -> None:
    sharded = replace(RESNET50, method="sharded", messages="one", tail=0.0, link="unknown")
    assert model.keys(sharded)["tax"] == "tax.sharded"
    values = {role: np.zeros((1, 1)) for role in model.keys(sharded)} | {
        "window": np.full((1, 1), 0.5), "hide": np.ones((1, 1)), "bus": np.ones((1, 1)),
    }  # fmt: skip
    at, step_s = [At(world_size=2, nodes=1)], 0.1
    for method, exposed in (("ring", 0.5), ("sharded", 0.0)):
        took = replace(
            sharded, method=method, bus_bytes_per_s=1e9, gradient_bytes=1e8 / (1.5 if exposed == 0 else 1)
        )
        parts = model.parts(took, values, at, np.array([step_s]))
        assert float(parts.exposed_s[0, 0]) / step_s == pytest.approx(exposed, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "device", "found"),
    [
        ("", "", ("unknown", None)),
        ("nvswitch", "", ("nvswitch", None)),
        ("nvswitch", "NVIDIA H100 80GB HBM3", ("nvswitch", 476e9)),
        ("NVSwitch:450", "NVIDIA H100 80GB HBM3", ("nvswitch", 450e9)),
        ("pcie", "RTX 5090", ("pcie", 63e9)),
        ("nvlink:0.5", "", ("nvlink", 0.5e9)),
    ],
)
def test_buses(words: str, device: str, found: tuple[str, float]) -> None:
    assert settings.named_bus(words, device) == found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bus": "nvlnk"}, "--bus nvlnk: unknown bus; did you mean 'nvlink'"),
        ({"bus": "pcie:fast"}, "--bus pcie:fast: write pcie or pcie:GB/s"),
        ({"bus": "pcie:0"}, "--bus pcie:0: write pcie or pcie:GB/s"),
        ({"bus": "nvlink", "device": "RTX 4090"}, "--bus nvlink: RTX 4090 has no NVLink; take --bus pcie"),
        (
            {"strategy": "tensorflow:ps"},
            "--strategy tensorflow:ps: the number of its parameter servers is unknown",
        ),
        ({"strategy": "torch:ncl"}, "--strategy torch:ncl: unknown; did you mean 'torch:nccl'"),
    ],
)
def test_mistakes_are_one_line_with_the_flag(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        setting(**changes)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("given", [{"bus": "pcie"}, {"precision": "bf16"}, {"sequence_length": 8}])
def test_a_run_has_its_own(given: dict[str, Any]) -> None:
    flag = "--" + next(iter(given)).replace("_", "-")
    with pytest.raises(UsageError, match=f"^{flag}: only with --cold or an import"):
        command.case_of(Asked(run=Path("run.jsonl"), **given), None)


def test_devices_have_rates_only_of_buses_that_they_have() -> None:
    assert settings.bytes_per_s("pcie", "Tesla K80") == 15.75e9
    assert settings.bytes_per_s("nvlink", "Tesla K80") == 0.0
    assert settings.bytes_per_s("nvlink", "a card of tomorrow") is None
    assert settings.bytes_per_s("nvswitch", "NVIDIA H200") == 476e9


def test_half_precision_sends_half_and_sharding_half_more() -> None:
    assert setting(precision="bf16").gradient_bytes == setting().gradient_bytes / 2
    assert setting(precision="amp") == setting()
    assert setting(strategy="torch:fsdp2").method == "sharded"
    slow = {"network": "ib:10", "model": "vgg16", "rate": 640.0}
    usual = row(32, **slow).efficiency
    assert (
        row(32, **slow, precision="bf16").efficiency > usual > row(32, **slow, strategy="torch:fsdp2").efficiency
    )


def test_tokens_are_of_sequences() -> None:
    text = {"model": "llama-8b", "batch_size": 2, "rate": 8000.0}
    found = evidence.cold(Asked(**{**NODE, **text, "sequence_length": 8192}))
    assert found.setting.step_s == pytest.approx(2 * 8192 / 8000)
    assert (found.unit, found.units_per_sample) == ("tokens", 8192)
    assert found.rate == pytest.approx(8000 / 8192)
    assert "8000 tokens/s on one" in found.title


def test_a_device_that_no_published_node_has_is_noted_and_not_claimed() -> None:
    odd = evidence.cold(Asked(**{**NODE, "device": "Card of Tomorrow"}))
    assert "Card of Tomorrow, which is not in the catalogue, has the usual bus" in odd.notes[0]
    assert row(8, device="MI350X").unclaimed.startswith("no published node of MI350X tests such a prediction")
    assert row(8, device="NVIDIA A100-SXM4-80GB").unclaimed == ""


def test_a_model_of_no_catalogue_is_described_by_its_parameters() -> None:
    """Its rate is guessed of its operations and the peak of the device, with a wider interval."""
    own = {"model": "", "parameters": 7e9, "batch_size": 1, "sequence_length": 4096, "precision": "bf16",
           "device": "H100"}  # fmt: skip
    measured = evidence.cold(Asked(**{**NODE, **own, "rate": 9000.0}))
    assert measured.setting.gradient_bytes == 14e9
    assert measured.title.startswith("7e+09 parameters, batch 1 x 4096 tokens per device")
    guessed = evidence.cold(Asked(**{**NODE, **own, "rate": None, "flops_per_sample": 6 * 7e9}))
    assert 5_000 < guessed.rate * 4096 < 12_000
    assert guessed.setting.step_spread > 0
    assert "40% of the peak of H100" in guessed.notes[0]
    with pytest.raises(UsageError, match="no peak of --device NAME is known: give --rate"):
        evidence.cold(Asked(**{**NODE, "rate": None, "flops_per_sample": 4e9}))


def test_an_unknown_bus_is_said_and_widens_the_interval() -> None:
    large: dict[str, Any] = {"model": "vgg16", "rate": 1600.0}
    unknown, known = row(8, **large, bus=""), row(8, **large)
    assert unknown.efficiency - unknown.low > known.efficiency - known.low
    assert "--bus narrows" in evidence.cold(Asked(**{**NODE, "bus": ""})).notes[0]
    assert "nvswitch of 476 GB/s" in evidence.cold(Asked(**{**NODE, "device": "H100"})).notes[0]


def sends(network: str, **changes: Any) -> float:
    """GB/s of a node over TCP, at the medians of the priors."""
    found = setting(network=network, **changes)
    names = model.keys(found)
    values = model.values(names, PRIORS, np.zeros((1, len(names))))
    return float(model.carried_bytes_per_s(found, values)[0, 0]) / GB


def test_what_a_host_sends_grows_with_its_line_and_cards() -> None:
    rates = [sends(f"tcp:{gbit}") for gbit in (25, 40, 100, 400)]
    assert rates == sorted(rates)
    assert rates[3] > 3 * rates[0]
    assert sends("tcp:25x4") == pytest.approx(4 * rates[0])
    # NVIDIA/nccl#450 and #398 report 4 to 6 GB/s.
    assert 3 < rates[2] < 7
    assert sends("tcp:100", strategy="torch:gloo") < rates[2]


def test_rings_on_cpus_are_a_class_of_their_own() -> None:
    assert model.keys(setting(network="tcp:100", strategy="torch:gloo"))["network"] == "network.cpu"
    assert model.keys(setting(network="tcp:10", strategy="torch:gloo"))["network"] == "network.cpu"
    assert model.keys(setting(network="tcp:100"))["network"] == "network.tcp"
    shaped = replace(setting(network="tcp:10", strategy="torch:gloo"), emulated=True)
    assert model.keys(shaped)["network"] == "network.emulated"
