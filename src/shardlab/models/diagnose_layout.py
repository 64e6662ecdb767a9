"""Sharded, pipelined and tensor-parallel runs: is their throughput what the bytes and the bubble explain?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.checks import count, positive
from shardlab.models.collectives import (
    ring_allgather_cost,
    ring_allreduce_sent_bytes,
    ring_reduce_scatter_cost,
)
from shardlab.models.diagnose_common import (
    PCIE3_X16,
    WELL_USED,
    Verdict,
    checks,
    how_many,
    nominal_link,
    percent,
    plural,
    rate,
    rates,
    report,
    seconds,
    times,
)
from shardlab.models.pipeline_formulas import bubble_of_total
from shardlab.models.tensor import layer_sent_bytes_core
from shardlab.units import format_bytes, format_time, significant

# Sharded data parallelism ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShardedDiagnosis:
    """Fully sharded data parallelism (ZeRO-3, FSDP). Bytes per rank, seconds, bytes/s; None where unknown.

    Attributes:
        n_ranks: ranks the weights are sharded over.
        accumulation_steps: micro-steps of an optimizer step.
        gathered_bytes: weights received per micro-step, two all-gathers.
        scattered_bytes: gradients reduced.
        micro_step_bytes, step_bytes: sent per micro-step and per optimizer step when sharded.
        replicated_bytes: sent per optimizer step by replicas: one all-reduce of the trainable gradients.
        traffic_ratio: ``step_bytes / replicated_bytes``.
        micro_step_at_nominal_s, replicated_at_nominal_s: those bytes at the link's speed.
        extra_s: what the step takes beyond the base run.
        micro_steps_explained: how many micro-steps of traffic at full link speed fit into ``extra_s``.
        implied_bandwidth: ``step_bytes / extra_s``.
        replicated_gain: throughput of replicas over that of full sharding.
        full_efficiency, hybrid_efficiency: throughput of k nodes over k times one node.
        hybrid_gain: throughput of sharding inside the node over that of full sharding.
        verdict: in words.
    """

    n_ranks: int
    accumulation_steps: int
    gathered_bytes: float | None
    scattered_bytes: float | None
    micro_step_bytes: float | None
    step_bytes: float | None
    replicated_bytes: float | None
    traffic_ratio: float
    micro_step_at_nominal_s: float | None
    replicated_at_nominal_s: float | None
    extra_s: float | None
    micro_steps_explained: float | None
    implied_bandwidth: float | None
    replicated_gain: float | None
    full_efficiency: float | None
    hybrid_efficiency: float | None
    hybrid_gain: float | None
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = []
        if (
            self.micro_step_bytes is not None
            and self.gathered_bytes is not None
            and self.scattered_bytes is not None
        ):
            parts = f"{format_bytes(self.gathered_bytes, 3)} weights, {format_bytes(self.scattered_bytes, 3)} gradients"
            rows.append(("per micro-step", f"{format_bytes(self.micro_step_bytes, 3)} per rank ({parts})"))
        if self.replicated_bytes is not None:
            rows.append(("replicas instead", f"{format_bytes(self.replicated_bytes, 3)} per optimizer step"))
        rows.append(
            (
                "traffic",
                f"{times(self.traffic_ratio)} that of replicas, {plural(self.accumulation_steps, 'micro-step')}",
            )
        )
        if self.micro_step_at_nominal_s is not None and self.replicated_at_nominal_s is not None:
            rows.append(
                ("at the link's speed", f"{format_time(self.micro_step_at_nominal_s, 3)} per micro-step")
            )
            rows.append(
                ("replicas at it", f"{format_time(self.replicated_at_nominal_s, 3)} per optimizer step")
            )
        if self.extra_s is not None:
            rows.append(("beyond the base run", format_time(self.extra_s, 3)))
        if self.implied_bandwidth is not None:
            rows.append(("implied bandwidth", rate(self.implied_bandwidth)))
        for label, share in (
            ("full sharding", self.full_efficiency),
            ("inside the node", self.hybrid_efficiency),
        ):
            if share is not None:
                rows.append((label, f"efficiency {percent(share)} over the nodes (weak scaling)"))
        return report(f"Sharded over {plural(self.n_ranks, 'rank')}", rows, self.verdict)


def sharded(
    n_ranks: int,
    n_params: float | str | None = None,
    weight_bytes: float = 2.0,
    trainable_params: float | str | None = None,
    gradient_bytes_per_param: float | None = None,
    *,
    accumulation_steps: int | None = None,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    base_step_s: float | str | None = None,
    step_s: float | str | None = None,
    nominal_bandwidth: float | str | None = None,
    n_nodes: int | None = None,
    replicated_throughput: float | None = None,
    full_throughput: float | None = None,
    hybrid_throughput: float | None = None,
    one_node_throughput: float | None = None,
) -> ShardedDiagnosis:
    """Judge ZeRO-3 or FSDP: bytes per micro-step, what replicas would send, and the throughputs that were measured.

    Every micro-step gathers all weights twice, ``2 (N-1)/N W``, frozen ones too, and reduce-scatters the trainable
    gradients, ``(N-1)/N G``. Replicas all-reduce once per optimizer step, ``2 (N-1)/N G``.

    Args:
        n_ranks: ranks the weights are sharded over.
        n_params: all weights.
        weight_bytes: of one weight on the wire.
        trainable_params: if not all (adapters).
        gradient_bytes_per_param: on the wire, ``weight_bytes`` by default.
        accumulation_steps: micro-steps of an optimizer step; or global_batch and micro_batch (of one rank).
        base_step_s, step_s: an optimizer step of a run that the slow link does not slow, and of this one.
        nominal_bandwidth: the slowest link crossed, all NICs of a node together.
        n_nodes: for the throughputs of k nodes.
        replicated_throughput, full_throughput, hybrid_throughput: samples or tokens per second with replicas (DDP),
            with full sharding, and sharded inside the node with replicas across; of this run's ranks or per rank, but
            all alike.
        one_node_throughput: of one node, in the same measure as those of k nodes together.

    Raises:
        ValueError: an argument is out of range or missing.

    Source: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 7.2.2; Zhao et al., FSDP (arXiv 2304.11277), 3.2.2.
    """
    ranks = count("n_ranks", n_ranks, least=2)
    steps = _accumulation_steps(accumulation_steps, global_batch, micro_batch, ranks)
    each = positive("weight_bytes", weight_bytes, "bytes")
    gradient_each = (
        each
        if gradient_bytes_per_param is None
        else positive("gradient_bytes_per_param", gradient_bytes_per_param, "bytes")
    )
    weights = 1.0 if n_params is None else how_many("n_params", n_params)
    trained = weights if trainable_params is None else how_many("trainable_params", trainable_params)
    if trained > weights:
        raise ValueError(f"trainable_params must not exceed n_params {weights:g}, not {trained:g}")
    gathered = 2 * ring_allgather_cost(weights * each, ranks).sent_bytes
    scattered = ring_reduce_scatter_cost(trained * gradient_each, ranks).sent_bytes
    replicated = ring_allreduce_sent_bytes(trained * gradient_each, ranks)
    per_micro = gathered + scattered
    link = (
        None
        if nominal_bandwidth is None
        else nominal_link("nominal_bandwidth", nominal_bandwidth).bytes_per_s
    )
    extra = _extra_s(base_step_s, step_s)
    known = n_params is not None
    at_nominal = per_micro / link if known and link is not None else None
    given = [
        None if value is None else positive(name, value)
        for name, value in (
            ("replicated_throughput", replicated_throughput),
            ("full_throughput", full_throughput),
            ("hybrid_throughput", hybrid_throughput),
            ("one_node_throughput", one_node_throughput),
        )
    ]
    replicas, full, hybrid, one_node = given
    nodes = _nodes(n_nodes, one_node, full, hybrid)
    hybrid_gain = hybrid / full if hybrid and full else None
    replicated_gain = replicas / full if replicas and full else None
    micro_steps = extra / at_nominal if extra is not None and at_nominal else None
    ratio = steps * per_micro / replicated
    return ShardedDiagnosis(
        n_ranks=ranks,
        accumulation_steps=steps,
        gathered_bytes=gathered if known else None,
        scattered_bytes=scattered if known else None,
        micro_step_bytes=per_micro if known else None,
        step_bytes=steps * per_micro if known else None,
        replicated_bytes=replicated if known else None,
        traffic_ratio=ratio,
        micro_step_at_nominal_s=at_nominal,
        replicated_at_nominal_s=replicated / link if known and link is not None else None,
        extra_s=extra,
        micro_steps_explained=micro_steps,
        implied_bandwidth=steps * per_micro / extra if known and extra else None,
        replicated_gain=replicated_gain,
        full_efficiency=full / (nodes * one_node) if full and one_node and nodes else None,
        hybrid_efficiency=hybrid / (nodes * one_node) if hybrid and one_node and nodes else None,
        hybrid_gain=hybrid_gain,
        verdict=_sharded_verdict(
            weights * each if known else None,
            per_micro,
            replicated,
            steps,
            ratio,
            at_nominal,
            None if base_step_s is None else seconds("base_step_s", base_step_s),
            micro_steps,
            replicated_gain,
            hybrid_gain,
            trained < weights,
        ),
    )


def _accumulation_steps(
    given: int | None, global_batch: int | None, micro_batch: int | None, ranks: int
) -> int:
    if global_batch is None and micro_batch is None:
        return 1 if given is None else count("accumulation_steps", given)
    if global_batch is None or micro_batch is None:
        raise ValueError(
            "global_batch and micro_batch must be given together: accumulation follows from both"
        )
    whole, part = count("global_batch", global_batch), count("micro_batch", micro_batch) * ranks
    if whole % part:
        raise ValueError(
            f"global_batch must be a multiple of micro_batch times n_ranks = {part}, not {whole}"
        )
    if given is not None and given != whole // part:
        raise ValueError(f"accumulation_steps must be {whole // part} by the batches, not {given!r}")
    return whole // part


def _extra_s(base_step_s: float | str | None, step_s: float | str | None) -> float | None:
    if base_step_s is None or step_s is None:
        return None
    extra = seconds("step_s", step_s) - seconds("base_step_s", base_step_s)
    return extra if extra > 0 else None


def _nodes(
    n_nodes: int | None, one_node: float | None, full: float | None, hybrid: float | None
) -> int | None:
    if n_nodes is None and one_node is not None and (full is not None or hybrid is not None):
        raise ValueError(
            "one_node_throughput needs n_nodes, the nodes of the throughputs it is compared with"
        )
    return None if n_nodes is None else count("n_nodes", n_nodes)


_SHARD_LESS = (
    "Replicas (DDP, or ZeRO-1/2) if weights, gradients and optimizer states fit: they send once per optimizer step",
    "Shard inside the node and replicate across (HYBRID_SHARD, ZeRO++ hpZ): weights stay on the fast links",
    "If it must be fully sharded: larger micro-batches, wrapped per block so that gathers overlap with compute",
)


def _sharded_verdict(
    weights_bytes: float | None,
    per_micro: float,
    replicated: float,
    steps: int,
    ratio: float,
    at_nominal: float | None,
    base_step_s: float | None,
    micro_steps: float | None,
    replicated_gain: float | None,
    hybrid_gain: float | None,
    frozen: bool,
) -> Verdict:
    if at_nominal is not None and weights_bytes is not None:
        text = (
            f"Every micro-step sends {format_bytes(per_micro, 3)} per rank, {format_time(at_nominal, 3)} at the link's full "
            f"speed; replicas would send {format_bytes(replicated, 3)} once per optimizer step."
        )
        if frozen:
            text += (
                f" The traffic follows all {format_bytes(weights_bytes, 3)} of weights, frozen ones too, not the "
                "trainable part, and accumulation does not spread it out."
            )
        if base_step_s is not None and at_nominal * steps > base_step_s:
            said = ""
            if micro_steps is not None:
                said = f" The extra time is that of {significant(micro_steps, 2)} micro-steps at full link speed."
            return Verdict(
                code="network-bound",
                text=f"Network-bound by construction. {text}{said}",
                checks=_SHARD_LESS,
            )
        slower = (
            micro_steps is not None
            and base_step_s is not None
            and micro_steps * at_nominal > 0.2 * base_step_s
        )
        if micro_steps is not None and slower and micro_steps > 2 * steps:
            return Verdict(
                code="below-nominal",
                text=(
                    f"{text} The extra time is {significant(micro_steps / steps, 2)} times what {plural(steps, 'micro-step')} need at "
                    "full link speed: the transport is slow, or nothing overlaps."
                ),
                checks=checks("A collective benchmark over the same ranks", *_SHARD_LESS),
            )
        return Verdict(code="traffic", text=text, checks=_SHARD_LESS[:2] if ratio > 3 else ())
    if hybrid_gain is not None and hybrid_gain > 1.05:
        text = (
            f"Sharding inside the node and replicating across is {times(hybrid_gain)} as fast as sharding over everything: "
            "full sharding moves all weights over the slow link in every micro-step, replicas only gradients, once. "
            "Do it when one node can hold the states."
        )
        return Verdict(code="shard-inside-node", text=text, checks=())
    if hybrid_gain is not None:
        text = (
            f"Sharding inside the node gains nothing ({times(hybrid_gain)}): the link between nodes is not what slows "
            "full sharding, and full sharding needs less memory."
        )
        return Verdict(code="full-sharding-is-fine", text=text, checks=())
    if replicated_gain is not None and replicated_gain > 1.05:
        text = (
            f"Replicas are {times(replicated_gain)} as fast: they synchronise once per optimizer step, full sharding "
            f"gathers, gathers and reduces in each of {plural(steps, 'micro-step')}, {times(ratio)} the traffic. If the "
            "model fits, use replicas."
        )
        return Verdict(code="replicate-instead", text=text, checks=_SHARD_LESS)
    if replicated_gain is not None:
        text = f"Full sharding costs little here: replicas are {times(replicated_gain)} as fast."
        return Verdict(code="full-sharding-is-fine", text=text, checks=())
    text = (
        f"Full sharding sends {times(ratio)} what replicas send in an optimizer step of {plural(steps, 'micro-step')}. "
        "Give n_params and nominal_bandwidth for seconds, or throughputs to compare."
    )
    return Verdict(code="traffic", text=text, checks=())


# Pipelines ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineDiagnosis:
    """Measured pipelines against what their bubble alone would allow.

    "Bubble" here is idle time over total time, ``(p-1)/(v m + p-1)`` (equal stages, free transfers).

    Attributes:
        stages, micro_batches: of each run; None where m is unknown.
        throughput: of each run, in any one unit, or None.
        bubbles: of each run, None where m is unknown.
        ceilings: the reference throughput times (1 - bubble); None without reference or m.
        shares_of_reference: throughput over the reference, or None.
        least_shares: what the worst bubble, m = 1, would leave: ``v/(v+p-1)``.
        expected_gains, observed_gains: each run over the first, by the bubbles alone and as measured, None if unknown.
        verdict: in words.
    """

    stages: tuple[int, ...]
    micro_batches: tuple[int | None, ...]
    throughput: tuple[float | None, ...]
    bubbles: tuple[float | None, ...]
    ceilings: tuple[float | None, ...]
    shares_of_reference: tuple[float | None, ...]
    least_shares: tuple[float, ...]
    expected_gains: tuple[float | None, ...]
    observed_gains: tuple[float | None, ...]
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = []
        for place in range(len(self.stages)):
            batches, bubble = self.micro_batches[place], self.bubbles[place]
            label = f"{self.stages[place]} stages, {'?' if batches is None else batches} micro-batches"
            words = "bubble unknown" if bubble is None else f"bubble {percent(bubble)} of total time"
            reached, ceiling = self.throughput[place], self.ceilings[place]
            if reached is not None:
                words += f", reached {significant(reached)}"
            if ceiling is not None:
                words += f", the bubble alone allows {significant(ceiling)}"
            rows.append((label, words))
        return report("Pipeline", rows, self.verdict)


def pipeline(runs: Any, reference_throughput: float | None = None, chunks: int = 1) -> PipelineDiagnosis:
    """Does the bubble explain what a pipeline delivers?

    Args:
        runs: ``(stages, micro_batches, throughput)`` of one run or several on the same ranks and model; micro_batches
            and throughput may be None. Throughput in any unit, more is better: tokens/s, FLOP/s per GPU.
        reference_throughput: the same ranks and model without a pipeline, same unit.
        chunks: v, model chunks per rank (interleaved schedules).

    Raises:
        ValueError: no runs, or numbers out of range.

    Source: the bubble as in :func:`shardlab.models.pipeline_formulas.bubble_of_total`.
    """
    rows = [tuple(run) for run in runs]
    if not rows or [row for row in rows if len(row) != 3]:
        raise ValueError(
            "runs must hold (stages, micro_batches, throughput) for each run, with None for unknown numbers"
        )
    per_rank = count("chunks", chunks)
    stages = tuple([count("stages in runs", row[0]) for row in rows])
    batches = tuple([None if row[1] is None else count("micro_batches in runs", row[1]) for row in rows])
    reached = tuple([None if row[2] is None else positive("throughput in runs", row[2]) for row in rows])
    reference = (
        None if reference_throughput is None else positive("reference_throughput", reference_throughput)
    )
    bubbles = tuple([None if m is None else bubble_of_total(p, m, per_rank) for p, m in zip(stages, batches)])
    ceilings = tuple([None if b is None or reference is None else reference * (1 - b) for b in bubbles])
    shares = tuple([None if r is None or reference is None else r / reference for r in reached])
    first, start = bubbles[0], reached[0]
    expected = tuple([None if b is None or first is None else (1 - b) / (1 - first) for b in bubbles])
    observed = tuple([None if r is None or start is None else r / start for r in reached])
    least = tuple([per_rank / (per_rank + p - 1) for p in stages])
    return PipelineDiagnosis(
        stages=stages,
        micro_batches=batches,
        throughput=reached,
        bubbles=bubbles,
        ceilings=ceilings,
        shares_of_reference=shares,
        least_shares=least,
        expected_gains=expected,
        observed_gains=observed,
        verdict=_pipeline_verdict(stages, batches, reached, bubbles, ceilings, shares, least),
    )


_NOT_THE_BUBBLE = (
    "Placement: tensor parallelism inside the node, stages across; point-to-point speed between neighbouring stages",
    "Work per call: kernels of a thin stage or a tiny micro-batch, and the host that launches them",
    "Stages of unequal time: the slowest one sets the pace (embedding and output layer count too)",
    "If the model fits without a pipeline, use none",
)


def _pipeline_verdict(
    stages: tuple[int, ...],
    batches: tuple[int | None, ...],
    reached: tuple[float | None, ...],
    bubbles: tuple[float | None, ...],
    ceilings: tuple[float | None, ...],
    shares: tuple[float | None, ...],
    least: tuple[float, ...],
) -> Verdict:
    rejected = _bubble_rejected(stages, reached, bubbles)
    if rejected is not None:
        return rejected
    for share, worst, p in zip(shares, least, stages):
        if share is not None and share < 0.98 * worst:
            text = (
                f"The bubble cannot explain it: even a single micro-batch in {p} stages would leave {percent(worst)} of "
                f"the throughput without a pipeline, and this run has {percent(share)}."
            )
            return Verdict(code="bubble-cannot-explain", text=text, checks=_NOT_THE_BUBBLE)
    for place in range(len(stages)):
        ceiling, got = ceilings[place], reached[place]
        if ceiling is not None and got is not None and got < 0.8 * ceiling:
            text = (
                f"The bubble is not all: with {plural(stages[place], 'stage')} it would leave {significant(ceiling)}, and the run "
                f"reaches {significant(got)}, {percent(got / ceiling)} of that."
            )
            return Verdict(code="more-than-the-bubble", text=text, checks=_NOT_THE_BUBBLE)
    for p, m, bubble in zip(stages, batches, bubbles):
        if m is not None and bubble is not None and m < p:
            text = (
                f"{plural(m, 'micro-batch')} never fill {p} stages: the bubble "
                f"is {percent(bubble)} of total time if it runs at all, and some frameworks refuse it. Use at least {p}, "
                "better four times as many. Read the loss on the last stage; the others have none."
            )
            return Verdict(code="fewer-micro-batches-than-stages", text=text, checks=())
    if [share for share in shares if share is not None and share > 0]:
        text = "The bubble explains these throughputs: more micro-batches, or interleaved stages, would raise them."
        return Verdict(
            code="bubble-explains", text=text, checks=("More micro-batches of the same size", "Interleaving")
        )
    text = (
        "The bubble alone; give throughputs, and that of the same ranks without a pipeline, to judge a run."
    )
    return Verdict(code="bubble-only", text=text, checks=())


def _bubble_rejected(
    stages: tuple[int, ...], reached: tuple[float | None, ...], bubbles: tuple[float | None, ...]
) -> Verdict | None:
    """Two runs with as many stages but another bubble, whose throughput does not follow it."""
    for one in range(len(stages)):
        for two in range(len(stages)):
            before, after, slow, fast = bubbles[one], bubbles[two], reached[one], reached[two]
            if stages[one] != stages[two] or before is None or after is None or slow is None or fast is None:
                continue
            expected, observed = (1 - after) / (1 - before), fast / slow
            if expected > 1.05 and observed - 1 < 0.33 * (expected - 1):
                text = (
                    f"The bubble is not the cause: cutting it from {percent(before)} to {percent(after)} of total time "
                    f"should gain {times(expected)}, and the throughput became {times(observed)}. Something else "
                    "dominates."
                )
                return Verdict(code="bubble-is-not-the-cause", text=text, checks=_NOT_THE_BUBBLE)
    return None


# Tensor parallelism ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorDiagnosis:
    """A tensor-parallel run against the same model without it. Seconds, bytes and bytes/s.

    Attributes:
        sent_bytes_per_token, sent_bytes: per rank, per token and in all.
        tensor_s, baseline_s: times of both runs.
        implied_bandwidth: the low end takes the compute as cut by t, the high end as not cut at all; high None if
            the run is no slower than the baseline.
        speedup: baseline over tensor time.
        nominal_bandwidth, fraction_of_nominal: the link as named and the bracket over it, or None.
        verdict: in words.
    """

    sent_bytes_per_token: float
    sent_bytes: float
    tensor_s: float
    baseline_s: float
    implied_bandwidth: tuple[float, float | None]
    speedup: float
    nominal_bandwidth: float | None
    fraction_of_nominal: tuple[float, float | None] | None
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        sent = f"{format_bytes(self.sent_bytes_per_token, 3)} per token and rank, {format_bytes(self.sent_bytes, 3)} in all"
        rows = [
            ("sent", sent),
            (
                "time",
                f"{format_time(self.baseline_s, 3)} without, {format_time(self.tensor_s, 3)} with tensor parallelism",
            ),
            ("implied bandwidth", rates(self.implied_bandwidth[0], self.implied_bandwidth[1])),
        ]
        if self.nominal_bandwidth is not None:
            rows.append(("nominal link", rate(self.nominal_bandwidth)))
        return report("Tensor parallel", rows, self.verdict)


def tensor(
    tokens: float,
    layers: int,
    hidden: int,
    n_ranks: int,
    tensor_tokens_per_s: float,
    baseline_tokens_per_s: float,
    element_bytes: float = 2.0,
    training: bool = False,
    nominal_bandwidth: float | str | None = None,
) -> TensorDiagnosis:
    """From tokens per second with and without tensor parallelism to the link it saw.

    A layer all-reduces its activations twice in a forward pass, twice more in a backward pass; over t ranks a ring
    sends ``4 (t-1)/t * hidden * element_bytes`` per token and pass.

    Args:
        tokens: processed in one run.
        layers, hidden: of the model.
        n_ranks: ``t``.
        tensor_tokens_per_s: with tensor parallelism.
        baseline_tokens_per_s: the same ranks with the layers dealt out
            (one rank working at a time), or one rank.
        element_bytes: of an activation.
        training: forward and backward; else forward only (prefill).
        nominal_bandwidth: the link between the ranks.

    Raises:
        ValueError: an argument is out of range.

    Assumes large messages: decoding one token at a time is bound by latency instead.
    """
    many = positive("tokens", tokens, "tokens")
    depth, width = count("layers", layers), count("hidden", hidden)
    ranks = count("n_ranks", n_ranks, least=2)
    size = positive("element_bytes", element_bytes, "bytes")
    with_tensor = many / positive("tensor_tokens_per_s", tensor_tokens_per_s, "tokens/s")
    without = many / positive("baseline_tokens_per_s", baseline_tokens_per_s, "tokens/s")
    link = (
        None
        if nominal_bandwidth is None
        else nominal_link("nominal_bandwidth", nominal_bandwidth).bytes_per_s
    )
    per_token = depth * layer_sent_bytes_core(1.0, width, ranks, size, 2 if training else 1)
    sent = per_token * many
    least_compute = without / ranks
    low = sent / (with_tensor - least_compute) if with_tensor > least_compute else sent / with_tensor
    high = sent / (with_tensor - without) if with_tensor > without else None
    fraction = None if link is None else (low / link, None if high is None else high / link)
    return TensorDiagnosis(
        sent_bytes_per_token=per_token,
        sent_bytes=sent,
        tensor_s=with_tensor,
        baseline_s=without,
        implied_bandwidth=(low, high),
        speedup=without / with_tensor,
        nominal_bandwidth=link,
        fraction_of_nominal=fraction,
        verdict=_tensor_verdict(low, high, with_tensor, without, ranks, link),
    )


def _tensor_verdict(
    low: float, high: float | None, with_tensor: float, without: float, ranks: int, link: float | None
) -> Verdict:
    speedup = without / with_tensor
    if speedup >= 0.8 * ranks:
        text = f"Tensor parallelism pays: {times(speedup)} with {plural(ranks, 'rank')}."
        return Verdict(code="pays", text=text, checks=())
    implied = rates(low, high)
    reference = PCIE3_X16 if link is None else link
    bus = (high if high is not None else low) < WELL_USED * reference
    where = f"the {rate(link)} link" if link is not None else "a PCIe 3.0 x16 slot"
    outcome = "slower than without" if speedup < 1 else f"only {times(speedup)}"
    if bus:
        text = (
            f"Bound by the bus: {outcome}, and the all-reduces imply {implied}, far below {where}. The copies probably go "
            "through the CPU's memory."
        )
        return Verdict(
            code="bus-bound",
            text=text,
            checks=checks(
                "nvidia-smi topo -m and a peer-to-peer copy test: is P2P on, are all 16 lanes there?",
                "Split by layers (pipeline) instead: it sends one activation per boundary, not two all-reduces per layer",
                "Keep tensor parallelism for GPUs with NVLink",
            ),
        )
    text = (
        f"Tensor parallelism is {outcome}, and its all-reduces imply {implied}: the link works, but this model's layers "
        "are too narrow for it to pay."
    )
    return Verdict(code="too-narrow", text=text, checks=("Fewer tensor-parallel ranks, larger batches",))
