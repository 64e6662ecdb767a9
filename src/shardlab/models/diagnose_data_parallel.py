"""From the step times of one rank (or node) and of many to what the link delivered, and whether it is to blame.

The reasoning is that of :mod:`shardlab.models.scaling` backwards. A step computes for C and all-reduces the
gradients over a ring, which sends V = 2(N-1)/N of them per rank. If nothing overlaps, the all-reduce took
``step - C``; if all of it overlaps and the link is what everyone waits for, it took the whole step. The bandwidth
lies between V/step and V/(step - C).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.checks import choice, count, positive
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.diagnose_common import (
    Nominal,
    Verdict,
    how_many,
    nominal_link,
    optional,
    percent,
    percents,
    plural,
    rate,
    rates,
    report,
    seconds,
    size_bytes,
    times,
    whole,
)
from shardlab.models.diagnose_rules import Evidence, Run, judge, notes_on
from shardlab.models.nccl_log import NcclLog, parse
from shardlab.models.overlap import DDP_BUCKET_BYTES
from shardlab.models.scaling import SCALINGS
from shardlab.transformer import training_flops
from shardlab.units import format_bandwidth, format_bytes, format_time

BACKENDS = ("nccl", "gloo", "mpi")


@dataclass(frozen=True)
class DataParallelDiagnosis:
    """What the measured steps say. Times in seconds, sizes in bytes, bandwidths in bytes/s per rank and direction.

    Brackets are ``(low, high)``; in bandwidths the low end takes all communication as overlapped, the high end
    none, and a high end of None means that no communication shows at all.

    Attributes:
        n_ranks, base_ranks: the run that is judged and the one it is compared with.
        scaling: ``"weak"``, ``"strong"``, ``"other"`` (batches say neither) or None (nobody said which).
        assumed_scaling: what the numbers below take it for. If unknown, ``"weak"``, unless the step got so much
            shorter that only ``"strong"`` can be.
        question: what to answer first when the scaling is unknown, else empty.
        base_step_s, step_s: measured.
        weak_speedup, weak_efficiency: if the batch per rank was kept; speedup in samples per second over the base run.
        strong_speedup, strong_efficiency: if the global batch was kept.
        speedup, efficiency: the pair that holds, or None while the scaling is unknown.
        outcome: ``"gain"``, ``"slowdown"``, ``"no change"``, or ``"depends"`` on the scaling.
        compute_s: what a step would take if communication were free.
        exposed_s: what it took beyond that, 0 or above.
        communication_s: measured communication time, or None.
        communication_share: of the step, if measured.
        gradient_bytes, sent_bytes: of one rank, per optimizer step; sent over a ring. None if unknown.
        implied_bandwidth: the bracket that explains the step. It compares with the busbw of nccl-tests.
        nominal_bandwidth, fraction_of_nominal: the link as named, and what of it was reached.
        communication_at_nominal_s: the all-reduce at that speed.
        predicted_step_s: the step at that speed, all overlapped and nothing overlapped.
        predicted_slowdown: that over the compute.
        observed_over_predicted: measured over the upper end.
        predicted_samples_per_s: slow and fast end, if batches are known.
        alternative_step_s, alternative_samples_per_s: the same if the link's figure counts bits, for unit slips.
        bandwidth_to_hide: the link with which the all-reduce takes no longer than the compute.
        ranks_to_beat_base: the fewest ranks that process more samples per second than the base run, weak scaling.
        fixed_overhead_s: the part of a step that a smaller batch does not shorten, if compute was measured.
        benchmark_s: the gradients' all-reduce by the nccl-tests log, as one buffer and in 25 MiB buckets.
        benchmark_busbw: the log's bus bandwidth at that size.
        mfu: model FLOPs utilisation, 0 to 1.
        padded_samples, duplicate_samples: per epoch, with a sampler that gives every rank as many.
        verdict: see :class:`shardlab.models.diagnose_common.Verdict`.
        notes: further remarks.
    """

    n_ranks: int
    base_ranks: int
    scaling: str | None
    assumed_scaling: str
    question: str
    base_step_s: float
    step_s: float
    weak_speedup: float
    weak_efficiency: float
    strong_speedup: float
    strong_efficiency: float
    speedup: float | None
    efficiency: float | None
    outcome: str
    compute_s: float
    exposed_s: float
    communication_s: float | None
    communication_share: float | None
    gradient_bytes: float | None
    sent_bytes: float | None
    implied_bandwidth: tuple[float, float | None] | None
    nominal_bandwidth: float | None
    fraction_of_nominal: tuple[float, float | None] | None
    communication_at_nominal_s: float | None
    predicted_step_s: tuple[float, float] | None
    predicted_slowdown: tuple[float, float] | None
    observed_over_predicted: float | None
    predicted_samples_per_s: tuple[float, float] | None
    alternative_step_s: tuple[float, float] | None
    alternative_samples_per_s: tuple[float, float] | None
    bandwidth_to_hide: float | None
    ranks_to_beat_base: int | None
    fixed_overhead_s: float | None
    benchmark_s: tuple[float, float] | None
    benchmark_busbw: float | None
    mfu: float | None
    padded_samples: int | None
    duplicate_samples: int | None
    verdict: Verdict
    notes: tuple[str, ...]

    def text(self) -> str:
        """The diagnosis for people."""
        title = f"Data parallel, {plural(self.n_ranks, 'rank')} against {self.base_ranks}"
        return report(title, _rows(self), self.verdict, self.notes, self.question)


def data_parallel(
    base_step_s: float | str | None = None,
    step_s: float | str | None = None,
    n_ranks: int = 0,
    base_ranks: int = 1,
    scaling: str | None = None,
    *,
    base_samples_per_s: float | None = None,
    samples_per_s: float | None = None,
    batch_per_rank: float | None = None,
    base_batch_per_rank: float | None = None,
    base_epoch_s: float | str | None = None,
    epoch_s: float | str | None = None,
    n_params: float | str | None = None,
    bytes_per_param: float = 4.0,
    gradient_bytes: float | str | None = None,
    nominal_bandwidth: float | str | None = None,
    n_nodes: int | None = None,
    compute_s: float | str | None = None,
    communication_s: float | str | None = None,
    data_s: float | str | None = None,
    accumulation_steps: int = 1,
    syncs_per_step: int = 1,
    log: NcclLog | str | None = None,
    smaller_model_helped: bool | None = None,
    backend: str | None = None,
    cores_per_node: int | None = None,
    steps_per_epoch: float | None = None,
    base_steps_per_epoch: float | None = None,
    tokens_per_step: float | None = None,
    flops_per_step: float | None = None,
    peak_flops: float | None = None,
    dataset_samples: int | None = None,
) -> DataParallelDiagnosis:
    """Judge a data-parallel run by its step time and that of fewer ranks.

    Only ``n_ranks`` and the two steps are needed (or two throughputs with the batch, or two epochs with their steps);
    what else is known makes the verdict sharper. Times, sizes, counts and bandwidths may be numbers in SI units or text
    with a unit: ``"22 ms"``, ``"440 MB"``, ``"110M"``, ``"40 Gb/s"``.

    Args:
        base_step_s, step_s: seconds of one optimizer step on ``base_ranks`` and on ``n_ranks``.
        n_ranks, base_ranks: for one node against k nodes, the ranks of a node and of k nodes.
        scaling: ``"weak"`` if the batch per rank was the same, ``"strong"`` if the global batch was, None if unknown.
        base_samples_per_s, samples_per_s: instead of step times: samples per second of all ranks together.
        batch_per_rank: samples of one rank in one step of the judged run.
        base_batch_per_rank: in the base run, if
            another. With both, the scaling follows.
        base_epoch_s, epoch_s: instead of step times: seconds of an epoch, with ``base_steps_per_epoch`` and
            ``steps_per_epoch``, or with ``dataset_samples`` and the batch.
        n_params: trainable parameters.
        bytes_per_param: bytes of one gradient on the wire (4 fp32, 2 bf16).
        gradient_bytes: instead of those two.
        nominal_bandwidth: the slowest link that the ring crosses: all NICs of a node together over several nodes,
            or one GPU's link in a box.
        n_nodes: nodes of the judged run.
        compute_s: measured forward and backward of the judged run.
        communication_s: measured communication.
        data_s: measured waiting for data, per step.
        accumulation_steps: micro-steps of an optimizer step.
        syncs_per_step: all-reduces of the gradients per step: 1, or ``accumulation_steps`` if none is skipped.
        log: output of nccl-tests' all_reduce_perf on the same ranks, or parsed.
        smaller_model_helped: whether a model with fewer parameters had a smaller slowdown.
        backend: ``"nccl"``, ``"gloo"`` or ``"mpi"``.
        cores_per_node: CPU cores, for ranks that compute on the CPU.
        steps_per_epoch, base_steps_per_epoch: as the trainer counts them.
        tokens_per_step: with ``n_params``, FLOPs are 6 per parameter and token.
        flops_per_step: instead of that, of
            all ranks together.
        peak_flops: dense peak of one rank, FLOP/s.
        dataset_samples: samples of the training set, to count padding.

    Raises:
        ValueError: something needed is missing or out of range, or two arguments contradict each other.

    Assumes a ring over all ranks. A library that reduces inside the node first puts ``2 (k-1)/k`` of the gradients
    on the wire between k nodes instead of ``2 (N-1)/N``: about half as much for two nodes (a note says so). The base
    run's own communication counts as compute.
    """
    base_step_s = _step_of_epoch(
        "base_",
        base_step_s,
        base_epoch_s,
        base_steps_per_epoch,
        dataset_samples,
        base_batch_per_rank or batch_per_rank,
        base_ranks,
    )
    step_s = _step_of_epoch("", step_s, epoch_s, steps_per_epoch, dataset_samples, batch_per_rank, n_ranks)
    run = _measured_run(
        base_step_s,
        step_s,
        n_ranks,
        base_ranks,
        scaling,
        base_samples_per_s,
        samples_per_s,
        batch_per_rank,
        base_batch_per_rank,
        epoch_s is not None,
    )
    growth = run.n_ranks / run.base_ranks
    size = _gradient_bytes(n_params, bytes_per_param, gradient_bytes)
    syncs = whole("syncs_per_step", syncs_per_step)
    computing = optional(seconds, "compute_s", compute_s) or run.base_step_s * run.work / growth
    communicating = optional(seconds, "communication_s", communication_s)
    nominal = optional(nominal_link, "nominal_bandwidth", nominal_bandwidth)
    traffic = _traffic(run, size, syncs, computing, communicating, nominal)
    benchmark_s, benchmark_busbw = _benchmark(log, size, syncs, run.n_ranks)
    nodes = None if n_nodes is None else count("n_nodes", n_nodes, most=run.n_ranks)
    if cores_per_node is not None and nodes is None:
        raise ValueError("cores_per_node needs n_nodes: how many ranks share the cores follows from it")
    evidence = Evidence(
        run=run,
        n_nodes=nodes,
        efficiency=run.work / growth * run.base_step_s / run.step_s,
        speedup=run.work * run.base_step_s / run.step_s,
        compute_s=computing,
        exposed_s=traffic.exposed_s,
        communication_s=communicating,
        data_s=optional(seconds, "data_s", data_s),
        gradient_bytes=size,
        sent_bytes=traffic.sent_bytes,
        implied=traffic.implied,
        nominal=nominal,
        fraction=traffic.fraction,
        at_nominal_s=traffic.at_nominal_s,
        benchmark_s=benchmark_s,
        smaller_model_helped=smaller_model_helped,
        backend=None if backend is None else choice("backend", backend, BACKENDS),
        ranks_per_node=None if nodes is None else -(-run.n_ranks // nodes),
        cores_per_node=optional(whole, "cores_per_node", cores_per_node),
        accumulation_steps=whole("accumulation_steps", accumulation_steps),
        syncs=syncs,
        steps_per_epoch=optional(positive, "steps_per_epoch", steps_per_epoch),
        base_steps_per_epoch=optional(positive, "base_steps_per_epoch", base_steps_per_epoch),
        ranks_to_beat=traffic.ranks_to_beat,
    )
    fixed = _fixed_overhead_s(run, compute_s, computing)
    mfu = _mfu(run, n_params, tokens_per_step, flops_per_step, peak_flops)
    padded = _padded(dataset_samples, run.n_ranks)
    predicted = _predicted(computing, traffic.at_nominal_s)
    alternative = _predicted(computing, None if traffic.at_nominal_s is None else 8 * traffic.at_nominal_s)
    weak, strong = growth * run.base_step_s / run.step_s, run.base_step_s / run.step_s
    known = run.scaling is not None
    return DataParallelDiagnosis(
        n_ranks=run.n_ranks,
        base_ranks=run.base_ranks,
        scaling=run.scaling,
        assumed_scaling=run.assumed,
        question="" if known else _question(weak, strong, growth),
        base_step_s=run.base_step_s,
        step_s=run.step_s,
        weak_speedup=weak,
        weak_efficiency=weak / growth,
        strong_speedup=strong,
        strong_efficiency=strong / growth,
        speedup=evidence.speedup if known else None,
        efficiency=evidence.efficiency if known else None,
        outcome=_outcome(evidence.speedup if known else None, weak, strong),
        compute_s=computing,
        exposed_s=traffic.exposed_s,
        communication_s=communicating,
        communication_share=None if communicating is None else communicating / run.step_s,
        gradient_bytes=size,
        sent_bytes=traffic.sent_bytes,
        implied_bandwidth=traffic.implied,
        nominal_bandwidth=None if nominal is None else nominal.bytes_per_s,
        fraction_of_nominal=traffic.fraction,
        communication_at_nominal_s=traffic.at_nominal_s,
        predicted_step_s=predicted,
        predicted_slowdown=None
        if predicted is None
        else (predicted[0] / computing, predicted[1] / computing),
        observed_over_predicted=None if predicted is None else run.step_s / predicted[1],
        predicted_samples_per_s=_samples_per_s(run, predicted),
        alternative_step_s=alternative,
        alternative_samples_per_s=_samples_per_s(run, alternative),
        bandwidth_to_hide=None if traffic.sent_bytes is None else traffic.sent_bytes / computing,
        ranks_to_beat_base=traffic.ranks_to_beat,
        fixed_overhead_s=fixed,
        benchmark_s=benchmark_s,
        benchmark_busbw=benchmark_busbw,
        mfu=mfu,
        padded_samples=None if padded is None else padded[0],
        duplicate_samples=None if padded is None else padded[1],
        verdict=judge(evidence),
        notes=notes_on(evidence, fixed, mfu, padded, dataset_samples),
    )


# Reading the measurements ---------------------------------------------------------------------------------------


def step_time_s(samples_per_s: float, batch_per_rank: float, n_ranks: int) -> float:
    """Seconds of a step from the samples per second of all ranks: ``batch_per_rank * n_ranks / samples_per_s``.

    Raises:
        ValueError: an argument is out of range.
    """
    batch = positive("batch_per_rank", batch_per_rank, "samples") * count("n_ranks", n_ranks)
    return batch / positive("samples_per_s", samples_per_s, "samples/s")


def _measured_run(
    base_step: float | str | None,
    step: float | str | None,
    n_ranks: int,
    base_ranks: int,
    scaling: str | None,
    base_rate: float | None,
    rate_: float | None,
    batch: float | None,
    base_batch: float | None,
    epochs: bool,
) -> Run:
    fewer = count("base_ranks", base_ranks)
    ranks = count("n_ranks", n_ranks, least=fewer + 1)
    kept = None if scaling is None else choice("scaling", scaling, SCALINGS)
    own = None if batch is None else positive("batch_per_rank", batch, "samples")
    base_own = own if base_batch is None else positive("base_batch_per_rank", base_batch, "samples")
    if own is not None and base_batch is None and kept == "strong":
        # The same global batch, so each of the fewer ranks had more of it.
        base_own = own * ranks / fewer
    work = ranks / fewer if kept != "strong" else 1.0
    if own is not None and base_own is not None and (base_batch is not None or rate_ is not None or epochs):
        work = own * ranks / (base_own * fewer)
        derived = _scaling_of(work, ranks / fewer)
        if kept is not None and derived != kept:
            raise ValueError(
                f"scaling {kept!r} contradicts the batches: {own:g} samples a rank on {plural(ranks, 'rank')} "
                f"against {base_own:g} on {plural(fewer, 'rank')} is {derived} scaling"
            )
        kept = derived
    base_time = _step("base_step_s", base_step, "base_samples_per_s", base_rate, base_own, fewer)
    time = _step("step_s", step, "samples_per_s", rate_, own, ranks)
    assumed = kept or "weak"
    if kept is None and time < 0.8 * base_time:
        # No rank gets faster with the same batch: the batch per rank must have shrunk.
        assumed, work = "strong", 1.0
    return Run(
        base_step_s=base_time,
        step_s=time,
        base_ranks=fewer,
        n_ranks=ranks,
        scaling=kept,
        assumed=assumed,
        global_batch=None if own is None else own * ranks,
        work=work,
    )


def _step_of_epoch(
    prefix: str,
    step: float | str | None,
    epoch: float | str | None,
    steps: float | None,
    samples: int | None,
    batch: float | None,
    ranks: int,
) -> float | str | None:
    """The step as given, or from an epoch's time and its steps."""
    if epoch is None:
        return step
    if step is not None:
        raise ValueError(f"give {prefix}step_s or {prefix}epoch_s, not both")
    time = seconds(f"{prefix}epoch_s", epoch)
    if steps is not None:
        return time / positive(f"{prefix}steps_per_epoch", steps)
    if samples is None or batch is None:
        raise ValueError(
            f"{prefix}epoch_s needs {prefix}steps_per_epoch, or dataset_samples with {prefix}batch_per_rank: how long a "
            "step is follows from how many there are"
        )
    whole = positive("batch_per_rank", batch, "samples") * count("n_ranks", ranks)
    return time / math.ceil(count("dataset_samples", samples) / whole)


def _scaling_of(work: float, growth: float) -> str:
    if abs(work / growth - 1) < 0.02:
        return "weak"
    return "strong" if abs(work - 1) < 0.02 else "other"


def _step(
    step_name: str,
    step: float | str | None,
    rate_name: str,
    rate_: float | None,
    batch: float | None,
    ranks: int,
) -> float:
    if step is not None and rate_ is not None:
        raise ValueError(f"give {step_name} or {rate_name}, not both")
    if step is not None:
        return seconds(step_name, step)
    if rate_ is None:
        raise ValueError(
            f"{step_name} must be given (seconds of one step), or {rate_name} with batch_per_rank"
        )
    if batch is None:
        raise ValueError(f"{rate_name} needs batch_per_rank: a step time follows from the samples of a step")
    return batch * ranks / positive(rate_name, rate_, "samples/s")


def _gradient_bytes(
    n_params: float | str | None, bytes_per_param: float, gradient_bytes: float | str | None
) -> float | None:
    each = positive("bytes_per_param", bytes_per_param, "bytes")
    if gradient_bytes is not None:
        return size_bytes("gradient_bytes", gradient_bytes)
    return None if n_params is None else how_many("n_params", n_params) * each


@dataclass(frozen=True)
class _Traffic:
    """What was sent, how long it showed, and what that says about the link; None where the bytes are unknown."""

    exposed_s: float
    sent_bytes: float | None
    implied: tuple[float, float | None] | None
    fraction: tuple[float, float | None] | None
    at_nominal_s: float | None
    ranks_to_beat: int | None


def _traffic(
    run: Run,
    size: float | None,
    syncs: int,
    compute_s: float,
    communication_s: float | None,
    nominal: Nominal | None,
) -> _Traffic:
    exposed = max(run.step_s - compute_s, 0.0)
    sent = implied = fraction = at_nominal = beat = None
    if size is not None:
        sent = ring_allreduce_sent_bytes(size, run.n_ranks) * syncs
        implied = _implied(sent, run.step_s, exposed, communication_s)
        high = implied[1]
        if high is not None:
            beat = _ranks_to_beat(run.base_step_s, size * syncs, high, run.base_ranks)
        if nominal is not None:
            at_nominal = sent / nominal.bytes_per_s
            fraction = (
                implied[0] / nominal.bytes_per_s,
                None if high is None else high / nominal.bytes_per_s,
            )
    return _Traffic(
        exposed_s=exposed,
        sent_bytes=sent,
        implied=implied,
        fraction=fraction,
        at_nominal_s=at_nominal,
        ranks_to_beat=beat,
    )


def _implied(
    sent: float, step_s: float, exposed_s: float, communication_s: float | None
) -> tuple[float, float | None]:
    if communication_s is not None:
        return sent / communication_s, sent / communication_s
    # Differences of a few percent between two measured steps are noise, not communication.
    visible = exposed_s > 0.02 * step_s
    return sent / step_s, sent / exposed_s if visible else None


def _predicted(compute_s: float, communication_s: float | None) -> tuple[float, float] | None:
    if communication_s is None:
        return None
    return max(compute_s, communication_s), compute_s + communication_s


def _samples_per_s(run: Run, steps: tuple[float, float] | None) -> tuple[float, float] | None:
    if steps is None or run.global_batch is None:
        return None
    return run.global_batch / steps[1], run.global_batch / steps[0]


def _benchmark(
    log: NcclLog | str | None, size: float | None, syncs: int, n_ranks: int
) -> tuple[tuple[float, float] | None, float | None]:
    """The gradients' all-reduce by the log, as one buffer and in DDP's buckets, and its bus bandwidth."""
    if log is None:
        return None, None
    table = parse(log) if isinstance(log, str) else log
    if table.collective != "all-reduce":
        raise ValueError(
            f"log must be of an all-reduce, which is what data parallelism runs, not {table.collective!r}"
        )
    if table.n_ranks != n_ranks:
        raise ValueError(f"log must be of the same {n_ranks} ranks as the run, not {table.n_ranks}")
    if size is None:
        return None, None
    whole = table.time_s(size)
    buckets = max(math.ceil(size / DDP_BUCKET_BYTES), 1)
    bucketed = buckets * table.time_s(size / buckets)
    return (
        (syncs * min(whole, bucketed), syncs * max(whole, bucketed)),
        ring_allreduce_sent_bytes(size, n_ranks) / whole,
    )


def _ranks_to_beat(base_step_s: float, size: float, bandwidth: float, base_ranks: int) -> int | None:
    """The fewest N > g with ``N C > g (C + T(N))``, ``T = 2 (N-1)/N size/bandwidth``: weak scaling, no overlap."""
    groups, ring = base_ranks, 2 * size / bandwidth
    # N^2 C - N g (C + ring) + g ring > 0, beyond the larger root.
    linear = groups * (base_step_s + ring)
    root = (linear + math.sqrt(max(linear * linear - 4 * base_step_s * groups * ring, 0.0))) / (
        2 * base_step_s
    )
    return None if not root < 1e9 else max(math.floor(root) + 1, groups + 1)


def _fixed_overhead_s(run: Run, given: float | str | None, compute_s: float) -> float | None:
    """With ``t(b) = a + c b`` and the batch per rank cut by R, ``a = (R t_R - t_1) / (R - 1)``; None outside 0..t_1."""
    if given is None or run.scaling == "weak":
        return None
    growth = run.n_ranks / run.base_ranks
    fixed = (growth * compute_s - run.base_step_s) / (growth - 1)
    return fixed if 0 < fixed < run.base_step_s else None


def _mfu(
    run: Run,
    n_params: float | str | None,
    tokens: float | None,
    flops: float | None,
    peak: float | None,
) -> float | None:
    if peak is None:
        if flops is not None or tokens is not None:
            raise ValueError(
                "peak_flops must be given with flops_per_step or tokens_per_step: dense FLOP/s of one rank"
            )
        return None
    speed = positive("peak_flops", peak, "FLOP/s")
    if flops is not None:
        work = positive("flops_per_step", flops, "FLOP")
    elif tokens is not None and n_params is not None:
        work = training_flops(how_many("n_params", n_params), positive("tokens_per_step", tokens, "tokens"))
    else:
        raise ValueError("peak_flops needs flops_per_step, or tokens_per_step with n_params")
    return work / (run.step_s * run.n_ranks * speed)


def _padded(samples: int | None, n_ranks: int) -> tuple[int, int] | None:
    if samples is None:
        return None
    total = count("dataset_samples", samples)
    padded = -(-total // n_ranks) * n_ranks
    return padded, padded - total


def _outcome(speedup: float | None, weak: float, strong: float) -> str:
    def word(value: float) -> str:
        if value > 1.02:
            return "gain"
        return "slowdown" if value < 0.98 else "no change"

    if speedup is not None:
        return word(speedup)
    return word(weak) if word(weak) == word(strong) else "depends"


def _question(weak: float, strong: float, growth: float) -> str:
    return (
        "Which batch did you keep? If the batch per rank, these steps are "
        f"{times(weak)} the samples per second, efficiency {percent(weak / growth)} (weak scaling). If the global "
        f"batch, {times(strong)}, efficiency {percent(strong / growth)} (strong scaling)."
    )


# Showing it ----------------------------------------------------------------------------------------------------


def _rows(d: DataParallelDiagnosis) -> list[tuple[str, str]]:
    weak = f"{times(d.weak_speedup)} the samples/s, efficiency {percent(d.weak_efficiency)}"
    strong = f"{times(d.strong_speedup)} the samples/s, efficiency {percent(d.strong_efficiency)}"
    rows = [
        ("step", f"{format_time(d.base_step_s, 3)} -> {format_time(d.step_s, 3)}"),
        ("weak scaling", weak + ("" if d.scaling == "weak" else " (if the batch per rank was kept)")),
        ("strong scaling", strong + ("" if d.scaling == "strong" else " (if the global batch was kept)")),
        ("compute", f"{format_time(d.compute_s, 3)}, and {format_time(d.exposed_s, 3)} beyond it"),
    ]
    if d.communication_s is not None and d.communication_share is not None:
        rows.append(
            (
                "communication",
                f"{format_time(d.communication_s, 3)}, {percent(d.communication_share)} of the step",
            )
        )
    if d.gradient_bytes is not None and d.sent_bytes is not None:
        sizes = f"{format_bytes(d.gradient_bytes, 3)}; a ring sends {format_bytes(d.sent_bytes, 4)} per rank and step"
        rows.append(("gradients", sizes))
    if d.implied_bandwidth is not None:
        rows.append(("implied bandwidth", rates(d.implied_bandwidth[0], d.implied_bandwidth[1])))
    if d.nominal_bandwidth is not None:
        reached = ""
        if d.fraction_of_nominal is not None:
            reached = f"; implied is {percents(d.fraction_of_nominal[0], d.fraction_of_nominal[1])} of it"
        rows.append(("nominal link", rate(d.nominal_bandwidth) + reached))
    if d.predicted_step_s is not None:
        low, high = d.predicted_step_s
        span = f"{format_time(low, 3)} (all overlapped) to {format_time(high, 3)} (nothing overlapped)"
        above = d.observed_over_predicted
        if above is not None and above > 1.05:
            span += f"; measured is {times(above)} the latter"
        rows.append(("step at nominal", span))
    if d.benchmark_s is not None and d.benchmark_busbw is not None:
        span = f"{format_time(d.benchmark_s[0], 3)} to {format_time(d.benchmark_s[1], 3)}"
        rows.append(
            ("benchmark", f"{span} for these gradients, busbw {format_bandwidth(d.benchmark_busbw, 3)}")
        )
    if d.mfu is not None:
        rows.append(("MFU", percent(d.mfu)))
    return rows
