"""What `--list` and `--dry-run` print: plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from scaling import data, models, plan, seats, strategies
from scaling.hostinfo import describe
from scaling.messages import Enrol
from scaling.records import Point
from scaling.view_plain import duration


def everything(missing: Mapping[str, str]) -> str:
    """Strategies, models and data, each with what it lacks here and how to mend that."""
    lines = ["strategies (--strategy)"]
    for name in strategies.TABLE:
        lines.append(f"  {name:<16}{missing.get(name, 'ready')}")
        module = strategies.load(name)
        lines += [f"    --option {key}={option.default}  {option.help}" for key, option in module.OPTIONS.items()]
    lines += ["  package.module:mode  a strategy file of your own (scaling/strategies/README.md)", ""]
    lines += ["models (--model)"]
    for spec in models.CATALOGUE.values():
        shape = "x".join(map(str, spec.image))
        batches = ", ".join(f"{batch} on {kind}" for kind, batch in spec.batch_size.items())
        lines.append(f"  {spec.name:<16}{shape}, {spec.classes} classes, batch {batches}; {spec.source}")
    lines += ["", "data (--data)"]
    lines += [f"  {name:<16}{text}" for name, (text, _) in data.CATALOGUE.items()]
    return "\n".join(lines)


def dry_run(made: plan.Plan, enrolled: Sequence[Enrol]) -> str:
    """The devices, the points, what is missing, and about how long it takes."""
    config = made.config
    lines = [f"launch: {len(enrolled)} ranks on {len(made.places)} hosts, device {made.device} ({made.why})"]
    for name in made.places:
        host = next(enrol.host for enrol in enrolled if enrol.host.hostname == name)
        lines.append(f"  {name}: {describe(host)}")
    lines += [_seat(one) for one in made.seats]
    lines.append(
        f"model {config.model}, data {config.data}, {_batch(config.batch_size, config.global_batch_size)}"
    )
    lines.append(f"points of each of {config.rounds} rounds:")
    lines += _points(made.cells, made)
    lines += [f"  missing: {name}: {reason}" for name, reason in made.missing.items()]
    count = len(made.cells) * config.rounds
    lines.append(f"{count} points in all, about {duration(made.estimate_s)}; nothing was measured (--dry-run)")
    return "\n".join(lines)


def _seat(one: seats.Seat) -> str:
    where = f"GPU {one.device_index}" if one.gpu else f"CPUs {','.join(map(str, one.cpus))}"
    return f"  rank {one.launch_rank}: {one.host}, {where}, {one.threads} threads"


def _batch(per_device: int | None, over_all: int | None) -> str:
    if over_all is not None:
        return f"global batch {over_all} (strong scaling)"
    return f"batch {per_device} per device (weak scaling)"


def _points(cells: Iterable[Point], made: plan.Plan) -> list[str]:
    lines = []
    for point in cells:
        shared = seats.oversubscribed(point, seats.place(point, made.seats))
        note = "  OVERSUBSCRIBED: ranks share CPUs, no efficiency will be claimed" if shared else ""
        lines.append(
            f"  {point.strategy:<16}{point.kind:<10}N={point.world_size:<4}batch {point.batch_size}{note}"
        )
    counts = Counter(point.kind for point in cells)
    lines.append("  = " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return lines
