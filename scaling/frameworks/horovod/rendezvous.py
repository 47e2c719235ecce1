"""Horovod's rendezvous, a helper on rank 0: an HTTP store through which Gloo's pairs find each other."""

from __future__ import annotations

import socketserver
from collections.abc import Callable

from horovod.runner.http import http_server

from scaling.frameworks.horovod.strategy import slots
from scaling.records.task import Task


class Server(http_server.RendezvousHTTPServer):  # type: ignore[misc]
    """Horovod's own server, bound to a known address."""

    # All ranks connect at the same time.
    request_queue_size = 1024

    def server_bind(self) -> None:
        """Bind without HTTPServer's DNS query for the address's name, which may take many seconds."""
        socketserver.TCPServer.server_bind(self)


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Serve on rank 0's reserved port until the point ends. Horovod's own starter listens on all interfaces."""
    with Server((task.address, task.ports[0]), http_server.RendezvousHandler, False) as server:
        # It reads a slot's fields by name.
        server.init(slots(task.hosts))
        announce({"RENDEZVOUS": f"{task.address}:{task.ports[0]}"})
        server.serve_forever()
