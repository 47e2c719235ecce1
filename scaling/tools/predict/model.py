"""The equations of a step, their fit to measurements, and predictions of other world sizes and settings.

README.md has the equations. The constants are at the centre of their priors, moved by the measurements
(Gauss-Newton steps to the mode). The loss that the equations still miss is a random walk over log2 N: its last
value is carried on. In another setting it is carried as far as the equations say that little changes. A point is
weighed by its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.tools.predict.setting import NORMAL_95, USUAL_BYTES_PER_S, At, Known, Priors, Setting, Walk

# ---------------------------------------------------------------- constants

Floats = NDArray[np.float64]
TAXES = ("tax", "tax_devices", "tax_nodes", "tax_s")
TCP = ("tcp", "tcp10", "ipoib", "unknown", "none")
SERVERS = ("servers_apart", "servers_beside", "servers_in_host")


def keys(setting: Setting) -> dict[str, str]:
    """Map the roles of constants in the equations to the names of their priors."""
    link, wires = setting.link, "tcp" if setting.link in TCP else "rdma"
    found = {name: name for name in ("window", *TAXES, "jitter", "growth")} | {
        "bus": f"bus.{setting.bus}", "network": f"network.{_network(setting)}", "fade": f"fade.{wires}",
        "alpha": f"alpha.{wires}", "hide": f"hide.{setting.overlap}",
    }  # fmt: skip
    if link == "tcp" and not _is_cpu_ring(setting):
        found["cap_growth"] = "cap_growth"
    if setting.method == "sharded":
        found["tax"] = "tax.sharded"
    if setting.emulated:  # sleeping devices and shaped links, which no published cluster has
        found |= {"fade": "fade.emulated", "alpha": "alpha.emulated", **dict.fromkeys(TAXES, "tax.emulated")}
        found |= dict.fromkeys(("jitter", "growth"), "straggling.emulated")
        if setting.overlap in ("ddp", "horovod"):
            found["hide"] = "hide.emulated"
    return found


def _network(setting: Setting) -> str:
    link, servers = setting.link, setting.method in SERVERS
    if link in ("none", "unknown"):
        return "unknown"
    if setting.emulated and link == "tcp10" and not servers:
        return "emulated"
    if link in TCP and _is_cpu_ring(setting):
        return "cpu"
    return link if link not in ("tcp", "tcp10") else f"{link}.{'servers' if servers else 'ring'}"


def _is_cpu_ring(setting: Setting) -> bool:
    return setting.carrier == "cpu" and setting.method not in SERVERS


def values(names: Mapping[str, str], priors: Priors, z: Floats) -> dict[str, Floats]:
    """Convert standard normal draws (draws x constants) to constants, one column each."""
    known = [priors.constants[name] for name in names.values()]
    return {
        role: transformed(name, known[index].mean + known[index].sd * z[:, [index]])
        for index, (role, name) in enumerate(names.items())
    }


def transformed(name: str, normal: Floats) -> Floats:
    """Convert values from the scale on which a constant is normal."""
    if name == "hide.serial":
        return np.zeros_like(normal)
    if name.startswith("hide."):
        return np.asarray(1 / (1 + np.exp(-normal)))
    if name.startswith("fade."):  # no node's link carries less than in proportion to 1 / nodes
        return np.asarray(np.exp(np.minimum(normal, 0.0)))
    return np.maximum(normal, 0.0) if name == "cap_growth" else np.exp(normal)


# ---------------------------------------------------------------- equations

# where the cap of TCP has no power
CAP_LINE_BYTES_PER_S = 3.125e9
BUCKET_BYTES, FUSION_BYTES, FUSION_CYCLE_S = 25e6, 64e6, 5e-3
# one step inside a node; NVLink and PCIe: 3.4 and 5.7 us in NCCL's src/graph/tuning.cc
INSIDE_LATENCY_S, INSIDE_LATENCY_PCIE_S = {"nvlink": 3.4e-6, "nvswitch": 3.4e-6, "loopback": 30e-6}, 5.7e-6
# how often a server's link carries a gradient in series: pushes and pulls are full duplex
SERVERS_SERIAL, SERVERS_OVERLAPPED = 2.0, 1.1
TREE_STEPS, SHARDED_VOLUME, TCP_EFFICIENCY = 3.0, 1.5, 0.95
# Share of a step that is lost per doubling of nodes beyond so many. `growth` is learned from few nodes, and worlds
# of hundreds of devices lose more.
FADES = ((2, 0.002), (8, 0.005), (16, 0.01))


class Parts(NamedTuple):
    """Seconds of a step by cause, draws x world sizes. They add up to `step_s`."""

    alone_s: Floats
    contention_s: Floats
    straggling_s: Floats
    exposed_s: Floats
    exchange_s: Floats

    @property
    def step_s(self) -> Floats:
        return self.alone_s + self.contention_s + self.straggling_s + self.exposed_s


def _shapes(points: Sequence[At]) -> Floats:
    """Rows: world size, nodes, devices per node, micro steps."""
    rows = [(at.world_size, at.nodes, at.devices_per_node, at.accumulation) for at in points]
    return np.array(rows, float).reshape(-1, 4).T


def parts(setting: Setting, values: Mapping[str, Floats], points: Sequence[At], alone_s: Floats) -> Parts:
    """Compute the seconds of a step; `alone_s` is the micro step of one device by draw."""
    world, nodes, each, accumulation = _shapes(points)
    order = np.array([NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in world])
    t1, several = alone_s[:, None], world > 1
    compute = accumulation * t1
    share = values["tax"] * several + values["tax_devices"] * np.log2(each) / 3
    contention = compute * (share + values["tax_nodes"] * (nodes > 1)) + values["tax_s"] * several
    straggling = values["jitter"] * order + values["growth"] * np.log2(nodes)
    if not setting.emulated:
        straggling = straggling + sum(lost * np.log2(np.maximum(nodes / first, 1)) for first, lost in FADES)
    once, slowest = _exchange(setting, values, points, t1)
    exchange = np.where(several, once + (world - 1) * setting.sparse_bytes / slowest, 0.0)
    window = t1 if setting.method == "sharded" else values["window"] * t1
    hidden = np.maximum(exchange - window, setting.tail * exchange)
    gathered = (world - 1) / world * setting.gathered_bytes / slowest
    exposed = (1 - values["hide"]) * exchange + values["hide"] * hidden + gathered
    return Parts(compute, contention, (compute + contention) * straggling, exposed, exchange + gathered)


def _exchange(
    setting: Setting, values: Mapping[str, Floats], points: Sequence[At], t1: Floats
) -> tuple[Floats, Floats]:
    """Compute the seconds of the exchange of all gradients, and the bytes/s of the slowest leg of a ring."""
    world, nodes, each, _ = _shapes(points)
    size, apart, alpha = setting.gradient_bytes, nodes > 1, values["alpha"]
    bus = values["bus"] * (setting.bus_bytes_per_s or USUAL_BYTES_PER_S[setting.bus])
    network = carried_bytes_per_s(setting, values) * (np.maximum(nodes, 2) / 2) ** -values["fade"]
    slowest = np.where(apart, np.minimum(network, np.where(each > 1, bus, np.inf)), bus)
    inside_s = INSIDE_LATENCY_S.get(setting.bus, INSIDE_LATENCY_PCIE_S)
    steps_s = 2 * (nodes - 1) * alpha + 2 * (world - nodes) * inside_s * (setting.method != "hierarchical")
    if setting.tree:
        tree_s = 2 * np.log2(nodes) * TREE_STEPS * alpha + 2 * (each - 1) * inside_s
        steps_s = np.where(apart, np.minimum(steps_s, tree_s), steps_s)
    if setting.method in SERVERS:
        steps_s = np.where(apart, 2 * alpha, 2 * inside_s)
    fused = np.maximum(1.0, size / FUSION_BYTES + t1 * values["window"] / FUSION_CYCLE_S)
    messages = {
        "one": 1.0, "tensors": float(setting.tensors), "buckets": max(1.0, size / BUCKET_BYTES),
        "fusion": np.minimum(fused, float(setting.tensors)),
    }[setting.messages]  # fmt: skip
    if setting.method in ("ring", "sharded"):
        volume = SHARDED_VOLUME if setting.method == "sharded" else 1.0
        moved_s = volume * 2 * (world - 1) / world * size / slowest
    else:
        beside = setting.method in ("servers_beside", "servers_in_host")
        inside = each * (each > 1) if beside else 2 * (each - 1) / each
        ring, serial = 2 * (nodes - 1) / nodes, setting.overlap == "serial"
        often = SERVERS_SERIAL if serial else SERVERS_OVERLAPPED
        between = {"servers_apart": often, "servers_in_host": 2.0}.get(setting.method, ring)
        moved_s = inside * size / bus + apart * between * size / network
    return moved_s + messages * steps_s, slowest


def carried_bytes_per_s(setting: Setting, values: Mapping[str, Floats]) -> Floats:
    """Compute what a node's link carries between two nodes, bytes/s by draw.

    A host sends less over TCP than a fast line carries. The curve of a measured fast line holds for a slow one."""
    line, network = setting.line_bytes_per_s, values["network"]
    if setting.link in ("unknown", "none"):
        return network
    if setting.link not in TCP or setting.emulated:
        return np.asarray(network * max(line, 1.0))
    is_share = setting.link == "tcp10" and not _is_cpu_ring(setting)
    share = np.minimum(network, TCP_EFFICIENCY) if is_share else TCP_EFFICIENCY
    if is_share and "cap" not in values:
        return np.asarray(share * line)
    growth = values.get("cap_growth", np.zeros(1))
    cap = setting.cards * values.get("cap", network) * (line / setting.cards / CAP_LINE_BYTES_PER_S) ** growth
    return np.asarray(np.minimum(share * line, cap))


# ---------------------------------------------------------------- fit

STEPS = 4
# standard deviations: how far measurements move a constant, and the step of derivatives
MOST, STEP = 10.0, 0.3
LEAST_DEVIATION = 0.002
# Student's t of the misses: one that is far off widens all that is predicted
FREEDOM = 5.0
# largest efficiency relative to the best measured one: 7 of 727 published ones exceed it (SUPERLINEAR)
HIGHEST = 1.02
SHORT_STEP_S = 0.1
# of the equations: below it a setting has hardly anything to lose
LEAST_LOSS = 0.02
# what-ifs of published series: their 80 % intervals hold 80 % on average with this much more
MOST_WIDENED, FAR = 1.5, log(1.4)
# share of the unexplained loss that another model has too
ANOTHER_MODEL = 0.25


class Fit(NamedTuple):
    """What measurements of `setting` tell of `asked`, which may be another setting.

    * places: index in `z` of the constants of both, by role and name; a guessed step is the last
    * z, spread: constants as standard normal values, and their covariance
    * missed: loss that they do not explain, by observed point, a fraction of the time of one device
    * scale: factor on standard deviations, above 1 if the measurements contradict the priors
    """

    setting: Setting
    asked: Setting
    known: Known
    priors: Priors
    places: Mapping[tuple[str, str], int]
    z: Floats
    spread: Floats
    missed: Floats
    scale: float = 1.0


class Predicted(NamedTuple):
    """By target: efficiency relative to the anchor with its 80 % interval, the standard deviation of its
    logarithm, parts of the step, and the weight of the measurements, 0 to 1."""

    efficiency: Floats
    low: Floats
    high: Floats
    deviation: Floats
    parts: Parts
    weight: Floats


def fit(setting: Setting, known: Known, priors: Priors, asked: Setting | None = None) -> Fit:
    asked, seen = asked or setting, [one.at for one in known.observed]
    both = dict.fromkeys((*keys(setting).items(), *keys(asked).items()))
    places = {one: index for index, one in enumerate(both)}
    z = np.zeros(len(places) + (setting.step_spread > 0))
    found = Fit(setting, asked, known, priors, places, z, np.eye(len(z)), z)
    target, noise = np.log([one.value for one in known.observed]), _noise(known, priors.walk)
    first = 0.0
    for step in range(STEPS):
        now, _, slopes = equations(found, seen, setting)
        off = np.linalg.solve(noise + slopes.T @ slopes, target - now + slopes.T @ found.z)
        first = first if step else float((target - now) @ off)
        z = np.clip((slopes @ off + found.z * (step > 1)) / (1 + (step > 1)), -MOST, MOST)
        found = found._replace(z=z)
    now, _, slopes = equations(found, seen, setting)
    spread = np.linalg.inv(np.eye(len(z)) + slopes @ np.linalg.solve(noise, slopes.T))
    scale = max(1.0, sqrt((FREEDOM + first) / (FREEDOM + len(target))))
    return found._replace(spread=spread, missed=np.exp(-target) - np.exp(-now), scale=scale)


def predict(found: Fit, targets: Sequence[At]) -> Predicted:
    known, walk, here, there = found.known, found.priors.walk, found.setting, found.asked
    seen = [one.at for one in known.observed]
    logs, parts, slopes = equations(found, targets)
    cross = covariance(walk, known.anchor, targets, seen)
    carried = np.array([_carried(found, at) for at in targets])
    gain = carried[:, None] * np.linalg.solve(_noise(known, walk), cross.T).T
    prior = np.diag(covariance(walk, known.anchor, targets, targets))
    # a constant moves the target, and what is missed of the points that it moves, too
    there_logs, _, there_slopes = equations(found, seen, here)
    moves = slopes - there_slopes @ gain.T
    left = prior - carried * np.sum(gain * cross, axis=1) + np.sum(moves * (found.spread @ moves), axis=0)
    highest = HIGHEST * max([1.0, *(one.value for one in known.observed)])
    middle = np.minimum(1 / np.maximum(np.exp(-logs) + gain @ found.missed, 1 / highest), highest)
    # another batch or model is less certain, by how far its step and its gradients moved
    far = abs(log(there.step_s / here.step_s)) + abs(log(there.gradient_bytes / here.gradient_bytes))
    widened = found.scale * (1 + MOST_WIDENED * min(1.0, far / FAR))
    deviation = widened * np.sqrt(np.maximum(left, LEAST_DEVIATION**2))
    below, above = np.array([found.priors.quantiles[class_of(found, at)] for at in targets]).T
    weight = 1 - left / np.maximum(prior + np.sum(slopes**2, axis=0), 1e-12)
    efficiency, high = (np.minimum(middle, most) for most in _bounds(found, targets, there_logs))
    high = np.minimum(middle * np.exp(above * deviation), np.maximum(efficiency * np.exp(above * deviation), high))
    return Predicted(
        efficiency, efficiency * np.exp(-below * deviation), np.minimum(high, highest), deviation, parts,
        np.where(efficiency < middle, 1.0, weight),
    )  # fmt: skip


def _bounds(found: Fit, targets: Sequence[At], logs: Floats) -> list[Floats]:
    """Return the lowest efficiency, and the lowest end of a 95 % interval, of measured points with no more
    devices, nodes and devices of a node. A larger point that was measured higher lifts a smaller one. A better
    setting gains the time that the equations say; `logs` are of the measured setting. Another model has no
    bounds."""
    here, there, observed = found.setting, found.asked, found.known.observed
    sizes, seen = _shapes(targets)[:3], _shapes([one.at for one in observed])[:3]
    no_larger = np.all(seen[:, None, :] <= sizes[:, :, None], axis=0)
    later = np.all(seen[:, :, None] <= seen[:, None, :], axis=0)
    gained: Floats | float = 0.0
    if (
        there.line_bytes_per_s > here.line_bytes_per_s or there.step_s > here.step_s
        or there.gradient_bytes < here.gradient_bytes or (here.link in TCP and there.link not in TCP)
    ):  # fmt: skip
        gained = np.maximum(np.exp(-logs) - np.exp(-equations(found, [one.at for one in observed])[0]), 0.0)
    gained += inf if here.tensors != there.tensors else 0.0
    bounds = []
    for deviations in (0.0, NORMAL_95):
        values = np.array([one.value * exp(deviations * one.noise) for one in observed])
        lifted = np.max(values * later, axis=1, initial=1e-3)
        reached = 1 / np.maximum(1 / lifted - gained, 1e-3)
        bounds.append(np.min(np.where(no_larger, reached, inf), axis=1, initial=inf))
    return bounds


def class_of(found: Fit, at: At) -> str:
    """What is known of a target: errors of published series are counted by it.

    * cold, hard: nothing was measured; "hard" over PCIe or with short steps, of which less is published
    * one: one node was measured, and the target has several
    * two: all else
    """
    seen, setting = found.known.observed, found.asked
    if not seen:
        short = setting.step_s * at.accumulation < SHORT_STEP_S
        return "hard" if short or setting.bus in ("pcie", "unknown") else "cold"
    return "one" if at.nodes > 1 == max(one.at.nodes for one in seen) else "two"


def _carried(found: Fit, at: At) -> float:
    """Share of the unexplained loss that another setting has too, by how far the equations' own loss moved.

    With L, L' of both settings and the unexplained r, L' + r w(L') grows with L', because w moves by less than
    1/|r| for each unit of L'. So no worse setting is predicted better.
    """
    if found.asked == found.setting or not found.known.observed:
        return 1.0
    last = found.known.observed[-1].at
    place = at if at.world_size < last.world_size else last
    pair = (found.setting, found.asked)
    here, there = (exp(-float(equations(found, [place], one)[0][0])) - 1 for one in pair)
    far = max(here, LEAST_LOSS, float(np.max(np.abs(found.missed))))
    share = exp((here - there) / far) if there > here else 1 - (here - there) / far
    return (ANOTHER_MODEL if found.asked.tensors != found.setting.tensors else 1.0) * max(share, 0.0)


def equations(found: Fit, at: Sequence[At], setting: Setting | None = None) -> tuple[Floats, Parts, Floats]:
    """Return ln(rate of a device here / at the anchor), the parts of the step, and derivatives of the first by z.
    `setting`: the asked one by default."""
    count, setting, anchor = len(found.z), setting or found.asked, found.known.anchor
    z = np.vstack([found.z, found.z + STEP * np.eye(count), found.z - STEP * np.eye(count)])
    names, measured = keys(setting), keys(found.setting)
    places = [found.places[one] for one in names.items()]
    if setting.link == "tcp10" and "cap_growth" in measured:
        curve = {"network": "cap", "cap_growth": "cap_growth"}
        names |= {role: measured[one] for one, role in curve.items()}
        places += [found.places[one, measured[one]] for one in curve]
    known = values(names, found.priors, z[:, places])
    alone_s = step_s = setting.step_s * np.exp(setting.step_spread * z[:, -1])
    if anchor.world_size > 1:  # solve for the micro step of one device that reproduces the step at the anchor
        alone_s = step_s * 0.9
        for _ in range(8):
            there_s = parts(setting, known, [anchor], alone_s).step_s[:, 0] / anchor.accumulation
            alone_s = np.maximum(alone_s * np.clip(step_s / there_s, 0.5, 2.0), 0.02 * step_s)
    made = parts(setting, known, at, alone_s)
    logs = np.log(step_s[:, None] * _shapes(at)[3] / made.step_s)
    slopes = (logs[1 : count + 1] - logs[count + 1 :]) / (2 * STEP)
    return logs[0], Parts(*(np.broadcast_to(part, logs.shape)[0] for part in made)), slopes


def _noise(known: Known, walk: Walk) -> Floats:
    """Return the covariance of measured logarithms, the model's error included."""
    points = [one.at for one in known.observed]
    return np.diag([one.noise**2 for one in known.observed]) + covariance(walk, known.anchor, points, points)


def covariance(walk: Walk, anchor: At, rows: Sequence[At], columns: Sequence[At]) -> Floats:
    """Compute the covariance of the walk, which is 0 at `anchor`. Doublings inside a node and of nodes are
    independent."""

    def places(points: Sequence[At]) -> Floats:
        _, nodes, each, _ = _shapes(points)
        beyond = walk.beyond**2 * np.log2(nodes / 2) + walk.leaving**2
        return np.stack([walk.inside**2 * np.log2(each), np.where(nodes > 1, beyond, 0.0)], axis=1)

    start = places([anchor])
    a, b = (places(rows) - start)[:, None, :], (places(columns) - start)[None, :, :]
    return np.asarray(np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0).sum(axis=2))
