"""The equations of a step, their fit to measurements, and predictions of other world sizes and settings.

README.md has the equations. The constants are at the centre of their priors, moved by the measurements, each
weighed by its interval (Gauss-Newton steps to the mode). The loss that the equations still miss is a random walk
over log2 N: its last value is carried on, in another setting as far as the equations say that little changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.tools.predict.setting import NORMAL_95, USUAL_BYTES_PER_S, At, Measured, Priors, Setting

# ---------------------------------------------------------------- constants

Floats = NDArray[np.float64]
# roles of constants in the equations that all settings share; those of emulated devices have priors of their own
SHARED = ("window", "tax", "tax_s", "growth", "fade")
EMULATED = ("network", "hide", "tax", "tax_s", "growth", "alpha", "fade")


def keys(setting: Setting) -> dict[str, str]:
    """Map the roles of constants in the equations to the names of their priors."""
    link = "cpu" if setting.link in ("tcp", "ipoib") and setting.carrier == "cpu" else setting.link
    found = {role: role for role in SHARED} | {
        "bus": f"bus.{setting.bus}", "network": f"network.{link}", "hide": f"hide.{setting.overlap}",
        "alpha": f"alpha.{'rdma' if setting.link == 'rdma' else 'tcp'}",
    }  # fmt: skip
    if setting.method == "sharded":
        found["tax"] = "tax.sharded"
    if setting.emulated:  # sleeping devices and shaped links, which no published cluster has
        found |= {role: f"{role}.emulated" for role in EMULATED}
    return found


def values(names: Mapping[str, str], priors: Priors, z: Floats) -> dict[str, Floats]:
    """Convert standard normal draws (draws x constants) to constants, one column each."""
    found = {}
    for index, (role, name) in enumerate(names.items()):
        normal = priors.constants[name].mean + priors.constants[name].sd * z[:, [index]]
        found[role] = np.asarray(1 / (1 + np.exp(-normal)) if role == "hide" else np.exp(normal))
    return found


# ---------------------------------------------------------------- equations

# what a host sends over TCP: the share of a line that framing leaves, and no more than a cap, which is learned at
# 25 Gb/s and grows with a power of the line (NVIDIA/nccl#450, #398 and #209)
TCP_EFFICIENCY, CAP_LINE_BYTES_PER_S, CAP_POWER = 0.95, 3.125e9, 0.6
BUCKET_BYTES = 25e6
# one step inside a node: NCCL's src/graph/tuning.cc has 3.4 us for NVLink and 5.7 us for PCIe
INSIDE_LATENCY_S = 5e-6
TREE_STEPS, SHARDED_VOLUME = 3.0, 1.5
# how often a server's link carries a gradient in series: pushes and pulls are full duplex
PUSH_THEN_PULL, DUPLEX = 2.0, 1.1
# worlds of hundreds of devices lose more per doubling of nodes than few nodes
GROWTH_POWER = 1.5


class Parts(NamedTuple):
    """Seconds of a step by cause, draws x world sizes. Their sum is the step."""

    alone_s: Floats
    contention_s: Floats
    straggling_s: Floats
    exposed_s: Floats


def _shapes(points: Sequence[At]) -> Floats:
    """Rows: world size, nodes, devices per node, micro steps."""
    rows = [(at.world_size, at.nodes, at.devices_per_node, at.accumulation) for at in points]
    return np.array(rows, float).reshape(-1, 4).T


def parts(setting: Setting, values: Mapping[str, Floats], points: Sequence[At], alone_s: Floats) -> Parts:
    """Compute the seconds of a step; `alone_s` is the micro step of one device by draw."""
    world, nodes, _, accumulation = _shapes(points)
    t1, several = alone_s[:, None], world > 1
    compute = accumulation * t1
    contention = (compute * values["tax"] + values["tax_s"]) * several
    straggling = (compute + contention) * values["growth"] * np.log2(nodes) ** GROWTH_POWER
    exchange, slowest = _exchange(setting, values, points)
    window = t1 if setting.method == "sharded" else values["window"] * t1
    hidden = np.maximum(exchange - window, setting.tail * exchange)
    gathered = (world - 1) / world * setting.gathered_bytes / slowest
    exposed = (1 - values["hide"]) * exchange + values["hide"] * hidden + gathered
    return Parts(compute, contention, straggling, exposed)


def _exchange(setting: Setting, values: Mapping[str, Floats], points: Sequence[At]) -> tuple[Floats, Floats]:
    """Compute the seconds of the exchange of all gradients, and the bytes/s of the slowest leg of a ring."""
    world, nodes, each, _ = _shapes(points)
    size, apart, alpha = setting.gradient_bytes, nodes > 1, values["alpha"]
    bus = values["bus"] * (setting.bus_bytes_per_s or USUAL_BYTES_PER_S[setting.bus])
    # no node's link carries less than in proportion to 1 / nodes
    network = carried_bytes_per_s(setting, values) * (np.maximum(nodes, 2) / 2) ** -np.minimum(values["fade"], 1)
    slowest = np.where(apart, np.minimum(network, np.where(each > 1, bus, np.inf)), bus)
    if setting.method.startswith("servers"):
        steps_s = np.where(apart, 2 * alpha, 2 * INSIDE_LATENCY_S)
        if setting.method == "servers_beside":
            inside, between = each * (each > 1), 2 * (nodes - 1) / nodes
        else:
            inside, between = 2 * (each - 1) / each, PUSH_THEN_PULL if setting.overlap == "serial" else DUPLEX
        moved_s = inside * size / bus + apart * between * size / network
    else:
        ring_s = 2 * (nodes - 1) * alpha + 2 * (world - nodes) * INSIDE_LATENCY_S
        tree_s = 2 * np.log2(nodes) * TREE_STEPS * alpha + 2 * (each - 1) * INSIDE_LATENCY_S
        steps_s = np.where(apart, np.minimum(ring_s, tree_s), ring_s)
        volume = SHARDED_VOLUME if setting.method == "sharded" else 1.0
        moved_s = (volume * 2 / world * size + setting.sparse_bytes) * (world - 1) / slowest
    messages = {"one": 1, "tensors": setting.tensors, "buckets": max(1.0, size / BUCKET_BYTES)}[setting.messages]
    return np.where(world > 1, moved_s + messages * steps_s, 0.0), slowest


def carried_bytes_per_s(setting: Setting, values: Mapping[str, Floats]) -> Floats:
    """Compute what a node's link carries, bytes/s by draw. A host sends less over TCP than a fast line carries."""
    line, network = setting.line_bytes_per_s, values["network"]
    if setting.link == "unknown":
        return network
    if setting.link == "rdma" or setting.emulated:
        return network * line
    power = CAP_POWER if setting.carrier == "nccl" else 0.0
    cap = setting.cards * network * (line / setting.cards / CAP_LINE_BYTES_PER_S) ** power
    return np.asarray(np.minimum(TCP_EFFICIENCY * line, cap))


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

    * places: index in `z` of the constants of both, by name; a guessed step is the last
    * z, spread: constants as standard normal values, and their covariance
    * missed: loss that they do not explain, by observed point, a fraction of the time of one device
    * scale: factor on standard deviations, above 1 if the measurements contradict the priors
    """

    setting: Setting
    asked: Setting
    observed: Sequence[Measured]
    priors: Priors
    places: Mapping[str, int]
    z: Floats
    spread: Floats
    missed: Floats
    scale: float = 1.0

    @property
    def seen(self) -> list[At]:
        return [one.at for one in self.observed]


class Predicted(NamedTuple):
    """Efficiency relative to the anchor with its 80 % interval, the standard deviation of its logarithm, seconds
    of the step by cause, and the weight of the measurements, 0 to 1."""

    efficiency: float
    low: float
    high: float
    deviation: float
    seconds: Sequence[float]
    weight: float


def fit(setting: Setting, observed: Sequence[Measured], priors: Priors, asked: Setting | None = None) -> Fit:
    asked = asked or setting
    both = dict.fromkeys((*keys(setting).values(), *keys(asked).values()))
    places = {name: index for index, name in enumerate(both)}
    z = np.zeros(len(places) + (setting.step_spread > 0))
    found = Fit(setting, asked, observed, priors, places, z, np.eye(len(z)), z)
    target, noise = np.log([one.efficiency for one in observed]), _noise(found)
    first = 0.0
    for step in range(STEPS):
        now, _, slopes = equations(found, found.seen, setting)
        off = np.linalg.solve(noise + slopes.T @ slopes, target - now + slopes.T @ found.z)
        first = first if step else float((target - now) @ off)
        z = np.clip((slopes @ off + found.z * (step > 1)) / (1 + (step > 1)), -MOST, MOST)
        found = found._replace(z=z)
    now, _, slopes = equations(found, found.seen, setting)
    spread = np.linalg.inv(np.eye(len(z)) + slopes @ np.linalg.solve(noise, slopes.T))
    scale = max(1.0, sqrt((FREEDOM + first) / (FREEDOM + len(target))))
    return found._replace(spread=spread, missed=np.exp(-target) - np.exp(-now), scale=scale)


def predict(found: Fit, at: At) -> Predicted:
    here, there, seen = found.setting, found.asked, found.seen
    logs, made, slopes = equations(found, [at], there)
    cross, prior = covariance(found, [at], seen)[0], covariance(found, [at], [at]).item()
    carried = _carried(found, at)
    gain = carried * np.linalg.solve(_noise(found), cross)
    # a constant moves the target, and what is missed of the points that it moves, too
    here_logs, _, here_slopes = equations(found, seen, here)
    moves = slopes[:, 0] - here_slopes @ gain
    left = prior - carried * float(gain @ cross) + float(moves @ found.spread @ moves)
    highest = HIGHEST * max([1.0, *(one.efficiency for one in found.observed)])
    missed = float(gain @ found.missed)
    missed *= _kept(found, at) if missed < 0 else 1.0
    middle = min(1 / max(exp(-logs.item()) + missed, 1 / highest), highest)
    # another batch or model is less certain, by how far its step and its gradients moved
    far = abs(log(there.step_s / here.step_s)) + abs(log(there.gradient_bytes / here.gradient_bytes))
    widened = found.scale * (1 + MOST_WIDENED * min(1.0, far / FAR))
    deviation = widened * sqrt(max(left, LEAST_DEVIATION**2))
    below, above = (exp(factor * deviation) for factor in found.priors.quantiles[class_of(found, at)])
    efficiency, high = (min(middle, most) for most in _bounds(found, at, here_logs))
    weight = 1 - left / max(prior + float(np.sum(slopes**2)), 1e-12) if efficiency == middle else 1.0
    high = min(middle * above, max(efficiency * above, high), highest)
    return Predicted(efficiency, efficiency / below, high, deviation, [float(part[0]) for part in made], weight)


def _bounds(found: Fit, at: At, logs: Floats) -> Iterator[float]:
    """Yield the lowest efficiency, and the lowest end of a 95 % interval, of measured points with no more devices,
    nodes and devices of a node. A larger point that was measured higher lifts a smaller one. A better setting
    gains the time that the equations say; `logs` are of the measured setting. Another model has no bounds."""
    size, seen = _shapes([at])[:3], _shapes(found.seen)[:3]
    later = np.all(seen[:, :, None] <= seen[:, None, :], axis=0)
    gained = np.maximum(np.exp(-logs) - np.exp(-equations(found, found.seen, found.asked)[0]), 0.0)
    for deviations in (0.0, NORMAL_95):
        values = np.array([one.efficiency * exp(deviations * one.noise) for one in found.observed])
        lifted = np.max(values * later, axis=1, initial=1e-3)
        reached = 1 / np.maximum(1 / lifted - gained, 1e-3)[np.all(seen <= size, axis=0)]
        yield inf if found.setting.tensors != found.asked.tensors else float(np.min(reached, initial=inf))


def class_of(found: Fit, at: At) -> str:
    """What is known of a target: errors of published series are counted by it.

    * cold, hard: nothing was measured; "hard" over PCIe or with short steps, of which less is published
    * one: one node was measured, and the target has several
    * two: all else
    """
    setting = found.asked
    if not found.observed:
        short = setting.step_s * at.accumulation < SHORT_STEP_S
        return "hard" if short or setting.bus in ("pcie", "unknown") else "cold"
    return "one" if at.nodes > 1 == max(one.nodes for one in found.seen) else "two"


def _carried(found: Fit, at: At) -> float:
    """Share of the unexplained loss that another setting has too, by how far the equations' own loss moved.

    With L, L' of both settings and the unexplained r, L' + r w(L') grows with L', because w moves by less than
    1/|r| for each unit of L'. So no worse setting is predicted better.
    """
    if found.asked == found.setting or not found.observed:
        return 1.0
    place = min(found.seen[-1], at, key=lambda one: one.world_size)
    here, there = (exp(-float(equations(found, [place], one)[0][0])) - 1 for one in (found.setting, found.asked))
    far = max(here, LEAST_LOSS, float(np.max(np.abs(found.missed))))
    share = exp((here - there) / far) if there > here else 1 - (here - there) / far
    return (ANOTHER_MODEL if found.asked.tensors != found.setting.tensors else 1.0) * max(share, 0.0)


def _kept(found: Fit, at: At) -> float:
    """Share of an unexplained gain that is expected on more nodes than several measured ones: the correlation of
    the walk. Losses spread as the walk does. Gains cannot, because efficiency ends at 100 %."""
    walk, last = found.priors.walk, found.seen[-1].nodes
    here, there = walk["leaving"] ** 2 + walk["beyond"] ** 2 * np.log2([last / 2, max(last, at.nodes) / 2])
    return sqrt(here / there) if last > 1 else 1.0


def equations(found: Fit, at: Sequence[At], setting: Setting) -> tuple[Floats, Parts, Floats]:
    """Return ln(rate of a device / at the anchor), the parts of the step, and derivatives of the first by z."""
    count, anchor = len(found.z), found.setting.anchor
    z = np.vstack([found.z, found.z + STEP * np.eye(count), found.z - STEP * np.eye(count)])
    names = keys(setting)
    known = values(names, found.priors, z[:, [found.places[name] for name in names.values()]])
    alone_s = step_s = setting.step_s * np.exp(setting.step_spread * z[:, -1])
    if anchor.world_size > 1:  # solve for the micro step of one device that reproduces the step at the anchor
        alone_s = step_s * 0.9
        for _ in range(8):
            there_s = sum(parts(setting, known, [anchor], alone_s), np.zeros(1))[:, 0] / anchor.accumulation
            alone_s = np.maximum(alone_s * np.clip(step_s / there_s, 0.5, 2.0), 0.02 * step_s)
    made = parts(setting, known, at, alone_s)
    logs = np.log(step_s[:, None] * _shapes(at)[3] / sum(made))
    slopes = (logs[1 : count + 1] - logs[count + 1 :]) / (2 * STEP)
    return logs[0], Parts(*(np.broadcast_to(part, logs.shape)[0] for part in made)), slopes


def _noise(found: Fit) -> Floats:
    """Return the covariance of measured logarithms, the model's error included."""
    return np.diag([one.noise**2 for one in found.observed]) + covariance(found, found.seen, found.seen)


def covariance(found: Fit, rows: Sequence[At], columns: Sequence[At]) -> Floats:
    """Compute the covariance of the walk, which is 0 at the anchor. Doublings inside a node and of nodes are
    independent."""
    walk = found.priors.walk

    def places(points: Sequence[At]) -> Floats:
        _, nodes, each, _ = _shapes(points)
        beyond = walk["beyond"] ** 2 * np.log2(nodes / 2) + walk["leaving"] ** 2
        return np.stack([walk["inside"] ** 2 * np.log2(each), np.where(nodes > 1, beyond, 0.0)], axis=1)

    start = places([found.setting.anchor])
    a, b = (places(one) - start for one in (rows, columns))
    a, b = a[:, None, :], b[None, :, :]
    return np.asarray(np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0).sum(axis=2))
