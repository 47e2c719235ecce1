"""What the links of a lab deliver of their rate: four TCP streams in a ring over four nodes, both ends shaped.

0.957 is the ceiling: 1448 bytes of data in each frame of 1514. python -m tests.bench.lab_links [RATE...], as root.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

import psutil

from scaling.tools.lab import rates, shaping
from scaling.tools.lab.state import Lab
from tests.support import labs

CEILING, BAR = 1448 / 1514, 0.92
SETTLE_S, MEASURE_S = 2.0, 6.0
RATES = ("1mbit", "5mbit", "25mbit", "100mbit", "500mbit", "1gbit", "2gbit", "4gbit")
# A node receives from the one before it and sends to the next; it says what came in the measured time.
STREAM = """
import socket, sys, threading, time
own, following, settle_s, measure_s = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
server = socket.create_server((own, 5000))
print("up", flush=True)
sys.stdin.readline()
def send():
    peer = socket.create_connection((following, 5000))
    try:
        while True:
            peer.sendall(bytes(1 << 18))
    except OSError:
        pass
threading.Thread(target=send, daemon=True).start()
peer, buffer = server.accept()[0], bytearray(1 << 18)
def receive(seconds):
    start_s, size = time.monotonic(), 0
    while time.monotonic() - start_s < seconds:
        size += peer.recv_into(buffer)
    return 8 * size / (time.monotonic() - start_s)
receive(settle_s)
print(receive(measure_s), flush=True)
"""


def ring_bits_per_s(lab: Lab) -> tuple[list[float], float]:
    """What each node received, and how many cores were in use meanwhile."""
    addresses = [lab.nics[0].address(number) for number in range(1, len(lab.nodes) + 1)]
    following = [*addresses[1:], addresses[0]]
    times = [str(SETTLE_S), str(MEASURE_S)]
    agent, pipe = str(lab.folder / "agent"), subprocess.PIPE
    nodes = [
        subprocess.Popen(
            [agent, "--as-is", node, sys.executable, "-c", STREAM, own, to, *times],
            stdin=pipe,
            stdout=pipe,
            text=True,
        )
        for node, own, to in zip(lab.nodes, addresses, following, strict=True)
    ]
    assert all(node.stdout is not None and node.stdout.readline() == "up\n" for node in nodes)
    for node in nodes:
        assert node.stdin is not None
        node.stdin.write("go\n")
        node.stdin.flush()
    psutil.cpu_percent(None)
    received = [float(node.stdout.readline()) for node in nodes if node.stdout is not None]
    cores = psutil.cpu_percent(None) / 100 * (os.cpu_count() or 1)
    for node in nodes:
        node.kill()
        node.communicate()
    return received, cores


def main() -> None:
    """Print the share of each rate that was delivered, mean and least over the nodes, and the cores it took."""
    with labs.lab("links", nodes=4, nics=("ib0=100mbit",)) as lab:
        sys.stdout.write("rate      delivered/rate (least)  cores   kernel " + os.uname().release + "\n")
        for text in sys.argv[1:] or RATES:
            rate = rates.parse(text, "RATE")
            received, cores = ring_bits_per_s(shaping.shape(lab, {"ib0": rate}))
            share, least = statistics.mean(received) / rate, min(received) / rate
            sys.stdout.write(f"{text:<9} {share:.3f} ({least:.3f})           {cores:.2f}\n")
            sys.stdout.flush()
    sys.stdout.write(f"must reach {BAR} (ceiling {CEILING:.3f})\n")


if __name__ == "__main__":
    main()
