"""The rules that resolve a configuration: what a plan is on given devices, and which field each rule settles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from scaling.plan import plan, rules
from scaling.plan.config import FIELDS, SweepConfig
from scaling.plan.placement import place_ranks
from scaling.run import flags, invocation, listing
from tests.support.golden import GOLDEN, check_golden
from tests.support.inline import enrol, host
from tests.support.plans import launch

# Rules of several fields.
OF_SEVERAL = {
    "cpu_precision": {"precision", "memory_format"},
    "timeouts": {"startup_timeout_s", "point_timeout_s"},
    "emulation": {"shrink", "dilate"},
    "precision": {"precision", "memory_format"},
}
ENROLLED = [enrol(host(cores=4))] * 4


def applied(config: SweepConfig) -> list[tuple[str, SweepConfig, SweepConfig]]:
    slots = place_ranks(ENROLLED, config.cpus_per_rank)
    device, why = rules.choose_device(config, slots, ENROLLED)
    launch, draft, found = rules.Launch(ENROLLED, slots, device, why), rules.Draft(config), []
    for rule in rules.RULES:
        after = rule(draft, launch)
        found.append((rule.__name__.rstrip("_"), draft.config, after.config))
        draft = after
    return found


CONFIGS: list[dict[str, Any]] = [
    {},
    {"strategy": ("fake:a",), "batch_size": 8},
    {"device": "emulated:p100", "strategy": ("torch:gloo",)},
    {"strategy": ("fake:a",), "world_sizes": (1, 2, 4), "interconnect": ("auto", "auto")},
]


@pytest.mark.parametrize("fields", CONFIGS)
def test_a_rule_settles_the_fields_of_its_name_alone(fields: dict[str, Any]) -> None:
    changed_by: dict[str, set[str]] = {}
    for name, before, after in applied(SweepConfig(**fields)):
        assert name in {*FIELDS, *OF_SEVERAL}
        changed = {one for one in SweepConfig.__struct_fields__ if getattr(before, one) != getattr(after, one)}
        assert changed <= OF_SEVERAL.get(name, {name}), name
        changed_by[name] = changed
    assert sum(map(len, changed_by.values())) > 5


@pytest.mark.parametrize("fields", CONFIGS)
def test_rules_leave_what_they_have_settled(fields: dict[str, Any]) -> None:
    """A run that goes on has its whole configuration resolved."""
    *_, (_, _, resolved) = applied(SweepConfig(**fields))
    *_, (_, _, again) = applied(resolved)
    assert again == replace(resolved) != SweepConfig(**fields)


# ---------------------------------------------------------------- plans


def lines_of(on: str, text: str) -> Iterator[str]:
    """The lines of a dry run without those of hosts and ranks, and the configuration's own values."""
    ranks = launch(on)
    rates = (100e9, 10e9) if "x" in on else ()
    asked = flags.parse(text.split())
    made = plan.make(invocation.resolve(asked), ranks, lab_bits_per_s=rates)
    plan.check_given(made, asked.given)
    first, *lines = listing.dry_run(made, ranks).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(("model ", "script ")))
    yield from (f"$ {on}: {text}", first, *lines[at:])


def test_plans() -> None:
    """The golden file has command lines, each behind its launch and above its plan."""
    lines = (GOLDEN / "plans.txt").read_text().splitlines()
    asked = [line[2:].partition(": ") for line in lines if line.startswith("$ ")]
    check_golden("plans.txt", "".join(f"{line}\n" for on, _, text in asked for line in lines_of(on, text)))
