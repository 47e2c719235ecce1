"""The agent's side of a user's script: its command, and the environment of its ranks.

train.py --lr 0.1                                a file
-m package.train --lr 0.1                        a module
torchrun --nproc-per-node 8 train.py --lr 0.1    its launcher is dropped: scaling starts the ranks
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which
from typing import NamedTuple

from scaling.errors import UsageError
from scaling.frameworks import network_env
from scaling.frameworks.base import Helper, Strategy, Traits
from scaling.frameworks.horovod import strategy as horovod
from scaling.records.crossing import Bounds
from scaling.records.point import EXCHANGING, Point
from scaling.records.task import Task

FRAMEWORK = "script"
# Launchers, with their options that take no value. All others take one, if it is not written with `=`.
LAUNCHERS: Mapping[str, frozenset[str]] = {
    "python": frozenset(),
    "torchrun": frozenset({"--standalone", "--no-python", "--run-path", "--virtual-local-rank", "--use-env"}),
    "accelerate": frozenset({
        "-q", "--quiet", "--multi-gpu", "--cpu", "--tpu", "--use-deepspeed", "--use-fsdp", "--same-network",
        "--use-xla", "--debug", "--use-megatron-lm", "--use-parallelism-config",
    }),
    "deepspeed": frozenset({"--no-ssh", "--no-local-rank", "--no-python", "--enable-each-rank-log"}),
}  # fmt: skip
# What `python -m` starts of them.
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
# Options of launchers that change what a rank runs, and cannot be dropped.
MODULE_FLAGS = ("-m", "--module")
REFUSED = ("--no-python", "--run-path")
PLACEHOLDERS = ("devices", "local_devices", "nodes", "rank", "local_rank", "out")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Command(NamedTuple):
    """A script or module, and its arguments. `notes`: what was dropped."""

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the command without launchers, as a shell reads it."""
        return shlex.join([*(["-m"] if self.is_module else []), self.target, *self.arguments])

    @property
    def label(self) -> str:
        return self.target if self.is_module else Path(self.target).name

    def filled(self, values: Mapping[str, object]) -> tuple[str, ...]:
        """Return the arguments with values for their placeholders; other braces are left."""
        return tuple(
            _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), one) for one in self.arguments
        )


def plain_name(label: str) -> str:
    """Return a label as the second part of a strategy's name."""
    return re.sub(r"[^\w.+=-]+", "-", label).strip("-") or "script"


def parsed(text: str) -> Command:
    """Read a command and check its script. Raises UsageError with what is wrong and what to write."""
    try:
        found = read(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--script {text}: {error}") from None
    if not found.is_module:
        _check(found.target)
    return found


def read(words: Sequence[str]) -> Command:
    """Read a command's words. Raises UsageError for a launcher that is unknown."""
    rest, dropped = list(words), list[str]()
    while rest:
        launcher = _launcher(rest[0])
        if launcher == "" or rest[0] in MODULE_FLAGS:
            break
        before = len(rest)
        rest = _without(launcher, rest)
        dropped.append(shlex.join(words[len(words) - before : len(words) - len(rest)]))
    if not rest or rest == ["-m"]:
        raise UsageError("--: no script follows; write for example -- train.py --batch-size 32")
    is_module = rest[0] in MODULE_FLAGS
    target, *arguments = rest[is_module:]
    said = f"{', '.join(dropped)} dropped: scaling starts the ranks"
    if "accelerate launch -" in said:
        said += "; options that change the training need variables: ACCELERATE_MIXED_PRECISION=bf16"
    return Command(target, is_module, tuple(arguments), (said,) if any(dropped) else ())


def _launcher(word: str) -> str:
    name = re.sub(r"^python[\d.]*$", "python", Path(word).name)
    if name in LAUNCHERS:
        return name
    if word in MODULE_FLAGS or Path(word).suffix == ".py" or Path(word).exists():
        return ""
    own = f", or, if {word} is a training in Python, -- {place} ARGS" if (place := which(word)) else ""
    raise UsageError(
        f"-- {word}: neither a Python script nor a known launcher ({', '.join(LAUNCHERS)}); write the "
        f"script itself, -- train.py ARGS, or -- -m MODULE ARGS{own}"
    )


def _without(launcher: str, words: list[str]) -> list[str]:
    """Drop a launcher and its own options."""
    rest = words[1:]
    if launcher == "accelerate":
        if rest[:1] != ["launch"]:
            raise UsageError(f"-- {shlex.join(words[:2])}: only accelerate launch starts a training")
        rest = rest[1:]
    while rest and rest[0].startswith("-"):
        option, equals, _ = rest[0].replace("_", "-").partition("=")
        if option in REFUSED:
            raise UsageError(f"-- {launcher} {rest[0]}: only Python scripts are measured; leave it out")
        if option in MODULE_FLAGS:
            return _of_module(launcher, ["-m", *rest[1:]])
        if option == "-c":
            raise UsageError("-- python -c: write the code into a file, and -- FILE")
        takes_value = option in ("-W", "-X") if launcher == "python" else option not in LAUNCHERS[launcher]
        rest = rest[2:] if takes_value and not equals else rest[1:]
    return rest


def _of_module(launcher: str, rest: list[str]) -> list[str]:
    inner = MODULES.get(rest[1], "") if launcher == "python" and len(rest) > 1 else ""
    return [inner, *(["launch"] if inner == "accelerate" else []), *rest[2:]] if inner else rest


def _check(target: str) -> None:
    path = Path(target)
    if path.suffix == ".ipynb":
        raise UsageError(f"-- {target}: a notebook; make a script of it: jupyter nbconvert --to script {target}")
    try:
        source = path.read_bytes()
        compile(source, target, "exec", dont_inherit=True)
    except IsADirectoryError:
        raise UsageError(f"-- {target}: a folder; name its script, or -- -m PACKAGE") from None
    except OSError as error:
        raise UsageError(f"-- {target}: {error.strerror}; paths are relative to {Path.cwd()}") from None
    except SyntaxError as error:
        if path.suffix == ".sh" or (source[:2] == b"#!" and b"python" not in source.partition(b"\n")[0]):
            raise UsageError(f"-- {target}: no Python; write the command that it starts") from None
        raise UsageError(f"{target}:{error.lineno}: SyntaxError: {error.msg}") from None
    except ValueError as error:
        raise UsageError(f"-- {target}: not a Python script: {error}") from None


# ---------------------------------------------------------------- environment

# Set in a script's process only if the user does not: a script that is started often must not upload often.
OFFLINE = {"WANDB_MODE": "offline", "COMET_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}
# What torchrun sets of a rank (LocalElasticAgent of torch 2.13).
NUMBERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)  # fmt: skip
TORCHRUN = (*NUMBERS, "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT")


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

    def refuse(self, point: Point) -> str | None:
        if point.kind in ("exchange", "solo", "each", "together"):
            return None
        return f"--kinds {point.kind}: needs a model of this package; leave it out with a script"

    def helpers(self, task: Task) -> list[Helper]:
        return [Helper(name=horovod.RENDEZVOUS)] if "horovod" in _mentions(task) else []

    def environ(self, task: Task, _announced: Mapping[str, str]) -> dict[str, str]:
        if task.role == horovod.RENDEZVOUS or task.point.kind not in EXCHANGING:
            return {}
        mentions = _mentions(task)
        bound = {"HOROVOD_GLOO_IFACE": task.place.interface}
        return {
            **torchrun(task),
            **network_env.gloo(task),
            **network_env.nccl(task),
            **network_env.nccl_log(task),
            **(horovod.rank_environ(task) | bound if "horovod" in mentions else {}),
            **(_cluster(task) if {"tensorflow", "keras"} & mentions else {}),
            # Accelerate trains each rank alone on a CPU without it.
            **({"ACCELERATE_USE_CPU": "true"} if task.point.hardware.device == "cpu" else {}),
        }

    def bytes_per_step(self, task: Task, gradient_bytes: int) -> Bounds | None:
        """Return a ring's bytes. A trainer tells no gradients' bytes if their exchange was not seen."""
        return super().bytes_per_step(task, gradient_bytes) if gradient_bytes else None


def torchrun(task: Task, *, alone: bool = False) -> dict[str, str]:
    """Return what torchrun sets; `alone`: for a world of one rank, which is TensorFlow's cluster too."""
    hosts, size = list(dict.fromkeys(task.hosts)), task.point.world_size
    local, group = (task.local_rank, task.local_world_size), (hosts.index(task.hosts[task.rank]), len(hosts))
    numbers = (0, 1) * 4 if alone else (task.rank, size, *local, *group, task.rank, size)
    return {
        **dict(zip(NUMBERS, map(str, numbers), strict=True)),
        "ROLE_NAME": "default",
        "MASTER_ADDR": task.addresses[task.rank] if alone else task.address,
        "MASTER_PORT": str(task.rank_ports[task.rank] if alone else task.ports[1]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **(_cluster(task, alone=True) if alone else {}),
    }


def _cluster(task: Task, *, alone: bool = False) -> dict[str, str]:
    workers = [f"{address}:{port}" for address, port in zip(task.addresses, task.rank_ports, strict=True)]
    own, index = (workers[task.rank : task.rank + 1], 0) if alone else (workers, task.rank)
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": own}, "task": {"type": "worker", "index": index}})}


def _mentions(task: Task) -> set[str]:
    """Return the libraries with a rendezvous of their own that the script names, or a file that it imports."""
    name, is_module, *_ = read(shlex.split(task.point.workload.script))
    own = Path(name.replace(".", "/") if is_module else name)
    source = "".join(map(_source, (own.with_suffix(".py"), own / "__main__.py") if is_module else (own,)))
    modules = set(re.findall(r"^\s*(?:from|import) +([\w.]+)", source, re.MULTILINE))
    files = {f"{module.strip('.').replace('.', '/')}.py" for module in modules}
    source += "".join(_source(folder / file) for file in files for folder in {Path(), own.parent})
    return {name for name in ("horovod", "tensorflow", "keras") if name in source}


def _source(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""
