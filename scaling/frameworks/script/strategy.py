"""The agent's side of a script: the environment of torchrun and of libraries with a rendezvous of their own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Strategy, Traits
from scaling.frameworks.horovod.strategy import RENDEZVOUS, slots
from scaling.frameworks.script import command
from scaling.records.crossing import Bounds
from scaling.records.point import EXCHANGING, Device, Point
from scaling.records.task import Task

# Set in a script's process only if the user does not: a script that is started often must not upload often.
OFFLINE = {"WANDB_MODE": "offline", "COMET_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}


class Script(Strategy):
    """A user's training. Its baseline is the same script on one device."""

    names = ("script:plain",)
    baseline = "script:plain"
    trainer = "scaling.frameworks.script.trainer"
    server = "scaling.frameworks.horovod.rendezvous"
    lead = "scaling.frameworks.script.lead"

    def traits(self, _name: str) -> Traits:
        """Return two ports, of Horovod's rendezvous and of torch's store, and one of each rank, for
        single ranks and TensorFlow's cluster."""
        return Traits(ports=2, rank_ports=True, nccl=True)

    def devices(self, _name: str) -> tuple[Device, ...]:
        return ("cpu", "cuda")

    def refuse(self, point: Point) -> str | None:
        if point.kind in ("exchange", "solo", "each", "together"):
            return None
        return f"--kinds {point.kind}: needs a model of this package; leave it out with a script"

    def helpers(self, task: Task) -> list[Helper]:
        return [Helper(name=RENDEZVOUS)] if "horovod" in _mentions(task) else []

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        if task.role == RENDEZVOUS or task.point.kind not in EXCHANGING:
            return {}
        mentions = _mentions(task)
        return {
            **torchrun(task),
            **network_env.gloo(task),
            **network_env.nccl(task),
            **network_env.nccl_log(task),
            **(_horovod(task) if "horovod" in mentions else {}),
            **(_cluster(task) if {"tensorflow", "keras"} & mentions else {}),
        }

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return a ring's bytes. A trainer tells no gradients' bytes if their exchange was not seen."""
        return super().bytes_per_step(task, gradient_bytes) if gradient_bytes else None


def torchrun(task: Task, *, alone: bool = False) -> dict[str, str]:
    """Return what torchrun sets (LocalElasticAgent of torch 2.13);
    `alone`: for a world of one rank."""
    hosts = list(dict.fromkeys(task.hosts))
    rank, size = (0, 1) if alone else (task.rank, task.point.world_size)
    local_rank, local_size = (0, 1) if alone else (task.local_rank, task.local_world_size)
    group, groups = (0, 1) if alone else (hosts.index(task.hosts[task.rank]), len(hosts))
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(groups),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": task.addresses[task.rank] if alone else task.address,
        "MASTER_PORT": str(task.rank_ports[task.rank] if alone else task.ports[1]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def _horovod(task: Task) -> dict[str, str]:
    slot = slots(task.hosts)[task.rank]
    return {
        **{f"HOROVOD_{name.upper()}": str(getattr(slot, name)) for name in slot.__struct_fields__},
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": task.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(task.ports[0]),
        "HOROVOD_GLOO_IFACE": task.place.interface,
    }


def _cluster(task: Task) -> dict[str, str]:
    workers = [f"{address}:{port}" for address, port in zip(task.addresses, task.rank_ports, strict=True)]
    where = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": task.rank}}
    return {"TF_CONFIG": json.dumps(where)}


def _mentions(task: Task) -> set[str]:
    given = command.read(shlex.split(task.point.workload.script))
    return set() if given.is_module else set(command.mentions(given.target))


STRATEGY = Script()
