"""What failures are called, by what libraries really say: texts from public reports, shortened."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from scaling.frameworks.feeding import FeedError
from scaling.frameworks.script.watch import ScriptError
from scaling.worker.loop import NanLoss
from scaling.worker.run_task import cause_of, event_of, message_of


class OutOfMemoryError(RuntimeError):
    """As torch.cuda names its own."""


class ResourceExhaustedError(Exception):
    """As TensorFlow names it."""


class InternalError(Exception):
    """TensorFlow's."""


class UnknownError(Exception):
    """TensorFlow's."""


class MXNetError(RuntimeError):
    """MXNet's."""


class DistBackendError(RuntimeError):
    """torch.distributed's."""


NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
SYSTEM = (
    f"{NCCL}unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed. \nLast error:\n"
)

TEXTS: list[tuple[str, Exception]] = [
    # Memory of a GPU or of the host, in each library's words.
    ("oom", OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")),
    ("oom", RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported")),
    ("oom", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    ("oom", RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")),
    ("oom", RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"
    )),
    ("oom", RuntimeError(
        "[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: not enough memory: you tried to "
    )),
    ("oom", ResourceExhaustedError(
        "OOM when allocating tensor with shape[128,3,8,128,8,128] and type float on /job:localhost/replica:0/"
        "task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Conv2D]"
    )),
    ("oom", ResourceExhaustedError("{{function_node __wrapped__AddV2}} failed to allocate memory [Op:AddV2]")),
    ("oom", ResourceExhaustedError("SameWorkerRecvDone unable to allocate output tensor. Key: /job:worker/")),
    ("oom", UnknownError("Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED [Op:Conv2D]")),
    ("oom", InternalError("Failed to allocate 4294967296 bytes on GPU 0: CUDA_ERROR_OUT_OF_MEMORY")),
    ("oom", MXNetError("[11:18:15] src/storage/./pooled_storage_manager.h:157: cudaMalloc failed: out of memory")),
    ("oom", MXNetError("cudaMalloc retry failed: out of memory")),
    ("oom", RuntimeError("std::bad_alloc")),
    ("oom", OSError(12, "Cannot allocate memory")),
    ("oom", MemoryError()),
    ("oom", MemoryError("Unable to allocate 12.0 GiB for an array with shape (64, 224)")),
    ("oom", DistBackendError(f"{NCCL}unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'")),
    ("oom", RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")),
    ("oom", RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")),
    # Mostly memory; a mixture of cuDNN's libraries gives the same words.
    ("oom", RuntimeError("GET was unable to find an engine to execute this computation")),
    ("oom", DistBackendError(f"{NCCL}unhandled cuda error\nLast error:\nFailed to CUDA calloc async 1216 bytes")),
    ("oom", DistBackendError(f"{NCCL}Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152")),
    ("busy", RuntimeError(
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with `TORCH_USE"
    )),
    ("busy", InternalError("cudaGetDevice() failed. Status: all CUDA-capable devices are busy or unavailable")),
    # Memory that a card may pin: `ulimit -l`.
    ("memlock", DistBackendError(f"{SYSTEM}Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory")),
    ("memlock", RuntimeError("UCX ERROR ibv_reg_mr(address=0x7f, length=8) failed: Cannot allocate memory")),
    ("memlock", RuntimeError("Call to ibv_create_qp failed with error Cannot allocate memory")),
    ("memlock", RuntimeError("fi_mr_reg failed, ret is:-12, Cannot allocate memory")),
    # /dev/shm, which containers have 64 MB of.
    ("shm", DistBackendError(
        f"{SYSTEM}Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: "
        "No space left on device (28)"
    )),
    ("shm", RuntimeError("NCCL WARN Call to posix_fallocate failed : No space left on device")),
    ("shm", RuntimeError("Error while creating shared memory segment nccl-shm-recv-1462445a6f01cbfc-1-2-3")),
    ("shm", OSError(28, "No space left on device", "/dev/shm/nccl-fjwOOB")),
    ("shm", RuntimeError(
        "DataLoader worker (pid 56811) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit."
    )),
    ("shm", RuntimeError("unable to allocate shared memory(shm) for file </torch_1_2_3>: Resource temporarily")),
    # The feed: a process of it that is gone, a picture that cannot be decoded.
    ("feed", RuntimeError("DataLoader worker (pid(s) 4711) exited unexpectedly")),
    ("feed", RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. ")),
    ("feed", FeedError("a.jpg: Pillow cannot read it: truncated File Read")),
    ("oom", FeedError("Caught MemoryError in DataLoader worker process 0: out of memory")),
    # The driver: none, older than the build, or another than libcuda.
    ("driver", RuntimeError(
        "The NVIDIA driver on your system is too old (found version 12040). Please update your GPU driver by "
        "downloading and installing a new version"
    )),
    ("driver", RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU")),
    ("driver", InternalError("Status: CUDA driver version is insufficient for CUDA runtime version")),
    ("driver", RuntimeError("failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected")),
    ("driver", RuntimeError("Error 803: system has unsupported display driver / cuda driver combination")),
    ("driver", RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized")),
    ("driver", ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")),
    # A build for other GPUs.
    ("no-kernel", RuntimeError("CUDA error: no kernel image is available for execution on the device")),
    ("no-kernel", MXNetError(
        "Check failed: err == cudaSuccess : ErrStr:no kernel image is available for execution"
    )),
    ("no-kernel", RuntimeError("cuDNN error: CUDNN_STATUS_ARCH_MISMATCH")),
    # NCCL's that are none of these.
    ("nccl", DistBackendError(
        f"{NCCL}invalid usage\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA"
    )),
    ("nccl", UnknownError("ncclAllReduce failed: unhandled cuda error")),
    # Others.
    ("port-taken", OSError(errno.EADDRINUSE, "Address already in use")),
    ("missing", ModuleNotFoundError("No module named 'torch'")),
    ("nan-loss", NanLoss("the loss is nan")),
    ("error", ValueError("what")),
    ("port-taken", RuntimeError("The server socket has failed to listen on any local address. EADDRINUSE")),
    ("missing", ImportError("libcudnn.so.8: cannot open shared object file: No such file or directory")),
    ("error", ResourceExhaustedError("Received message larger than max (5242880 vs. 4194304)")),
    ("error", OSError(28, "No space left on device", "/scratch/log")),
    ("error", RuntimeError("CUDA error: an illegal memory access was encountered")),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "error"), TEXTS, ids=lambda one: one if isinstance(one, str) else str(one)[:60])
def test_what_libraries_say(cause: str, error: Exception) -> None:
    assert cause_of(error) == cause


def test_a_long_message_is_cut_between_words() -> None:
    url = "https://pytorch.org/docs/stable/notes/cuda.html"
    told = message_of(RuntimeError(f"CUDA out of memory. See {url} and {url}"), limit=100)
    assert told == f"RuntimeError: CUDA out of memory. See {url} and …"
    assert message_of(RuntimeError("x" * 99), limit=50) == f"RuntimeError: {'x' * 35}…"
    assert len(message_of(ValueError("x" * 10_000))) == 500


def test_a_message_for_users_stands_alone() -> None:
    error = ScriptError("train.py:2: MemoryError")
    assert (message_of(error), cause_of(error)) == ("train.py:2: MemoryError", "oom")


def test_nccl_s_last_error_is_told() -> None:
    """The lines before it are the same whatever happened."""
    told = message_of(TEXTS[[cause for cause, _ in TEXTS].index("memlock")][1])
    assert told.startswith("DistBackendError: NCCL error in: ")
    assert told.endswith("(Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory)")
    assert message_of(RuntimeError("a\nLast error:")) == "RuntimeError: a"


@pytest.mark.parametrize(
    ("last", "follows"),
    [
        ("socketProgress: Connection closed by remote peer n2<46410>", True),
        ("NET/IB: Got completion from peer 10.0.0.2<1> with status=12 opcode=0", True),
        ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000", False),
    ],
)
def test_nccl_tells_of_a_peer_s_death_as_others_do(last: str, *, follows: bool) -> None:
    event = event_of(DistBackendError(f"{NCCL}unhandled system error\nLast error:\n{last}"))
    assert (event.cause, event.may_follow) == ("nccl", follows)


SHUT_DOWN = "Horovod has been shut down. This was caused by an exception on one of the ranks"
# As TensorFlow and MXNet raise it in the survivor of a rank that was killed.
IN_A_GRAPH = f"""Graph execution error:

Detected at node gradient.9 defined at (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main

  File "/scaling/frameworks/tf/hvd_trainer.py", line 106, in <listcomp>

  File "<string>", line 111, in horovod_allreduce

{SHUT_DOWN}
\t [[{{{{node gradient.9}}}}]] [Op:__inference_train_700]"""
OF_SEVERAL = """Graph execution error:

2 root error(s) found.
  (0) UNAVAILABLE:  Collective ops is aborted by: Socket closed
\t [[{{node CollectiveReduceV2_1}}]]
0 successful operations."""
WITH_SOURCE = """Traceback (most recent call last):
  File "../src/engine/./threaded_engine.h", line 320
    run(stream);
  [bt] (3) libmxnet.so(+0x1) [0x7f]
MXNetError: Check failed: e == cudaSuccess"""


@pytest.mark.parametrize(
    ("error", "told", "follows"),
    [
        (UnknownError(IN_A_GRAPH), f"UnknownError: {SHUT_DOWN}", True),
        (MXNetError(f"MXNetError: {SHUT_DOWN}"), f"MXNetError: {SHUT_DOWN}", True),
        (UnknownError(OF_SEVERAL),
         "UnknownError: (0) UNAVAILABLE:  Collective ops is aborted by: Socket closed", True),
        (MXNetError(WITH_SOURCE), "MXNetError: Check failed: e == cudaSuccess", False),
        (ValueError("only a heading:"), "ValueError: only a heading:", False),
        (ValueError("\n  first\nsecond"), "ValueError: first", False),
        (KeyError(), "KeyError", False),
        (RuntimeError("Connection closed by peer [1]:4"), "RuntimeError: Connection closed by peer [1]:4", True),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "BrokenPipeError: [Errno 32] Broken pipe", True),
        # Only what the message shows counts, and no cause of its own.
        (RuntimeError("[gloo] timed out\nthe remote end is gone"), "RuntimeError: [gloo] timed out", False),
        (RuntimeError("server socket: EADDRINUSE"), "RuntimeError: server socket: EADDRINUSE", False),
    ],
)  # fmt: skip
def test_the_line_that_says_what_happened_is_told(error: Exception, told: str, *, follows: bool) -> None:
    event = event_of(error)
    assert (event.message, event.may_follow) == (told, follows)


def test_a_file_s_name_that_is_no_utf_8_is_sent_as_its_bytes() -> None:
    """Its event is JSON; without one the point would be said to have ended with code 1."""
    found = event_of(FeedError(os.fsdecode(b"/data/\xe9.jpg: Pillow cannot read it")))
    assert found.message == r"FeedError: /data/\udce9.jpg: Pillow cannot read it"
    assert msgspec.json.decode(msgspec.json.encode(found)) == msgspec.to_builtins(found)
