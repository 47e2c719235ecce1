"""A helper of `tensorflow:ps`: a parameter server, or a trainer with its images in memory.

A graph cannot call this package's feed. So each trainer keeps its rank's first batches in an anonymous file, as
many as fit in 32 MB, at least one. A tf.data pipeline repeats them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count

import tensorflow as tf

from scaling.frameworks.tf.strategies import TRAINER
from scaling.hosts.proc import end_with_parent
from scaling.records.task import Task
from scaling.workloads import feeds, models

FED_BYTES = 32 * 1000**2


def serve(task: Task, announce: Callable[[dict[str, str]], None]) -> None:
    """Run a parameter server, or a trainer, which announces where its images are."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    end_with_parent()
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, config=_session(task), protocol="grpc"
    )
    announce({task.role: _keep_images(task) if task.role.startswith(TRAINER) else server.target})
    # The server's own `join` keeps Python's lock and would block the lifeline's thread.
    threading.Event().wait()


def _session(task: Task) -> tf.compat.v1.ConfigProto:
    """Configure threads: a server may use its CPUs, a trainer its rank's threads and GPU."""
    config = tf.compat.v1.ConfigProto()
    trainer = task.role.startswith(TRAINER)
    # A step waits in one thread while others run its operations. The manual asks for one more than the workers of
    # a server; a trainer with only one hangs.
    waiting = task.threads if trainer else max(task.point.world_size, len(os.sched_getaffinity(0)))
    config.inter_op_parallelism_threads = 1 + waiting
    if trainer and task.point.hardware.device == "cuda":
        config.gpu_options.visible_device_list = str(task.device_index)
        config.gpu_options.allow_growth = True
    else:
        config.device_count["GPU"] = 0
    if trainer:
        config.intra_op_parallelism_threads = task.threads
        tf.config.experimental.enable_tensor_float_32_execution(task.point.workload.precision == "tf32")
    return config


def _keep_images(task: Task) -> str:
    """Write a rank's first batches to an anonymous file in memory, one record each, and return its path. A record
    has images (batch, height, width, channels) as float32 or tokens as int64, then labels as int64."""
    feed = feeds.feed(task, models.of(task.point.workload))
    memory = os.memfd_create("images")
    with open(memory, "wb", closefd=False) as file:
        for step in count():
            images, labels = feed.batch(step)
            turned = images.transpose(0, 2, 3, 1) if images.ndim == 4 else images
            file.write(turned.tobytes() + labels.tobytes())
            if feed.fixed or (step + 2) * (images.nbytes + labels.nbytes) > FED_BYTES:
                break
    return f"/proc/self/fd/{memory}"
