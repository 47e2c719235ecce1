"""What is changed on a running lab: `ib0=1gbit`, `node2.ib0=10%`, `node2.ib0=down`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from scaling.errors import UsageError, near
from scaling.records.point import Record
from scaling.tools.lab import files, rates, shaping, state, wires
from scaling.tools.lab.shapes import Shape
from scaling.tools.lab.state import Holder, Lab, Nic, Program


class Change(Record, frozen=True, kw_only=True):
    """One word of `rate`: of a network, or of one node's link (`node`). `value` is "up", "down", or a rate:
    `rate_bits_per_s`, or as a share of the network's rate."""

    text: str
    nic: Nic
    node: str = ""
    value: str = ""
    rate_bits_per_s: float = 0.0
    share: float = 0.0


def change(name: str, texts: Sequence[str]) -> Lab:
    """Obey the words in their order, all or, at a wrong one, none. Raises UsageError, LaunchError."""
    with state.locked():
        lab = state.load(name)
        wanted = [parse(lab, text) for text in texts]
        for one in wanted:
            lab = switched(lab, one) if one.value else rated(lab, one)
        shaping.apply(lab, lab.nics)
        for one in wanted:
            for node in _nodes(lab, one):
                if one.value:
                    wires.switch_card(lab, node, one.nic, one.value)
        state.save(lab)
        files.write(lab)
        return lab


def cards(wanted: Shape, texts: Sequence[str]) -> set[str]:
    """The cards whose networks `up --rate` changes, before there is a lab. Raises UsageError for a wrong word."""
    planned = wanted.lab(Holder(program=Program(pid=0, start_ticks=0), namespaces={}, inodes={}))
    return {parse(planned, text).nic.name for text in texts}


def parse(lab: Lab, text: str) -> Change:
    """Read a word. Raises UsageError that names it."""
    target, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text}: must be CARD=RATE or NODE.CARD=RATE, with up or down or 10% for RATE")
    node, _, card = target.rpartition(".")
    if node and node not in lab.nodes:
        raise UsageError(f"{text}: lab {lab.name} has no node {node!r}; {near(node, lab.nodes)}")
    nic = shaping.nic_of(lab, card, text)
    if value in ("up", "down"):
        return Change(text=text, nic=nic, node=node, value=value)
    if value.endswith("%"):
        return Change(text=text, nic=nic, node=node, share=_share(value, text, node))
    return Change(text=text, nic=nic, node=node, rate_bits_per_s=rates.parse(value, text))


def _share(value: str, text: str, node: str) -> float:
    try:
        percent = float(value[:-1])
    except ValueError:
        percent = 0.0
    if not 0.01 <= percent <= 100 or not node:
        raise UsageError(f"{text}: a share is 0.01% to 100%, of one node's link; write for example node2.ib0=10%")
    return percent / 100


def _nodes(lab: Lab, one: Change) -> tuple[str, ...]:
    return (one.node,) if one.node else lab.nodes


def rated(lab: Lab, one: Change) -> Lab:
    """A network's rate is what is declared from now on, for all its links; a link's is a share of it."""
    if one.node:
        nic = lab.nic(one.nic.name) or one.nic
        share = one.share or one.rate_bits_per_s / nic.shaped_bits_per_s
        links = {**lab.links, f"{one.node}.{nic.name}": share}
        return replace(lab, links={link: part for link, part in links.items() if part != 1.0})
    rate = one.rate_bits_per_s
    nics = tuple(
        replace(nic, rate_bits_per_s=rate, shaped_bits_per_s=rate) if nic.name == one.nic.name else nic
        for nic in lab.nics
    )
    links = {link: share for link, share in lab.links.items() if link.partition(".")[2] != one.nic.name}
    return replace(lab, nics=nics, links=links)


def switched(lab: Lab, one: Change) -> Lab:
    cards = [f"{node}.{one.nic.name}" for node in _nodes(lab, one)]
    others = tuple(card for card in lab.down if card not in cards)
    return replace(lab, down=(*others, *cards) if one.value == "down" else others)
