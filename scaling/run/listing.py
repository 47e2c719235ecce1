"""The plain text of `--list` and `--dry-run`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scaling import frameworks
from scaling.emulated import profiles
from scaling.emulated.profiles import Profile
from scaling.errors import UsageError
from scaling.frameworks.base import Traits
from scaling.hosts.info import describe
from scaling.plan import placement, plan, rules
from scaling.plan.config import SweepConfig
from scaling.records import network
from scaling.records.host import HostInfo
from scaling.records.messages import Enrol
from scaling.records.point import EXCHANGING, Device, Hardware, Point, Workload
from scaling.run.enrolment import by_name
from scaling.text import counted, duration, percent, printable, ranges
from scaling.tools.lab import slowdown
from scaling.workloads import data, models
from scaling.workloads.data import DataSpec
from scaling.workloads.layers import training_operations
from scaling.workloads.specs import ModelSpec, Tokens


def everything(missing: Mapping[str, str], enrolled: Sequence[Enrol], data_dir: str = "") -> str:
    """List strategies, models and data, each with what is missing here and the fix."""
    lines = ["strategies (--strategy)"]
    for name in frameworks.NAMES:
        module = frameworks.load(name)
        lines.append(f"  {name:<24}{missing.get(name, 'ready')}{_kind_of(module.traits(name))}")
    lines += ["  FILE:mode             a strategy in a file of your own (scaling/frameworks/README.md)", ""]
    lines += _interpreters(enrolled)
    lines += ["options (--option [STRATEGY.]KEY=VALUE) and their defaults"]
    for family, names in _families().items():
        lines.append(f"  {', '.join(names)}")
        options = frameworks.load(family).options.items()
        lines += [f"    {f'{key}={option.default}':<32}{option.help}" for key, option in options]
    lines.append("")
    lines += ["models (--model): trained parameters; FLOP of one sample, forward and backward"]
    for spec in models.CATALOGUE.values():
        lines += _model(spec)
    lines += ["", "emulated devices (--device emulated:PROFILE) and the source of their images/s"]
    lines += [f"  {name:<16}{_profile(one)}" for name, one in profiles.read().profiles.items()]
    lines += ["", "data (--data)"]
    lines += [line for spec in data.CATALOGUE.values() for line in _data(spec, data_dir)]
    return "\n".join(map(printable, lines))


def _kind_of(traits: Traits) -> str:
    words = {
        "asynchronous": not traits.synchronous,
        "parameter servers (--servers)": traits.servers,
        "one process for the devices of a node": traits.drives == "node",
        "listens on all addresses without authentication": traits.is_open,
    }
    said = [word for word, holds in words.items() if holds]
    return f"  ({', '.join(said)})" if said else ""


def _interpreters(enrolled: Sequence[Enrol]) -> list[str]:
    machines = {enrol.host.hostname: enrol.host for enrol in enrolled}
    hosts: dict[tuple[str, str], list[str]] = {}
    for name, host in machines.items():
        for one in host.interpreters:
            packages = [f"Python {one.python}", *(f"{package} {text}" for package, text in one.versions.items())]
            found = ", ".join(packages) if one.python else "does not work"
            hosts.setdefault((one.framework, f"{one.path}: {found}"), []).append(name)
    lines = []
    for (framework, text), names in sorted(hosts.items()):
        where = "" if len(names) == len(machines) else f" (on {', '.join(names)})"
        lines.append(f"  {framework + ':...':<24}{text}{where}")
    return ["interpreters of strategies that do not run in the agent's interpreter", *lines, ""] if lines else []


def _families() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in frameworks.NAMES:
        same = (first for first in found if frameworks.load(first).options is frameworks.load(name).options)
        found.setdefault(next(same, name), []).append(name)
    return found


def _model(spec: ModelSpec) -> list[str]:
    batches = []
    for kind, least in spec.batch_size.items():
        larger = [str(size) for _, size in rules.BATCHES.get(spec.name, ()) if kind == "cuda"]
        by_memory = f"{', '.join(larger)} or {least} by memory"
        batches.append(f"{by_memory if larger else least} on {kind}")
    gflop, recipe = training_operations(spec.layers, spec.input.shape) / 1e9, spec.recipe
    reads = f"{'x'.join(map(str, spec.input.shape))}, {spec.outputs:,} classes"
    if isinstance(spec.input, Tokens):
        reads = f"{spec.input.length} of {spec.input.words:,} words"
    return [
        f"  {spec.name:<18}{spec.parameters:>13,}  {reads}; {gflop:,.3g} GFLOP; {spec.source}",
        f"  {'':<33}batch {', '.join(batches)}; {recipe.optimizer} {recipe.rate:g} at batch {recipe.at_batch}; "
        f"counts {spec.unit}; data {spec.data}",
    ]


def _data(spec: DataSpec, data_dir: str) -> Iterator[str]:
    if not spec.is_read:
        yield f"  {spec.name:<18}ready: {spec.text}"
        return
    try:
        state = f"ready in {data.locate(spec, data_dir)}"
    except UsageError as error:
        state = str(error).removeprefix(f"--data {spec.name}: ").partition(";")[0]
    yield f"  {spec.name:<18}{spec.text}"
    yield f"    {state}"
    if spec.licence:
        yield f"    {spec.source}; licence: {spec.licence}"


def _profile(one: Profile) -> str:
    batches: dict[str, list[str]] = {}
    for rate in one.rates:
        batches.setdefault(rate.model, []).append(f"{rate.batch_size}{profiles.pixels(rate.image_size)}")
    listed = []
    for model, sizes in batches.items():
        fit = profiles.fitted_rate(one, model)
        others = f" (at others from {fit.least} to {fit.most} {fit})" if fit else ""
        listed.append(f"{model} at batch {', '.join(sizes)}{others}")
    return f"{one.device}: {'; '.join(listed)}"


def dry_run(made: plan.Plan, enrolled: Sequence[Enrol], started: str = "") -> str:
    """Describe the devices, the points, what is missing, and the estimated time. `started`: by which launcher."""
    config = made.config
    launch = f"{counted(len(enrolled), 'rank')} on {counted(len(made.hosts), 'host')}"
    lines = [f"launch: {launch}, device {made.device} ({made.why})"]
    lines += [f"ranks: {started}"] if started else []
    lines += [f"  {describe(host)}" for host in by_name(enrolled).values()]
    lines += [_slot(one, made.device) for one in made.slots]
    lines += [f"  network {network.describe(one, nccl=made.device == 'cuda')}" for one in made.networks]
    place = f" in {config.data_dir}" if config.data_dir else ""
    lines.append(
        f"script {config.script}; its batch is found"
        if config.script
        else f"model {config.model}, data {config.data}{place}, {_batch(config)}"
    )
    if made.device == "emulated":
        error = made.emulation_error
        known = "unknown" if error is None else f"up to {percent(error, 1)} of a step"
        scaled = f"sizes / {config.shrink:g}, times x {config.dilate:g}, links slowed by both"
        lines.append(f"emulated: {scaled}; the emulator's own error is {known}")
    lines += ["not given, filled in by rules:", *map(_filled, made.filled)]
    taking_turns = ", taking turns side by side" if made.side_by_side else ""
    rounds = "each round" if made.burn_in_s else f"each of {made.rounds} rounds"
    lines.append(f"points of {rounds}{taking_turns}:")
    lines += _points(made.cells, made)
    lines += _starts(made)
    lines += [*open_servers(made.cells), *changed_variables([one.host for one in enrolled])]
    lines += [f"  out of memory: {text}" for text in made.memory_doubts]
    lines += [f"  missing: {name}: {reason}" for name, reason in made.missing.items()]
    lines += [
        f"  refused: {point.label}: {made.refused[point.cell]}"
        for point in made.cells
        if point.cell in made.refused
    ]
    lines.append(f"{_in_all(made)}; nothing was measured (--dry-run)")
    return "\n".join(map(printable, lines))


def _starts(made: plan.Plan) -> list[str]:
    """Return how often a script starts, and how to start it less often."""
    sizes, ranks = made.config.world_sizes or (), sum(point.world_size for point in made.cells)
    fewer = f"; --world-sizes {sizes[-1]} starts it less often" if len(sizes) > 1 else ""
    often = f"the script starts {len(made.cells)} times a round, in {ranks} processes"
    alone = "a point alone takes its start-up time each time"
    return [f"{often}; {alone}{fewer}"] if made.config.script else []


def _in_all(made: plan.Plan) -> str:
    if made.burn_in_s:
        until = f"rounds until {duration(made.burn_in_s)} are over, {made.rounds} rounds at least"
        return f"{counted(len(made.cells), 'point')} a round, {until}"
    about = f"about {duration(made.estimate_s)}" if made.estimate_s else "of unknown duration"
    about += ", longer if the script's steps are slow" * bool(made.estimate_s and made.config.script)
    return f"{counted(len(made.cells) * made.rounds, 'point')} in all, {about}"


def _filled(one: rules.Filled) -> str:
    texts = {
        name: ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}"
        if isinstance(value, float) else str(value)
        for name, value in one.fields.items()
    }  # fmt: skip
    alone = texts.get(one.rule) if len(texts) == 1 else None
    values = alone or ", ".join(f"{name} {text}" for name, text in texts.items())
    return f"  {one.rule:<16}{values} ({rules.text_of(one.rule)})"


def open_servers(cells: Iterable[Point]) -> list[str]:
    """Return a line on strategies whose servers listen without authentication; none if no exchange uses them."""
    names = dict.fromkeys(point.strategy for point in cells if point.kind in EXCHANGING)
    found = [name for name in names if frameworks.load(name).traits(name).is_open]
    text = "listens on all addresses of each host without authentication; use a network that you trust"
    return [f"{', '.join(found)} {text}"] if found else []


def changed_variables(hosts: Iterable[HostInfo]) -> list[str]:
    """Return a line on variables of the user that workers get changed or not at all; none if all stand."""
    found = dict.fromkeys(one for host in hosts for one in host.changed_variables)
    return [f"variables of this shell that workers get otherwise: {'; '.join(found)}"] if found else []


def _slot(one: placement.Slot, device: Device) -> str:
    gpu = f"GPU {one.shown_gpu or one.device_index}" if device == "cuda" else ""
    cpus = ranges(one.cpus if device == "emulated" else one.cpus_on(device))
    where = ", ".join(filter(None, (gpu, cpus and f"CPUs {cpus}")))
    return f"  rank {one.launch_rank}: {one.host}, {where}, {counted(one.threads_on(device), 'thread')}"


def _batch(config: SweepConfig) -> str:
    if config.batch_sizes is not None:
        return f"batches {', '.join(map(str, config.batch_sizes))} per device (weak scaling)"
    match config.rule:
        case "strong":
            return f"global batch {config.global_batch_size} (strong scaling)"
        case "node":
            return f"batch {config.batch_size} per node, shared by its devices in use (node rule)"
        case "weak":
            return f"batch {config.batch_size} per device (weak scaling)"


def _points(cells: Iterable[Point], made: plan.Plan) -> list[str]:
    lines = []
    for point in cells:
        why = placement.crowding(point, placement.slots_of(point, made.slots))
        note = f"  OVERSUBSCRIBED: {why}, no efficiency will be claimed" if why else ""
        servers = f", servers {point.servers} {point.server_hosts}" if point.servers else ""
        passes = "" if point.workload.trains else f", {point.workload.pass_}"
        passes += f" on {point.hardware.label}" if point.hardware.cores else ""
        if point.regime:
            passes += f", rate {point.regime.rate:.4g}, {point.regime.epochs} epochs, seed {point.regime.seed}"
        over = f" over {point.interconnect}" if len(made.networks) > 1 and point.kind in EXCHANGING else ""
        batch = "" if point.workload.script else f"batch {point.workload.batch_size}"
        lines.append(
            f"  {point.strategy + over:<24}{point.kind:<10}N={point.world_size:<4}"
            f"{batch}{passes}{servers}{note}".rstrip()
        )
    counts = Counter(point.kind for point in cells)
    lines.append("  = " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return lines


# ---------------------------------------------------------------- emulated devices


def emulation(hardware: Hardware, works: Sequence[Workload], environ: Mapping[str, str] = os.environ) -> str:
    """Describe emulated devices of one model's works, and links, for readers of the run; "" for real devices."""
    profile, divisor, lab = hardware.profile, hardware.link_divisor, environ.get(slowdown.VARIABLE)
    if not profile:
        return ""
    parts, first = [f"{profiles.find(profile).device}, computing nothing"], works[0]
    for size in sorted({work.batch_size for work in works}, reverse=True):
        one = profiles.rate(profile, first.model, size, first.image_size)
        how = f"FITTED: {one.fitted}; " if one.fitted else ""
        where = f"batch {one.batch_size}{profiles.pixels(one.image_size)}"
        parts.append(f"{one.samples_per_s:.4g} images/s of {one.model} at {where} ({how}{profiles.source(one)})")
    parts.append(f"sizes / {hardware.shrink:g}, times x {hardware.dilate:g}, both undone here")
    if not lab:
        faster = f" and seem {divisor:g} times as fast as they are" if divisor != 1 else ""
        return "; ".join((*parts, f"no lab (SCALING_LAB): networks are the real ones{faster}"))
    from scaling.tools.lab import state

    rates = ((nic.name, nic.rate_bits_per_s / network.GBIT) for nic in state.load(lab).nics)
    links = ", ".join(f"{name} {gbit:g} Gb/s as {gbit / divisor:.4g}" for name, gbit in rates)
    return "; ".join((*parts, f"links of lab {lab} / {divisor:g}: {links}"))
