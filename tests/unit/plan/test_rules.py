"""The rules that resolve a configuration are found by the names of the fields that they settle."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from scaling.plan import plan, rules
from scaling.plan.config import FIELDS, SweepConfig
from scaling.plan.placement import place_ranks
from scaling.run import listing
from tests.support.inline import enrol, host

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


def test_a_dry_run_names_the_rule_of_each_field_that_was_not_given() -> None:
    made = plan.make(SweepConfig(strategy=("fake:a",), batch_size=8, device="cpu"), ENROLLED)
    lines = listing.dry_run(made, ENROLLED).splitlines()
    begin = lines.index("not given, filled in by rules:") + 1
    found = dict(line.split(None, 1) for line in lines[begin : begin + len(made.filled)])
    assert found["world_sizes"] == "1, 2, 4 (Measure the powers of two up to the launch's size, and that size)"
    assert found["timeouts"].startswith("startup_timeout_s 300, point_timeout_s 1800 (Fill in the timeouts, ")
    assert not {"strategy", "batch_size", "device"} & found.keys()
    assert found.keys() <= {rule.__name__.rstrip("_") for rule in rules.RULES}
