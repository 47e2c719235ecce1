"""A run whose hosts, users, folders and programs have telling names, which outputs must not show."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.records.events import Failed
from scaling.records.network import NcclChoice, Network, Place
from scaling.records.run import Header, PointRecord, PointWarning
from scaling.records.telemetry import Foreign
from tests.support.scripted_records import carried, failed, header, host, point, record, served

ALICE, BOB = "alice-laptop.corp.example", "bob-box.corp.example"
HOSTS = [ALICE, BOB]
COMMAND = "python3 /home/alice/secret.py"
FOREIGN = (
    Foreign(name=COMMAND, run_s=2.0, over_s=3.0),
    Foreign(name="cc1plus -quiet /home/alice/secret.py", run_s=1.0, over_s=3.0),
)
OLD_WARNING = PointWarning(kind="foreign-load", text=f"foreign load: `{COMMAND}` used 95 % of a core")
OTHER_WARNING = PointWarning(kind="other", text="rank 1 on alice-laptop: no trace in /home/alice/secret/traces")
MESSAGE = "[bob-box:4711] cannot open /scratch/alice/missing.dat: No such file. See file:///home/alice/help.html"
LOG = "/home/alice/results/run/logs/0001-a.log"
# Without the flag, no command line; with it, nothing of these either.
COMMAND_LINES = ("secret.py", "-quiet")
NAMES = ("alice", "bob-box", "corp.example", "cc1plus", "/home/", "/scratch", "secret")


def crowded(made: PointRecord) -> PointRecord:
    ranks = (
        replace(
            rank, disturbed=rank.windows[:1], environ={"MASTER_ADDR": ALICE},
            nccl=NcclChoice(network="Socket", warnings=(f"{rank.host} is slow",)),
            telemetry=replace(rank.telemetry, foreign=FOREIGN),
        )
        for rank in made.ranks
    )  # fmt: skip
    hosts = tuple(rank.host for rank in made.ranks)
    return replace(made, ranks=tuple(ranks), hosts=hosts, warnings=(OLD_WARNING, OTHER_WARNING))


def run() -> tuple[Header, list[PointRecord]]:
    """Two hosts with telling names: one network has a slow node and servers, another strategy fails."""
    records: list[PointRecord] = []
    for number in range(3):
        for kind, step_s in (("solo", 0.1), ("exchange", 0.103)):
            records.append(crowded(record(point(kind, 1, number), step_s, hosts=HOSTS)))
        together = record(point("together", 2, number), 0.1, 0.12, hosts=HOSTS)
        exchange = record(point("exchange", 2, number, interconnect="eth0"), 0.11, hosts=HOSTS)
        records += [
            crowded(together),
            crowded(served(carried(exchange, "eth0", slow=BOB), 40.0, hosts=HOSTS)),
        ]
        lost = failed(point("exchange", 2, number, strategy="fake:b", interconnect="eth0"))
        outcome = Failed(cause="error", message=MESSAGE, rank=1, host=BOB, log=LOG, log_tail=MESSAGE)
        records.append(replace(lost, outcome=outcome, retries=(f"port-taken on {ALICE}",)))
    eth0 = {name: Place(address=f"10.0.0.{index}", interface="eth0") for index, name in enumerate(HOSTS, 1)}
    made = header(
        [host(ALICE, boot_id="1"), host(BOB, boot_id="2", compile_lacks="gcc in /home/alice/secret")],
        launch_size=2,
        command=("python", "-m", "scaling.run", "--results", "/home/alice/secret"),
        config={"rounds": 3, "results": "~alice/secret", "data_dir": "/scratch/alice/secret"},
        why_default=f"no NVIDIA GPU on {ALICE}",
        networks=(Network(word="eth0", why=f"{BOB} has it", places=eth0),),
    )
    return made, records
