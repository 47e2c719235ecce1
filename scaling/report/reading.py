"""How a report is to be read: the lines at its end, as far as it needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from scaling import frameworks
from scaling.analysis.measured.traffic import nccl_text
from scaling.analysis.table import catalogue
from scaling.analysis.table.analyse import Analysis
from scaling.analysis.table.rows import Baseline, Row
from scaling.quiet.notes import SLOWER_CORES
from scaling.report import labels, quantities
from scaling.report.parts import Entry, Quantity


def how_to_read(analysis: Analysis, *, compares: bool, predicts: bool = False) -> tuple[Entry, ...]:
    """An entry for each kind of figure and flag that the report has."""
    rows = analysis.rows
    said = (
        ("efficiency", _efficiency(analysis.baselines, rows), any(not row.is_plain for row in rows)),
        ("loss", _breakdown(rows), any(row.breakdown is not None for row in rows)),
        ("soak", _SOAK, any(row.lasting for row in rows)),
        ("slower cores", _SLOWER_CORES, _has_slower_cores(analysis)),
        ("data wait", _DATA, any(row.data_wait for row in rows)),
        ("best, leading", _ranked(rows), compares),
        ("PREDICTED", _PREDICTED, predicts),
        ("minibatch", _MINIBATCH, any(one.efficiency for one in analysis.minibatches)),
        ("passes", _PASSES, any(not row.workload.trains for row in rows)),
        ("OOM", _OOM, _has_oom(analysis)),
        ("top-1", _TOP1, bool(analysis.trainings)),
        ("learns less", _LESS, any(one.less_than_samples for one in analysis.trainings)),
        ("ASYNC accuracy", _STALE, any(not one.synchronous for one in analysis.trainings)),
        ("x the CPU", f"{labels.rates(rows)} {_OVER_CPU}", bool(analysis.over_cpu)),
        ("rounds tell", _TELL, bool(analysis.resolutions)),
        ("ASYNC", _asynchronous(rows), any(not row.synchronous for row in rows)),
        ("EMULATED", _EMULATED, any(row.hardware.profile for row in rows)),
        ("VERIFIED", _VERIFIED, any(row.receipt for row in rows)),
        ("NCCL", _NCCL, any(row.nccl and nccl_text(row.nccl) for row in rows)),
        ("device", _DEVICE, any(row.device_use for row in rows)),
        ("CPU and DRAM", _MACHINE, any(row.machine_energy for row in rows)),
        ("J, W: -", _unreadable(rows), bool(_unreadable(rows))),
        ("busiest path", _BUSIEST, any(row.paths for row in rows)),
        ("traced", _TRACED, any(row.traced for row in rows)),
        ("traced, on the GPU", _ON_GPU, any(row.traced and row.traced.gpu for row in rows)),
        *((column.title, column.explanation, catalogue.known(column, rows)) for column in catalogue.explained()),
        *((mark.name, mark.meaning, any(mark.name in row.flags for row in rows)) for mark in catalogue.MARKS),
        *((label, text, True) for label, text in _of_frameworks(rows).items()),
    )
    return tuple(Entry(label=label, phrase=(text,)) for label, text, applies in said if applies and text)


def _of_frameworks(rows: Iterable[Row]) -> dict[str, str]:
    """What the frameworks of these rows have a reader know."""
    return {label: text for row in rows for label, text in frameworks.named(row.strategy).explained.items()}


def _has_oom(analysis: Analysis) -> bool:
    failures = (*(row.failed for row in analysis.rows), *(one.failed for one in analysis.baselines))
    return any(failed is not None and failed.cause == "oom" for failed in failures)


def _has_slower_cores(analysis: Analysis) -> bool:
    of_rows = chain.from_iterable(row.footnotes for row in analysis.rows)
    of_baselines = chain.from_iterable(one.footnotes for one in analysis.baselines)
    return any(SLOWER_CORES in note for note in (*of_rows, *of_baselines))


_SLOWER_CORES = (
    "a fixed piece of work on the ranks' own cores took longer than it mostly does, and nobody was seen there: "
    "heat, the clock, another hyperthread or virtual machine. The windows just after it were measured again, and "
    "those just before it only if another program used the cores."
)
_MINIBATCH = (
    "efficiency is the rate of a batch over that of the fastest of its sweep; x the smaller's time, what it takes "
    "over the batch above it: beyond 2 for twice the batch, two of the smaller are faster. Intervals hold for all "
    "batches of this report at once."
)
_DATA = (
    "what plain loops take beyond the same loops on one batch that stays on the device, at most what the feeds "
    "take by themselves. What one device waits alone is in the baseline: as a cause of loss it counts only as far "
    "as it grows. Files come from the page cache, warm or cold as it was, unless --drop-caches drops them from it "
    "before each point."
)
_SOAK = (
    "the efficiency once processes of the first round had trained on for so long, against the plain loop that did "
    "so too: whether what was measured in the first seconds of all rounds lasts. ± is of that start's end "
    "and of the rounds."
)
_PREDICTED = (
    "medians and 80 % intervals of efficiency that stood in the run's file before any of these points was "
    "measured, from its smaller world sizes alone; never ranked. Error: predicted less measured. Inside: the "
    "measured mean lies in the interval, as it should in 8 of 10."
)
_PASSES = (
    "of one minibatch, in training mode and with what the gradients need kept; forward and backward pass is both, "
    "so that the backward one alone is their difference, and what a whole step adds is the update."
)
_OOM = "out of memory: the batch does not fit, in the framework's words or the kernel's (see the note)."
_TOP1 = (
    "of all held-out samples, each counted once on one of the ranks, the part whose highest logit is right, after "
    "batch norm's statistics were averaged over ranks; mean over the seeds that came to the epoch, since one that "
    "reaches the target ends there. An epoch has every sample once, rounded up to whole batches. Seconds are of "
    "epochs alone, by the longest rank, the first with what a framework does once; evaluation is timed apart. "
    "Points of a few tenths are few samples: never an order."
)
_LESS = (
    "every seed ended below every seed of that smaller batch of the same training, by more than 3 standard errors "
    "of the held-out samples: at this rate the batch is past the largest useful one, or the rate too low for it."
)
_STALE = (
    "ranks do not wait for each other: what they learnt is of their own last parameters and not comparable with "
    "that of synchronous rows; the batch of an update is one rank's."
)
_OVER_CPU = (
    "over those of the plain loop of the same framework on all cores of the first host, in fp32 and at "
    "the batch of one GPU; ± is half the 95 % interval over rounds."
)
_EMULATED = (
    "devices sleep as long as published ones compute; gradients, exchange and network are real. Bytes were "
    "divided and times multiplied as said above, links slowed by both; all of it is undone in the figures. "
    "FITTED: images/s at that batch follow from others, nobody published them. The emulator's own error: how far "
    "this machine moves the last bucket, which nothing hides, more slowly than the links would."
)
_VERIFIED = (
    "while windows ran, the kernel's counters on all nodes saw at least 95 % of the bytes on the network that "
    "was asked for. MISLABELLED: they went elsewhere. UNSENT: no counter saw half of them. "
    "UNVERIFIED: nobody can tell."
)
_BUSIEST = (
    "from node to node, the part of the time in which it had bytes to send, and what it carried then, by the "
    "kernel's account of each TCP connection. Near 100 % the network is the limit."
)
_NCCL = (
    "what NCCL's own log says that it took: over networks, inside nodes, and the algorithm and protocol of most "
    "bytes of gradients, as the first round of comm tells. With GPUDirect cards read and write the GPU's memory; "
    "without it bytes take the way through the host's."
)
_DEVICE = (
    "means over GPUs, rounds and readings while windows ran: the clock of the multiprocessors (and its highest "
    "reading), power, time with any kernel running; the most memory that one GPU had in use; energy "
    "of the GPUs alone, by their counters, after ~ by readings of their power, which some average over a part of "
    "the time."
)
_MACHINE = (
    "power of all processor packages and memory of the row's machines while its windows ran, by the kernel's "
    "counters (RAPL), whole however many ranks there are: not told where ranks share cores or a machine, or other "
    "programs ran. GPUs, fans and power supplies are not in it."
)
_CURE = (
    "cannot be read; only root may since Linux 5.10. On every node, as root: chgrp GROUP and chmod g+r these "
    'files, for good by a udev rule: SUBSYSTEM=="powercap", ACTION=="add", '
    "RUN+=\"/bin/sh -c 'chgrp GROUP /sys%p/energy_uj; chmod g+r /sys%p/energy_uj'\""
)
_TRACED = (
    "steps with profilers on, after the measured windows and in no figure above. Open the files, in the run's "
    "folder on each rank's host, in https://ui.perfetto.dev."
)
_ON_GPU = (
    "a traced step, mean over ranks: computing as without the exchange; slowed, what the same kernels take longer "
    "beside it; other kernels, such as the wrapper's copies; transfer, each collective's shortest run of all "
    "ranks, as far as no computing hides it; waiting, the rest of it; idle as without the exchange; host, what it "
    "idles more. Shares of the step where profiling changed it by more than 3 %."
)
_TELL = (
    "the smallest true difference between two rivals that 80 of 100 runs as noisy as this one would find, and "
    "what more rounds would find. What is not told apart here may differ by that much."
)


def _unreadable(rows: Iterable[Row]) -> str:
    """The first counter that could not be read, and the cure; "" where all could."""
    found = (row.machine_energy.unreadable for row in rows if row.machine_energy)
    first = next(filter(None, found), "")
    return f"{first}: {_CURE}" if first else ""


def _asynchronous(rows: Iterable[Row]) -> str:
    return (
        f"ranks do not wait for each other. {labels.rates(rows)} is the sum of their own rates; staleness is the "
        "steps of other ranks between a step's pull of the parameters and its push; straggling has no meaning. "
        "Judge them by the loss after equal samples; where it is above that of all synchronous rows, the "
        "efficiency is not comparable, and no speedup is claimed."
    )


def _ranked(rows: Sequence[Row]) -> str:
    apart = (
        " Asynchronous contenders are never ranked against synchronous ones: "
        f"{labels.one_sample(rows)} trained on old parameters teaches less."
        if any(not row.synchronous for row in rows)
        else ""
    )
    several = len({row.framework for row in rows}) > 1
    against = "those of the fastest exchange of its framework" if several else "those of the fastest exchange"
    return (
        f"{labels.rates(rows)} against {against}, over the rounds that both have; ± is half the 95 % interval, "
        "which holds for all differences of this report at once. best: told from each of the others; leading: the "
        f"fastest as measured, and those that cannot be told from it.{apart}{_not_ranked(rows)}"
    )


def _not_ranked(rows: Iterable[Row]) -> str:
    found = sorted({name for row in rows for name in row.flags if catalogue.mark_named(name).is_wrong})
    named = " and ".join(found)
    return f" {named} contenders are not ranked: they are not what their names say." if found else ""


def _freedom(rows: Iterable[Row]) -> str:
    """`(Student's t, 8 degrees of freedom, pooled over the cells of a work)`."""
    known = sorted({row.efficiency.df for row in rows if row.efficiency and row.efficiency.df})
    if not known:
        return ""
    low, high = known[0], known[-1]
    df = f"{high}" if low == high else f"{low} to {high}"
    return f" (t with {df} degree{'s' if high > 1 else ''} of freedom, pooled over the cells of one work)"


def _efficiency(baselines: Sequence[Baseline], rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(baseline.strategy for baseline in baselines))
    end = f"± is half the 95 % interval over rounds{_freedom(rows)}."
    if len(names) < 2:
        return f"speedup / N, against {names[0] if names else 'the plain loop'} on one device; {end}"
    return (
        "speedup / N, against the plain loop of the same framework on one device "
        f"({', '.join(names)}); {end} These baselines differ: compare frameworks by {labels.rates(rows)}, since a "
        "slow plain loop makes efficiency look good."
    )


def _has_node_rule(rows: Iterable[Row]) -> bool:
    return any(row.workload.batch_rule == "node" for row in rows)


_NODE_BATCH = "small batch, a device's part of a node's batch costs more than its part of the time"


def _of_windows(rows: Iterable[Row]) -> str:
    """Of which frameworks straggling is told by the window."""
    several = (row for row in rows if row.synchronous and row.world_size > 1)
    late = {row.strategy.partition(":")[0] for row in several if _returns_early(row)}
    why = "of a window, a lower bound, since no step is timed by itself"
    return f" ({', '.join(sorted(late))}: {why})" if late else ""


def _returns_early(row: Row) -> bool:
    """Whether steps of its plain loop can be timed neither when they return nor by the device's own clock."""
    on = row.hardware.device
    return on == "emulated" or on in frameworks.named(row.strategy).returns_early


def _breakdown(rows: Iterable[Row]) -> str:
    """The causes that any row tells."""
    lost = [row for row in rows if row.breakdown is not None]
    causes = catalogue.causes(lost)
    texts = {cause.key: cause.explanation for cause in causes}
    if "straggling" in texts:
        texts["straggling"] += _of_windows(lost)
    if "small_batch" in texts and _has_node_rule(lost):
        texts["small_batch"] = _NODE_BATCH
    shown = (quantities.cell(cause, row) for cause in causes for row in lost)
    noise = any(isinstance(cell, Quantity) and cell.is_noise for cell in shown)
    return f"{'; '.join(texts.values())}{' In parentheses: what no interval tells from zero.' if noise else ''}"
