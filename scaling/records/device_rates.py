"""The rates of one device alone: matrix product, memory, transfers and a training step."""

from __future__ import annotations

from scaling.records.point import Amount, Device, Index, Record, Workload
from scaling.records.task import Task
from scaling.text import ranges

# The fields of `DeviceRates` that are rates.
RATES = (
    "matrix_flops_per_s",
    "copy_bytes_per_s",
    "to_device_bytes_per_s",
    "from_device_bytes_per_s",
    "samples_per_s",
)


class DeviceRates(Record, frozen=True, kw_only=True):
    """The rates of one device, measured by the process of one rank; None: not measured.

    Devices are alike, and their rates comparable, if `kind` is equal.

    `launch_rank`: the first rank on the device; others that share it have no rates of their own.
    `index`: of a GPU as nvidia-smi counts; `uuid`, `serial`: of a GPU, "" if unknown.
    `cpus`: the hardware threads of the rank, on CPUs; empty on GPUs.
    `work`: the work of the step; the matrix product has its precision. None: nothing was tried.
    `matrix_flops_per_s`: multiplications and additions.
    `copy_bytes_per_s`: bytes read and bytes written, in the device's own memory.
    `to_device_bytes_per_s`, `from_device_bytes_per_s`: from and to pinned host memory, one direction at a time.
    `samples_per_s`: of training steps of the plain loop.
    `left_out`: why nothing was tried; `error`: why a rate is missing. Rates measured before the error are kept.
    """

    launch_rank: Index
    host: str
    device: Device
    name: str
    index: Index = 0
    uuid: str = ""
    serial: str = ""
    cpus: tuple[Index, ...] = ()
    work: Workload | None = None
    matrix_flops_per_s: Amount | None = None
    copy_bytes_per_s: Amount | None = None
    to_device_bytes_per_s: Amount | None = None
    from_device_bytes_per_s: Amount | None = None
    samples_per_s: Amount | None = None
    left_out: str = ""
    error: str = ""

    @property
    def kind(self) -> tuple[str, int, Workload | None]:
        """The device's name, the number of its hardware threads (0 for a GPU) and the work."""
        return self.name, len(self.cpus), self.work

    @property
    def place(self) -> str:
        """`node1 GPU 3 (serial 1654922003917)`, or `node1 CPUs 0-3`."""
        if self.device != "cuda":
            return f"{self.host} CPUs {ranges(self.cpus)}"
        return f"{self.host} GPU {self.index}" + (f" (serial {self.serial})" if self.serial else "")


class AskedDeviceRates(Record, frozen=True, kw_only=True):
    """The job of one rank's process.

    `task`: the plain loop's, with the device, CPUs and threads of a worker.
    `device`: what the answer is of, without rates.
    `host_bytes`: the size of a buffer in host memory.
    """

    task: Task
    device: DeviceRates
    host_bytes: int
