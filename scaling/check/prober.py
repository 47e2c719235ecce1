"""What every rank does in the preflight: tells of its host, then obeys rank 0 until it is let go.

Measuring happens in threads, whose answers `turn` hands on: nothing waits inside MPI, and only the main thread
calls it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from scaling.check import gather, links
from scaling.check.exchanger import FOR_GOOD, Exchanger
from scaling.check.facts import Link, Prepared, RankFacts
from scaling.check.messages import (
    RANK_DECODER,
    EndExchange,
    Exchange,
    Exchanged,
    Leave,
    Measure,
    Prepare,
    ToLead,
    ToRank,
)
from scaling.records.messages import Signalled
from scaling.transport.base import Cluster
from scaling.transport.mailbox import send_news

QUICK_S = 0.002  # between looks for messages while something of this rank is under way
CALM_S = 0.02


class Prober:
    """One rank of the preflight. `signals` grows by each signal that asks for the end; `bind` is replaced in
    tests."""

    def __init__(
        self, cluster: Cluster, *, signals: list[int] | None = None, bind: links.Bind = links.bind_device
    ) -> None:
        self.cluster = cluster
        self.left = False
        self._bind = bind
        self._listeners: list[links.Listener] = []
        self._exchanger = Exchanger()
        self._answers: SimpleQueue[ToLead | BaseException] = SimpleQueue()
        self._under_way = 0
        self._signals = [] if signals is None else signals

    def enrol(self, facts: RankFacts) -> None:
        """Tell rank 0 who is here."""
        self._say(facts)

    def serve(self) -> None:
        """Take turns until rank 0 lets go."""
        while not self.left:
            self.turn()
            self.wait()

    def turn(self) -> None:
        """Take all orders and hand on all answers; never blocks. Raises what a measuring thread raised."""
        while self._signals:
            self._say(Signalled(signal=self._signals.pop(0)))
        while (message := self.cluster.receive("agent")) is not None:
            self._obey(RANK_DECODER.decode(message[1]))
        while (answer := self._answer()) is not None:
            self._under_way -= 1
            if isinstance(answer, BaseException):
                raise answer
            self._say(answer)

    def wait(self) -> None:
        """Sleep until there may be something to do: MPI has no file descriptor to wait on."""
        time.sleep(QUICK_S if self._under_way else CALM_S)

    def _say(self, message: ToLead) -> None:
        send_news(self.cluster, message)

    def _answer(self) -> ToLead | BaseException | None:
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def _obey(self, order: ToRank) -> None:
        match order:
            case Prepare():
                self._apart(lambda: self._prepare(order))
            case Measure():
                self._apart(lambda: self._measure(order))
            case Exchange():
                self._apart(lambda: self._exchange(order))
            case EndExchange():
                self._exchanger.end(order.number)
            case Leave():
                self.left = True
                self._exchanger.end(FOR_GOOD)
                for listener in self._listeners:
                    listener.close()

    # ------------------------------------------------------------ in threads

    def _apart(self, work: Callable[[], ToLead]) -> None:
        """Do `work` in a thread; its answer, or what it raised, comes out in a later turn."""

        def run() -> None:
            try:
                self._answers.put(work())
            except BaseException as error:
                self._answers.put(error)

        self._under_way += 1
        threading.Thread(target=run, daemon=True).start()

    def _prepare(self, order: Prepare) -> Prepared:
        ports: dict[str, int] = {}
        refused: dict[str, str] = {}
        for word, place in order.places.items():
            try:
                listener = links.Listener(place, order.token, self._bind)
            except OSError as error:
                refused[word] = links.reason(error)
            else:
                self._listeners.append(listener)
                ports[word] = listener.port
        load = gather.watch(frozenset(order.mine))
        return Prepared(ports=ports, refused=refused, resolved=gather.resolve(order.names), load=load)

    def _measure(self, order: Measure) -> Link:
        return links.probe(order, self._bind)

    def _exchange(self, order: Exchange) -> Exchanged:
        return Exchanged(number=order.number, told=self._exchanger.measured(order.number, order.asked))
