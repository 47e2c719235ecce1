"""Training scripts as users write them, and their sweeps on two ranks. Only JAX's has a line of this package."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scaling.analysis.table.analyse import rows
from scaling.analysis.table.rows import Row
from scaling.records.events import Failed, Finished
from scaling.records.run import PointRecord
from tests.support.inline import Launch, Run

# A loop of DistributedDataParallel. `--plant` makes it do one thing badly.
LOOP = """
import argparse
import os
import socket
import time

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--plant", default="")
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()
if args.plant == "alone":
    port = socket.create_server(("", 0)).getsockname()[1]
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT=str(port))
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
draws = torch.Generator().manual_seed(rank)


class Data(Dataset):
    def __len__(self):
        return 4096 if args.plant != "pause" else 32 * args.batch_size

    def __getitem__(self, index):
        if args.plant == "loader":
            time.sleep(0.002)
        return torch.full((64,), float(index)), index % 10


torch.manual_seed(0)
wide = 16 if args.plant == "small" else 256
layers = [nn.Linear(wide, wide) for _ in range(300 if args.plant == "small" else 2)]
model = nn.Sequential(nn.Linear(64, wide), *layers, nn.Linear(wide, 10))
if "RANK" in os.environ and args.plant != "ignores":
    distributed.init_process_group("gloo")
    if args.plant != "no-ddp":
        model = nn.parallel.DistributedDataParallel(model)
batch = args.batch_size // size if args.plant == "divided" else args.batch_size
sampler = DistributedSampler(Data()) if distributed.is_initialized() and args.plant != "no-sampler" else None
loader = DataLoader(Data(), batch, sampler=sampler, drop_last=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 if args.plant == "small" else 1e-9)
done = 0
while done < args.steps:
    if args.plant == "pause":
        time.sleep(1.0)
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        if args.plant == "one-rank" and rank == 1:
            time.sleep(0.05)
        if args.plant == "sizes":
            time.sleep(0.05 * (torch.rand((), generator=draws) < 0.3).item())
        loss.backward()
        optimizer.step()
        done += 1
        if done == args.steps:
            break
"""
# As DLRM: each rank has embeddings of its own, two parts of the model are replicated, and the script splits the
# batch that all ranks read.
PARTS = """
import os

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
data = TensorDataset(torch.randn(20000, 32), torch.randint(0, 100, (20000,)), torch.randint(0, 4, (20000,)))
torch.manual_seed(0)
below, above = nn.Linear(32, 64), nn.Linear(64, 4)
torch.manual_seed(rank)
table = nn.Embedding(100, 64)
optimizer = torch.optim.SGD([*below.parameters(), *above.parameters(), *table.parameters()], lr=0.1)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    below, above = nn.parallel.DistributedDataParallel(below), nn.parallel.DistributedDataParallel(above)
for epoch in range(1000):
    for x, row, y in DataLoader(data, batch_size=32):
        x, row, y = (each.chunk(size)[rank] for each in (x, row, y))
        optimizer.zero_grad()
        nn.functional.cross_entropy(above(below(x) + table(row)), y).backward()
        optimizer.step()
"""
# A torchvision of another torch cannot be imported, and these libraries import it if it is there.
WITHOUT_BROKEN_TORCHVISION = """import sys
try:
    import torchvision
except (ImportError, RuntimeError):
    sys.modules["torchvision"] = None
"""

ACCELERATE = (
    WITHOUT_BROKEN_TORCHVISION
    + """
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
data = TensorDataset(torch.randn(20000, 32), torch.randint(0, 4, (20000,)))
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
for epoch in range(1000):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
"""
)
TRAINER = (
    WITHOUT_BROKEN_TORCHVISION
    + """
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        ids = torch.arange(index, index + 16) % 100
        return {"input_ids": ids, "labels": ids}


model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=2, n_head=2))
args = TrainingArguments(
    output_dir="out", per_device_train_batch_size=8, save_strategy="no", report_to=[], use_cpu=True
)
Trainer(model=model, args=args, train_dataset=Texts()).train()
"""
)
LIGHTNING = """
import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = TensorDataset(torch.randn(20000, 32), torch.randint(0, 4, (20000,)))
quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "logger": False}
trainer = lightning.Trainer(max_epochs=1000, accelerator="cpu", devices=int(sys.argv[1]), **quiet)
trainer.fit(Net(), DataLoader(data, batch_size=16))
"""
HOROVOD = """
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()
data = TensorDataset(torch.randn(20000, 32), torch.randint(0, 4, (20000,)))
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
for epoch in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
# Keras 3 cannot `fit` under MultiWorkerMirroredStrategy (TensorFlow 2.21): each rank trains its own model.
KERAS = """
import numpy as np
import tensorflow as tf

model = tf.keras.Sequential([tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(4)])
model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = np.random.randn(20000, 32).astype("float32"), np.random.randint(0, 4, 20000)
model.fit(x, y, batch_size=16, epochs=1000, verbose=0)
"""
# A loop of TensorFlow's own over several workers.
MIRRORED = """
import json
import os

import tensorflow as tf

import scaling

json.loads(os.environ["TF_CONFIG"])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = tf.Variable(tf.ones((64, 4)))


@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ w) ** 2)
    gradient = tape.gradient(loss, w)
    w.assign_sub(0.01 * tf.distribute.get_replica_context().all_reduce("mean", gradient))


x = tf.random.normal((16, 64))
while True:
    strategy.run(step, args=(x,))
    scaling.step(samples=16)
"""
JAX = """
import os

import jax
import jax.numpy as jnp
import numpy as np

import scaling

ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(where, ranks, int(os.environ["RANK"]))
mesh = jax.make_mesh((jax.device_count(),), ("d",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))


@jax.jit
def step(w, x):
    return w - 0.01 * jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)


w = jnp.ones((256, 256))
x = jax.make_array_from_process_local_data(sharding, np.random.randn(16, 256).astype(np.float32))
while True:
    w = step(w, x)
    w.block_until_ready()
    scaling.step(samples=16)
"""
QUICK: dict[str, Any] = {
    "rounds": 1, "windows": 3, "window_s": 0.05, "interleave": True, "world_sizes": [2],
    "kinds": ["exchange", "each", "together"],
}  # fmt: skip


def measured(folder: Path, source: str, *words: str, **fields: Any) -> Run:
    """Measure a script on two ranks of this host, in its folder."""
    (folder / "train.py").write_text(source)
    return Launch(2, real=True).sweep(
        folder / "results", **{**QUICK, "script": shlex.join(["train.py", *words]), **fields}
    )


def row_of(found: Run) -> Row:
    """The row of its exchange; AssertionError with the first failure of any point."""
    failures = [record.outcome for record in found.records if isinstance(record.outcome, Failed)]
    assert not failures, f"{failures[0].message}\n{failures[0].log_tail}"
    assert all(record.outcome == Finished() for record in found.records)
    (row,) = rows(found.records)
    return row


def exchange(found: Run) -> PointRecord:
    (record,) = found.of("exchange", 2)
    return record


def torchvision_fails() -> str:
    """Why the installed torchvision cannot be imported; "" if it can, or if there is none."""
    if find_spec("torchvision") is None:
        return ""
    words = [sys.executable, "-c", "import torchvision"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
