"""How GPUs ran: means over devices, and the energy of all of them or none."""

from __future__ import annotations

from msgspec.structs import replace

from scaling.analysis.measured import device_use
from scaling.records.run import HelperRecord, PointRecord
from scaling.records.telemetry import Telemetry
from tests.support.gpu_records import GIB, sample, with_gpus
from tests.support.scripted_records import by_one_worker, failed, point, record


def two() -> PointRecord:
    """Two GPUs, each read twice: at 1,395 and at 1,410 MHz."""
    return with_gpus(record(point("exchange", 2), 0.1))


def test_means_are_over_devices() -> None:
    made = two()
    lame = replace(made.ranks[1], telemetry=Telemetry(samples=(sample(device_index=1, sm_clock_mhz=800.0),)))
    found = device_use.of([replace(made, ranks=(made.ranks[0], lame))])
    assert found is not None
    assert (found.sm_clock_mhz, found.slowest_sm_clock_mhz, found.max_sm_clock_mhz) == (1101.25, 800.0, 1410.0)


def test_an_idle_gpu_tells_no_clock() -> None:
    """The same as where rows are held against their baselines, or one report would have two clocks for a row."""
    made = two()
    idle = sample(sm_clock_mhz=210.0, utilisation_percent=0.0)
    first = replace(made.ranks[0], telemetry=Telemetry(samples=(idle, sample(sm_clock_mhz=1400.0))))
    found, same = (
        device_use.of([replace(made, ranks=(first,))]),
        device_use.clocks([replace(made, ranks=(first,))]),
    )
    assert found is not None and same is not None
    assert found.sm_clock_mhz == found.slowest_sm_clock_mhz == same.sm_mhz == 1400.0


def test_the_energy_of_a_part_is_not_that_of_the_whole() -> None:
    made = two()
    found = device_use.of([made])
    assert found is not None and found.samples_per_j == 2 * 3 * 10 * 32 / 2000
    silent = replace(made.ranks[1], telemetry=replace(made.ranks[1].telemetry, energy_j=None))
    part = device_use.of([replace(made, ranks=(made.ranks[0], silent))])
    assert part is not None and part.samples_per_j is None


def test_the_steps_that_no_window_counts_used_energy_too() -> None:
    made = two()
    ranks = (
        replace(rank, windows=(replace(rank.windows[0], uncounted_samples=32), *rank.windows[1:]))
        for rank in made.ranks
    )
    found = device_use.of([replace(made, ranks=tuple(ranks))])
    assert found is not None and found.samples_per_j == 2 * (3 * 10 + 1) * 32 / 2000


def test_the_energy_of_a_gpu_that_ranks_share_counts_once() -> None:
    """Each of them reads the counter of the whole GPU."""
    shared = device_use.of([replace(two(), gpus=("GPU-a", "GPU-a"))])
    apart = device_use.of([replace(two(), gpus=("GPU-a", "GPU-b"))])
    assert shared is not None and shared.samples_per_j == 2 * 3 * 10 * 32 / 1000
    assert apart is not None and apart.samples_per_j == 2 * 3 * 10 * 32 / 2000


def test_one_worker_of_several_devices_counts_them_all() -> None:
    both = Telemetry(samples=(sample(device_index=0), sample(device_index=1)), energy_j=2000.0)
    made = by_one_worker(two())
    found = device_use.of([replace(made, ranks=(replace(made.ranks[0], telemetry=both),))])
    assert found is not None and found.samples_per_j == 2 * 3 * 10 * 32 / 2000


def test_helpers_that_compute_have_their_devices() -> None:
    made = by_one_worker(two())
    coordinator = replace(made.ranks[0], telemetry=Telemetry())
    computing = tuple(
        HelperRecord(
            name=f"worker-{n}", launch_rank=n, host="node1", outcome=rank.outcome, telemetry=rank.telemetry
        )
        for n, rank in enumerate(two().ranks)
    )
    found = device_use.of([replace(made, ranks=(coordinator,), helpers=computing)])
    assert found is not None
    assert (found.sm_clock_mhz, found.samples_per_j) == (1402.5, 2 * 3 * 10 * 32 / 2000)


def test_the_memory_is_a_framework_s_own_count_else_what_nvml_saw() -> None:
    made = two()
    untold = tuple(replace(rank, result=None) for rank in made.ranks)
    found = [device_use.of([one]) for one in (made, replace(made, ranks=untold))]
    assert [one.peak_memory_bytes for one in found if one] == [31 * GIB, 40 * GIB]


def test_without_readings_nothing_is_known() -> None:
    assert device_use.of([record(point("exchange", 2), 0.1)]) is None
    assert device_use.of([failed(point("exchange", 2))]) is None
