"""The rules that turn a measured data-parallel run into a verdict: measured causes first, then the link, then guesses.

Every rule looks at numbers only and returns a verdict or None. :mod:`shardlab.models.diagnose_data_parallel` computes
the numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardlab.models.diagnose_common import (
    BOX_CHECKS,
    ETHERNET_GBIT_S,
    HEALTHY_EFFICIENCY,
    PCIE3_X16,
    SHORT_STEP_S,
    SMALL_BUFFER,
    WELL_USED,
    Nominal,
    Verdict,
    checks,
    nearest_port,
    percent,
    percents,
    plural,
    rate,
    rates,
    times,
)
from shardlab.units import GB, format_bandwidth, format_bit_rate, format_bytes, format_time


@dataclass(frozen=True)
class Run:
    """The two measured runs: steps, batches per rank (None if unknown), and what was kept."""

    base_step_s: float
    step_s: float
    base_ranks: int
    n_ranks: int
    scaling: str | None
    assumed: str  # the scaling that the numbers take for true
    global_batch: float | None
    work: float  # samples of a step over those of a base step


@dataclass(frozen=True)
class Evidence:
    """All that the rules of :func:`judge` look at."""

    run: Run
    n_nodes: int | None
    efficiency: float
    speedup: float
    compute_s: float
    exposed_s: float
    communication_s: float | None
    data_s: float | None
    gradient_bytes: float | None
    sent_bytes: float | None
    implied: tuple[float, float | None] | None
    nominal: Nominal | None
    fraction: tuple[float, float | None] | None
    at_nominal_s: float | None
    benchmark_s: tuple[float, float] | None
    smaller_model_helped: bool | None
    backend: str | None
    ranks_per_node: int | None
    cores_per_node: int | None
    accumulation_steps: int
    syncs: int
    steps_per_epoch: float | None
    base_steps_per_epoch: float | None
    ranks_to_beat: int | None


# A badly used transport, such as one TCP stream, still reaches more than this share of a fast link.
_NO_TRANSPORT = 0.06

_COLLECTIVE_TEST = (
    "Run nccl-tests' all_reduce_perf -b 8 -e 1G -f 2 over the same ranks and diagnose its output: it "
    "separates the network from the training program"
)
_TRANSPORT_CHECKS = (
    _COLLECTIVE_TEST,
    "NCCL_DEBUG=INFO in the log: 'NET/Socket' where 'NET/IB' (or EFA) should stand means it fell back to TCP",
    "NCCL_SOCKET_IFNAME and NCCL_IB_HCA: is it the fast interface, or the management network?",
    "iperf3 with one stream and with eight: if only eight fill the link, set NCCL_SOCKET_NTHREADS and "
    "NCCL_NSOCKS_PERTHREAD; ethtool for the speed the port negotiated",
)
_FEWER_BYTES = (
    "Send less or less often: bf16 gradients (half), a larger batch per rank, accumulation with no_sync()",
    "Keep the all-reduce inside a box with fast links, and use the slow link for less frequent exchange",
)
_OVERLAP_CHECKS = (
    "Overlap: buckets of about 25 MiB, no find_unused_parameters, nothing that waits for gradients early",
    "A profile: do the all-reduces start during the backward pass or after it?",
    _FEWER_BYTES[0],
)
_SMALL_STEP_CHECKS = (
    "A larger batch per rank, or accumulation with no_sync(): the same collectives then serve more samples",
    "Fewer, larger collectives: bucket_cap_mb, fused optimizers; CUDA graphs for the launches",
    "Stay on fewer ranks if the job is this small",
)
_DATA_CHECKS = (
    "Time a run on synthetic data held in memory: if it scales, the input pipeline is the limit",
    "DataLoader workers per rank (num_workers, pin_memory), CPU cores per rank, storage reads per second",
    "That every rank uses its own GPU (set_device, CUDA_VISIBLE_DEVICES), and no rank shares a core",
)


def judge(e: Evidence) -> Verdict:
    """The first rule that holds: measured causes before inferred ones, the link before guesses."""
    for rule in (
        _impossible,
        _step_counting,
        _scales_well,
        _data_loading,
        _oversubscribed,
        _not_communication,
        _against_benchmark,
        _against_link,
        _without_link,
    ):
        verdict = rule(e)
        if verdict is not None:
            return verdict
    return _unexplained(e)


def _impossible(e: Evidence) -> Verdict | None:
    if e.efficiency <= 1.1:
        return None
    return Verdict(
        code="does-not-compare",
        text=(
            f"An efficiency of {percent(e.efficiency)} is more than the ranks can give: the two measurements do not "
            "compare."
        ),
        checks=checks(
            "Same batch per rank, precision, sequence length and accumulation in both runs?",
            "Warm-up, compilation and logging left out of both times? An optimizer step or a micro-step?",
            "Does the base run spill (memory, offload), or share its GPU?",
        ),
    )


def _step_counting(e: Evidence) -> Verdict | None:
    """With the same batch per rank, N times the ranks need 1/N of the steps for an epoch."""
    if e.steps_per_epoch is None or e.base_steps_per_epoch is None:
        return None
    expected = e.base_steps_per_epoch / e.run.work
    if e.steps_per_epoch < 1.2 * expected:
        return None
    kept = " (Unless you kept the global batch: then say scaling='strong'.)" if e.run.scaling is None else ""
    return Verdict(
        code="step-counting",
        text=(
            f"An epoch takes {e.steps_per_epoch:.0f} steps on {plural(e.run.n_ranks, 'rank')} where "
            f"{math.ceil(expected)} would cover the data: every rank reads more than its share, and the epoch gets no shorter, "
            f"however fast the step is.{kept}"
        ),
        checks=checks(
            "A DistributedSampler (and set_epoch), or the trainer's own sharding, on the training loader",
            "Whether the trainer counts micro-steps, steps of one rank, or optimizer steps",
        ),
    )


def _scales_well(e: Evidence) -> Verdict | None:
    if e.efficiency < HEALTHY_EFFICIENCY:
        return None
    if e.run.scaling is None:
        kept = "the batch per rank" if e.run.assumed == "weak" else "the global batch"
        kind = f" if {kept} was kept"
    else:
        kind = "" if e.run.scaling == "other" else f" ({e.run.scaling} scaling)"
    text = f"Efficiency {percent(e.efficiency)}{kind}: communication hides or is cheap; there is nothing to repair."
    return Verdict(code="scales-well", text=text, checks=())


def _data_loading(e: Evidence) -> Verdict | None:
    if e.data_s is None or e.data_s < 0.5 * e.exposed_s:
        return None
    if e.communication_s is not None and e.communication_s > e.data_s:
        return None
    text = (
        f"Of the {format_time(e.exposed_s, 3)} that the step takes beyond its compute, waiting for data is "
        f"{format_time(e.data_s, 3)}: the input pipeline is the limit, not the network."
    )
    return Verdict(code="data-loading", text=text, checks=_DATA_CHECKS)


def _oversubscribed(e: Evidence) -> Verdict | None:
    if e.cores_per_node is None or e.ranks_per_node is None or e.ranks_per_node <= e.cores_per_node:
        return None
    text = (
        f"{plural(e.ranks_per_node, 'rank')} share {plural(e.cores_per_node, 'core')} of a node: they compute, copy "
        "and add in turns, so the step grows with the ranks whatever the network does. This measures the machine, "
        "not data parallelism."
    )
    return Verdict(
        code="oversubscribed-cores",
        text=text,
        checks=checks(
            "As many ranks as cores at the most, one thread each (OMP_NUM_THREADS=1)", _COLLECTIVE_TEST
        ),
    )


def _not_communication(e: Evidence) -> Verdict | None:
    """Measured communication that is far less than what the step lost."""
    if e.communication_s is None or e.communication_s >= 0.5 * e.exposed_s:
        return None
    rest = e.exposed_s - e.communication_s
    text = (
        f"Communication takes {format_time(e.communication_s, 3)}, but the step lost {format_time(e.exposed_s, 3)}: "
        f"{format_time(rest, 3)} of it is something else, such as data loading, a slow rank that all wait for, or "
        "compute that a smaller batch does not shorten."
    )
    return Verdict(
        code="not-communication",
        text=text,
        checks=checks(
            "Per-rank compute time, before any collective: one slow rank holds up all",
            _DATA_CHECKS[0],
            "A profile of one rank: gaps before the collectives, or kernels that did not get shorter",
        ),
    )


def _lost_s(e: Evidence) -> float:
    """What communication is taken to cost: measured, or all that the step takes beyond its compute."""
    return e.exposed_s if e.communication_s is None else e.communication_s


def _span(bracket: tuple[float, float]) -> str:
    low, high = bracket
    return (
        format_time(high, 3)
        if high - low < 0.05 * high
        else f"{format_time(low, 3)} to {format_time(high, 3)}"
    )


def _against_benchmark(e: Evidence) -> Verdict | None:
    if e.benchmark_s is None:
        return None
    low, high = e.benchmark_s
    lost = _lost_s(e)
    if low > 1.1 * e.run.step_s:
        # Even hidden under all of the compute it would not fit.
        return Verdict(
            code="does-not-compare",
            text=(
                f"The benchmark needs {_span(e.benchmark_s)} to all-reduce these gradients, and the whole step takes "
                f"{format_time(e.run.step_s, 3)}: benchmark and run do not belong together."
            ),
            checks=checks(
                "Were both made on the same ranks, nodes and interface?",
                "Are these the bytes that the job all-reduces: its precision, its trainable parameters, once a step?",
                "Is the step time that of an optimizer step, not of a micro-step without an all-reduce?",
            ),
        )
    if lost > 2 * high:
        text = (
            f"The benchmark all-reduces these gradients in {_span(e.benchmark_s)}, but the step lost "
            f"{format_time(lost, 3)}: the network is better than what training gets from it, so the cause is in the "
            "program."
        )
        return Verdict(
            code="not-the-collective",
            text=text,
            checks=checks(
                "Does the job use the same interface, environment variables and rank placement as the benchmark?",
                "One slow rank: compare the compute time of each; the rank that waits least is the slow one",
                "Small buckets, or unused parameters that keep gradients back; a synchronising call (.item()) in the step",
                _DATA_CHECKS[0],
            ),
        )
    if _benchmark_is_slow(e):
        return None  # the link's own rule says it, with the nominal speed
    if low > e.compute_s:
        text = (
            f"The benchmark itself needs {_span(e.benchmark_s)} for these gradients, {times(low / e.compute_s)} the "
            "compute: the step is bound by the network, and it runs as the network allows."
        )
        return Verdict(code="network-bound", text=text, checks=_FEWER_BYTES)
    text = (
        f"Communication is in view: the benchmark needs {_span(e.benchmark_s)} for these gradients, less than the "
        f"{format_time(e.compute_s, 3)} of compute, so it could hide under the backward pass, but the step lost "
        f"{format_time(lost, 3)}."
    )
    return Verdict(code="communication-exposed", text=text, checks=_OVERLAP_CHECKS)


def _benchmark_is_slow(e: Evidence) -> bool:
    """Whether the benchmark, too, stays far below the link that was named."""
    if e.benchmark_s is None or e.nominal is None or e.sent_bytes is None:
        return False
    return e.sent_bytes / e.benchmark_s[0] < WELL_USED * e.nominal.bytes_per_s


def _against_link(e: Evidence) -> Verdict | None:
    """What the step implies about the link, held against the link that was named."""
    if e.nominal is None or e.fraction is None or e.at_nominal_s is None or e.implied is None:
        return None
    low, high = e.fraction
    if low > 1.2:
        return _faster_than_link(e, e.nominal, low)
    if high is None or high >= WELL_USED:
        return _link_explains(e, e.nominal, e.at_nominal_s)
    if e.accumulation_steps > e.syncs and WELL_USED <= high * e.accumulation_steps / e.syncs <= 1.3:
        return _syncs_too_often(e, e.nominal)
    if _unit_may_be_bits(e, e.nominal) and low <= 1.05 / 8 and high >= 0.95 / 8:
        return _unit_confusion(e, e.nominal)
    if e.smaller_model_helped is not False and _is_latency_bound(e, e.nominal.bytes_per_s):
        return _latency_bound(e, e.nominal.bytes_per_s)
    return _below_nominal(e, e.nominal, low, high)


def _faster_than_link(e: Evidence, nominal: Nominal, low: float) -> Verdict:
    text = (
        f"To send these gradients over {nominal} the step would have to be longer than it is: it implies at least "
        f"{times(low)} that speed. Fewer bytes travel than assumed, or the link is another one."
    )
    return Verdict(
        code="faster-than-link",
        text=text,
        checks=checks(
            "Bytes per gradient: bf16 is 2, not 4; compression; frozen parameters send nothing",
            "Tensor, pipeline or expert parallelism: a rank all-reduces its own part of the model, not the whole",
            "Accumulation: is the step timed a micro-step that skips the all-reduce?",
            "The link's figure: bits or bytes, one NIC or all of a node, one direction or both",
        ),
    )


def _link_explains(e: Evidence, nominal: Nominal, at_nominal_s: float) -> Verdict:
    reached = (
        "" if e.fraction is None else f" The step reaches {percents(e.fraction[0], e.fraction[1])} of it."
    )
    if at_nominal_s > e.compute_s:
        needed = (e.sent_bytes or 0.0) / e.compute_s
        beat = ""
        if e.ranks_to_beat is not None and e.speedup < 1 and e.run.assumed == "weak":
            base = plural(e.run.base_ranks, "rank")
            beat = f" It takes {e.ranks_to_beat} ranks on this network to process more than {base} alone."
        text = (
            f"Network-bound: at the {nominal} you named the gradients need {format_time(at_nominal_s, 3)}, "
            f"{times(at_nominal_s / e.compute_s)} the {format_time(e.compute_s, 3)} of compute.{reached} More nodes on "
            "this link cannot help the efficiency: every rank still sends about twice the gradients in every step."
            f"{beat} The link would have to carry {rate(needed)} for communication to take no longer than compute."
        )
        return Verdict(code="network-bound", text=text, checks=_FEWER_BYTES)
    text = (
        f"Communication is in view: at {nominal} the gradients need {format_time(at_nominal_s, 3)}, less than the "
        f"{format_time(e.compute_s, 3)} of compute, so it could hide under the backward pass, but the step shows "
        f"{format_time(e.exposed_s, 3)} of it.{reached}"
    )
    return Verdict(code="communication-exposed", text=text, checks=_OVERLAP_CHECKS)


def _syncs_too_often(e: Evidence, nominal: Nominal) -> Verdict:
    steps = e.accumulation_steps
    text = (
        f"The step fits {nominal} if the gradients are all-reduced in each of the {steps} micro-steps rather than "
        f"once: accumulation is not skipping the synchronisation, and {steps - e.syncs} of {steps} are wasted."
    )
    return Verdict(
        code="sync-every-micro-step",
        text=text,
        checks=checks(
            "Forward and backward of all but the last micro-step inside no_sync() (FSDP2: set_requires_gradient_sync)",
            "Whether the trainer's wrapper knows your model's class: some silently do nothing for others",
        ),
    )


def _unit_may_be_bits(e: Evidence, nominal: Nominal) -> bool:
    """Whether a figure in bytes between nodes is one that ports are sold with in bits, such as '10 GB/s'."""
    if nominal.in_bits or e.n_nodes == 1:
        return False
    figure = nominal.bytes_per_s / GB
    named = _is_port(figure)
    # A plain number of bytes/s may be a port's bits, converted: 25e9 is 200 Gb/s.
    return named if nominal.in_bits is False else named and not _is_port(8 * figure)


def _is_port(figure: float) -> bool:
    return bool([port for port in ETHERNET_GBIT_S if abs(figure / port - 1) < 1e-6])


def _unit_confusion(e: Evidence, nominal: Nominal) -> Verdict:
    named = nominal.bytes_per_s
    implied = "" if e.implied is None else f" The step implies {rates(e.implied[0], e.implied[1])}."
    text = (
        f"The numbers fit {format_bit_rate(named / 8, 3)}, not {format_bandwidth(named, 3)}: the figure probably "
        f"counted bits. {format_bandwidth(named, 3)} is {format_bit_rate(named, 3)}; {format_bit_rate(named / 8, 3)} "
        f"is {format_bandwidth(named / 8, 3)}.{implied}"
    )
    return Verdict(
        code="unit-confusion",
        text=text,
        checks=checks(
            "ethtool <interface> or ibstat: what the port negotiated, in Mb/s or Gb/s (bits)",
            "iperf3 between the nodes prints Gbits/sec (bits); nccl-tests prints GB/s (bytes)",
            "If the link really carries that many bytes: "
            + _COLLECTIVE_TEST[0].lower()
            + _COLLECTIVE_TEST[1:],
        ),
    )


def _is_latency_bound(e: Evidence, bandwidth: float) -> bool:
    """Little to send, a short wait, and bytes that explain less than half of it."""
    if e.gradient_bytes is None or e.sent_bytes is None:
        return False
    lost = _lost_s(e)
    return (
        e.gradient_bytes <= SMALL_BUFFER
        and lost <= SHORT_STEP_S
        and e.sent_bytes / bandwidth < WELL_USED * lost
    )


def _latency_bound(e: Evidence, bandwidth: float) -> Verdict:
    sent = e.sent_bytes or 0.0
    text = (
        f"Latency-bound: {format_bytes(sent, 3)} per rank would cross {rate(bandwidth)} in "
        f"{format_time(sent / bandwidth, 3)}, but communication costs {format_time(_lost_s(e), 3)}. The rest is starting "
        f"collectives and waiting, next to a step of {format_time(e.run.step_s, 3)}; a faster link does not shorten it."
    )
    return Verdict(code="latency-bound", text=text, checks=_SMALL_STEP_CHECKS)


def _below_nominal(e: Evidence, nominal: Nominal, low: float, high: float) -> Verdict:
    implied = e.implied or (0.0, None)
    predicted = e.compute_s + (e.at_nominal_s or 0.0)
    facts = (
        f"at {nominal} the step would take at most {format_time(predicted, 3)}; it took {format_time(e.run.step_s, 3)}, "
        f"which implies {rates(implied[0], implied[1])}, {percents(low, high)} of that"
    )
    suspects = _TRANSPORT_CHECKS if e.n_nodes != 1 else checks(*BOX_CHECKS, _COLLECTIVE_TEST)
    if e.smaller_model_helped is False:
        text = (
            f"Not explained by the link: {facts}. A smaller model sends less, yet the slowdown stayed: its cause does "
            "not depend on the bytes. Suspect the wrong interface, a socket transport, the CPU, or the input pipeline."
        )
        return Verdict(code="not-explained-by-link", text=text, checks=checks(*suspects, _DATA_CHECKS[0]))
    if e.run.assumed == "weak" and 0.9 <= e.speedup <= 1.1 and high < _NO_TRANSPORT:
        return _shared_resource(e)
    # Over a network a share of a few percent upwards may well be a bad transport; inside a box it is seldom one.
    if e.run.assumed == "strong" and high < (0.25 if e.n_nodes == 1 else _NO_TRANSPORT):
        fixed = _fixed_cost(e)
        if fixed is not None:
            return fixed
    if e.backend == "gloo":
        text = (
            f"gloo moves far less than the link carries: {facts}. It copies and adds on the CPU over TCP, so cores "
            "and their number of ranks set its speed, not the NIC; NCCL would be another measurement."
        )
        return Verdict(
            code="cpu-bound-transport",
            text=text,
            checks=checks("CPU use of a rank during the all-reduce; more cores per rank", *suspects),
        )
    if high < _NO_TRANSPORT:
        text = (
            f"Not explained by the link: {facts}. Even a badly used link gives more. Suspect the wrong interface, a "
            "socket transport, the CPU, or something that is not communication at all; measure a collective alone first."
        )
        return Verdict(code="not-explained-by-link", text=text, checks=checks(*suspects, _DATA_CHECKS[0]))
    if e.n_nodes == 1:
        text = (
            f"The GPUs of this box exchange far less than their link carries: {facts}. They probably do not talk to "
            "each other directly but through the CPU's memory."
        )
        return Verdict(code="below-nominal", text=text, checks=suspects)
    port = nearest_port(implied[0], implied[1] if implied[1] is not None else implied[0])
    like = ""
    if port is not None and port * GB / 8 < 0.7 * nominal.bytes_per_s:
        like = f" They fit a {port} Gb/s path: a slower interface, or one TCP stream."
    agrees = (
        " The benchmark is as slow, so it is the transport and not the program."
        if _benchmark_is_slow(e)
        else ""
    )
    bound = ""
    if e.at_nominal_s is not None and e.at_nominal_s > e.compute_s:
        bound = (
            f" Even at full speed the gradients would need {format_time(e.at_nominal_s, 3)}, more than the compute: the "
            "job is network-bound besides."
        )
    text = (
        f"The transport runs far below the link: {facts}.{like}{agrees} Repair the transport before you change the "
        f"model.{bound}"
    )
    return Verdict(code="below-nominal", text=text, checks=suspects)


def _fixed_cost(e: Evidence) -> Verdict | None:
    """Strong scaling whose loss a cost per step explains that a smaller batch does not shorten."""
    growth = e.run.n_ranks / e.run.base_ranks
    fixed = (growth * e.run.step_s - e.run.base_step_s) / (growth - 1)
    if not 0 < fixed < e.run.base_step_s:
        return None
    text = (
        f"The link does not explain it, but strong scaling does: each rank keeps {percent(1 / growth)} of the batch, "
        f"and {format_time(fixed, 3)} of a step that do not shrink with it would give exactly these times (launches, "
        "small kernels, the optimizer, data loading). The global batch is too small for the ranks."
    )
    return Verdict(
        code="batch-too-small",
        text=text,
        checks=checks(
            f"Time the base run with {percent(1 / growth)} of its batch: is the step that much shorter?",
            "A larger global batch, or fewer ranks",
            _DATA_CHECKS[0],
        ),
    )


def _shared_resource(e: Evidence) -> Verdict:
    text = (
        f"{times(e.run.n_ranks / e.run.base_ranks)} the ranks process as many samples per second as before: all of "
        "them wait for one thing that does not grow with the ranks. That is seldom the gradients; it is data "
        "loading, storage, the CPU, or ranks that share one GPU."
    )
    return Verdict(code="shared-resource", text=text, checks=checks(*_DATA_CHECKS, _COLLECTIVE_TEST))


def _without_link(e: Evidence) -> Verdict | None:
    """The bytes are known, the link is not."""
    if e.implied is None or e.sent_bytes is None or e.nominal is not None:
        return None
    if _is_latency_bound(e, PCIE3_X16):
        return _latency_bound(e, PCIE3_X16)
    if e.run.assumed == "weak" and 0.9 <= e.speedup <= 1.1 and e.communication_s is None:
        return _shared_resource(e)
    implied = rates(e.implied[0], e.implied[1])
    high = e.implied[1] if e.implied[1] is not None else e.implied[0]
    if e.n_nodes == 1 and high < PCIE3_X16:
        text = (
            f"The step implies {implied} between the GPUs of one box, less than a PCIe 3.0 x16 slot carries: they "
            "probably do not talk to each other directly but through the CPU's memory."
        )
        return Verdict(code="slow-inside-the-box", text=text, checks=checks(*BOX_CHECKS, _COLLECTIVE_TEST))
    port = nearest_port(e.implied[0], high) if e.n_nodes != 1 else None
    like = f" That is what a {port} Gb/s network gives." if port is not None else ""
    text = (
        f"The step lost {format_time(e.exposed_s, 3)} to {format_bytes(e.sent_bytes, 3)} of gradients a rank, which "
        f"implies {implied}.{like} Name the link (nominal_bandwidth) to learn whether that is what it should give."
    )
    return Verdict(code="communication-bound", text=text, checks=checks(_COLLECTIVE_TEST, _FEWER_BYTES[0]))


def _unexplained(e: Evidence) -> Verdict:
    """Only the step times are known."""
    if e.run.assumed == "weak" and 0.9 <= e.speedup <= 1.1:
        return _shared_resource(e)
    lost = f"the step lost {format_time(e.exposed_s, 3)} beyond its {format_time(e.compute_s, 3)} of compute"
    if e.speedup < 0.98:
        code = "slowdown"
        text = f"A true slowdown: {times(e.speedup)} the samples per second of {plural(e.run.base_ranks, 'rank')}; {lost}."
    else:
        code = "poor-efficiency"
        text = (
            f"A gain, and a poor one: {times(e.speedup)} the samples per second with "
            f"{times(e.run.n_ranks / e.run.base_ranks)} the ranks, efficiency {percent(e.efficiency)}; {lost}. A longer "
            "step is no slowdown while it processes more samples."
        )
    return Verdict(
        code=code,
        text=text,
        checks=checks(
            "Give n_params (or gradient_bytes) and nominal_bandwidth: they tell whether the link explains it",
            _COLLECTIVE_TEST,
            _DATA_CHECKS[0],
        ),
    )


def notes_on(
    e: Evidence,
    fixed: float | None,
    mfu: float | None,
    padded: tuple[int, int] | None,
    samples: int | None,
) -> tuple[str, ...]:
    notes: list[str] = []
    growth = e.run.n_ranks / e.run.base_ranks
    if e.run.scaling is None:
        kept = "batch per rank" if e.run.assumed == "weak" else "global batch (the step got shorter)"
        notes.append(f"The verdict and the bandwidths take the {kept} as kept.")
    if fixed is not None:
        notes.append(
            f"If the batch per rank was cut by {growth:g}, about {format_time(fixed, 3)} of a step are fixed cost that "
            "a smaller batch does not shorten."
        )
    if e.n_nodes is not None and e.gradient_bytes is not None and 1 < e.n_nodes < e.run.n_ranks:
        less = (e.n_nodes - 1) / e.n_nodes * e.run.n_ranks / (e.run.n_ranks - 1)
        if less < 0.9:
            notes.append(
                f"A library that reduces inside the node first (NCCL's tree does) sends {percent(less)} of these bytes "
                "between the nodes; the bandwidth that the step implies is then that much lower."
            )
    if e.backend == "gloo":
        notes.append(
            "gloo copies and adds on the CPU: its bandwidth says nothing about what NCCL would reach."
        )
    if e.implied is not None and e.implied[0] < 1e5:
        notes.append(
            f"{rate(e.implied[0])} is so little that a unit may be off: are the times really seconds?"
        )
    if mfu is not None:
        notes.append(_mfu_note(mfu))
    if padded is not None and samples is not None and padded[1]:
        notes.append(
            f"{plural(padded[1], 'sample')} of {padded[0]} per epoch are repeats, so that each of {e.run.n_ranks} "
            f"ranks gets as many ({percent(padded[1] / padded[0])}): harmless in training, wrong in a metric."
        )
    return tuple(notes)


def _mfu_note(mfu: float) -> str:
    if mfu > 1:
        return (
            f"MFU {percent(mfu)} is more than the hardware has: FLOPs counted twice, or a peak too low (per rank? the "
            "right precision?)."
        )
    low = " That is low even for one GPU; look at the single rank first." if mfu < 0.1 else ""
    return f"MFU {percent(mfu)} of the peak given; it must be the dense peak, without sparsity.{low}"
