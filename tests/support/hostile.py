"""A run whose names would run a script, leave their figure or turn the text around, if a page let them."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.run import Header, PointRecord
from tests.support.scripted_records import carried, header, host, point, record, warning

HOST = '<script>document.title="pwned"</script>'
NETWORK = 'eth0"><svg onload=alert(1)>'
CPU = '"><img src=x onerror=document.title="pwned">'
NOTE = "</style></script><b>note</b> {{ 7 * 7 }} $\\frac{1}{2}$"
TURNED = "fake:\u202ea\u2066b"
LONG = "fake:" + "w" * 60
SPOKEN = (HOST, NETWORK, CPU, "{{ 7 * 7 }}", LONG)


def hostile_run() -> tuple[Header, list[PointRecord]]:
    """Two hosts, three strategies; one row MISLABELLED."""
    hosts = [HOST, "node2"]
    records: list[PointRecord] = []
    for number in range(2):
        records.append(record(point("solo", 1, number), 0.1))
        records.append(record(point("together", 2, number), 0.1, 0.11, hosts=hosts))
        for strategy, network in (("fake:a", NETWORK), (TURNED, "auto"), (LONG, "auto")):
            at = point("exchange", 2, number, strategy=strategy, interconnect=network)
            made = replace(record(at, 0.11 + 0.001 * number, hosts=hosts), warnings=(warning(NOTE),))
            records.append(carried(made, "ib0") if network == NETWORK else made)
    return header([host(HOST, cpu_model=CPU), host("node2")]), records
