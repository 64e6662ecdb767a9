"""One step taken apart: what its parts say, and whether accumulation skips the synchronisation."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab.checks import count
from shardlab.models.diagnose_common import (
    PCIE3_X16,
    SHORT_STEP_S,
    WELL_USED,
    Verdict,
    checks,
    nominal_link,
    optional,
    percent,
    rate,
    report,
    seconds,
    size_bytes,
    times,
)
from shardlab.units import format_bytes, format_time


@dataclass(frozen=True)
class BreakdownDiagnosis:
    """One step and its parts, seconds.

    Attributes:
        step_s, communication_s, compute_s, data_s: as measured; None where unknown.
        communication_share: communication over the step.
        step_without_communication_s: what is left if communication were free: the most a faster link can give.
        communication_to_compute: their ratio, or None.
        overlapped_s: by how much the parts together are longer than the step, 0 if they are not.
        implied_bandwidth: bytes/s, if the sent bytes are known.
        verdict: in words.
    """

    step_s: float
    communication_s: float
    compute_s: float | None
    data_s: float | None
    communication_share: float
    step_without_communication_s: float
    communication_to_compute: float | None
    overlapped_s: float
    implied_bandwidth: float | None
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = [
            ("step", format_time(self.step_s)),
            (
                "communication",
                f"{format_time(self.communication_s)}, {percent(self.communication_share)} of the step",
            ),
        ]
        if self.compute_s is not None and self.communication_to_compute is not None:
            ratio = times(self.communication_to_compute)
            rows.append(("compute", f"{format_time(self.compute_s)}; communication is {ratio} that"))
        if self.data_s is not None:
            rows.append(("data", format_time(self.data_s)))
        rows.append(("without communication", format_time(self.step_without_communication_s)))
        if self.implied_bandwidth is not None:
            rows.append(("implied bandwidth", rate(self.implied_bandwidth)))
        return report("One step and its parts", rows, self.verdict)


def breakdown(
    step_s: float | str,
    communication_s: float | str,
    compute_s: float | str | None = None,
    data_s: float | str | None = None,
    sent_bytes: float | str | None = None,
    nominal_bandwidth: float | str | None = None,
) -> BreakdownDiagnosis:
    """Judge a profile of one step.

    Args:
        step_s: the whole step.
        communication_s: time in collectives.
        compute_s: forward and backward.
        data_s: waiting for or loading data. All in seconds, or text with a unit.
        sent_bytes: what one rank sends in the step.
        nominal_bandwidth: the link it crosses.

    Raises:
        ValueError: an argument is out of range, or a part is longer than the step.
    """
    step = seconds("step_s", step_s)
    communication = seconds("communication_s", communication_s)
    compute, data = optional(seconds, "compute_s", compute_s), optional(seconds, "data_s", data_s)
    for name, part in (("communication_s", communication), ("compute_s", compute), ("data_s", data)):
        if part is not None and part > step * 1.001:
            raise ValueError(f"{name} must not exceed step_s {format_time(step)}, not {format_time(part)}")
    sent = optional(size_bytes, "sent_bytes", sent_bytes)
    link = (
        None
        if nominal_bandwidth is None
        else nominal_link("nominal_bandwidth", nominal_bandwidth).bytes_per_s
    )
    return BreakdownDiagnosis(
        step_s=step,
        communication_s=communication,
        compute_s=compute,
        data_s=data,
        communication_share=communication / step,
        step_without_communication_s=step - communication,
        communication_to_compute=None if compute is None else communication / compute,
        overlapped_s=max(communication + (compute or 0.0) + (data or 0.0) - step, 0.0),
        implied_bandwidth=None if sent is None else sent / communication,
        verdict=_breakdown_verdict(step, communication, compute, data, sent, link),
    )


def _breakdown_verdict(
    step: float,
    communication: float,
    compute: float | None,
    data: float | None,
    sent: float | None,
    link: float | None,
) -> Verdict:
    useful = step - communication if compute is None else compute
    if data is not None and data > max(communication, useful):
        text = f"Data takes {format_time(data, 3)} of a {format_time(step, 3)} step, more than anything else: feed it faster."
        return Verdict(
            code="data-loading",
            text=text,
            checks=(
                "Synthetic data in memory: if that is fast, the input pipeline is the limit; more loader workers",
            ),
        )
    if communication <= 0.1 * step:
        text = f"Communication is {percent(communication / step)} of the step: there is little to gain from a better network."
        return Verdict(code="compute-bound", text=text, checks=())
    if communication < useful:
        text = (
            f"Communication is {percent(communication / step)} of the step and shorter than compute: a backward pass that "
            "overlaps with it can hide much of it."
        )
        return Verdict(
            code="communication-exposed",
            text=text,
            checks=(
                "A profile: do the collectives start during the backward pass?",
                "A larger batch per rank",
            ),
        )
    reference = PCIE3_X16 if link is None else link
    explained = None if sent is None else sent / reference / communication
    # Without the bytes only a compute of a few milliseconds is a safe sign.
    small = step <= SHORT_STEP_S and (
        useful <= 0.1 * SHORT_STEP_S if explained is None else explained < WELL_USED
    )
    if small:
        bytes_say = ""
        if sent is not None and explained is not None:
            bytes_say = f" {format_bytes(sent, 3)} would cross {rate(reference)} in {percent(explained)} of that time."
        text = (
            f"Latency-bound: communication is {percent(communication / step)} of a {format_time(step, 3)} step, "
            f"{times(communication / useful)} the {format_time(useful, 3)} of compute.{bytes_say} A step this short is the "
            "size of what starting collectives costs, so no link upgrade repairs it: amortise them, or stay on one GPU."
        )
        return Verdict(
            code="latency-bound",
            text=text,
            checks=checks(
                "A larger batch per rank, or accumulation with no_sync(): the same collectives serve more samples",
                "Fewer, larger collectives (buckets, fused gradients)",
                f"One GPU alone would take about {format_time(step - communication, 3)} a step",
            ),
        )
    text = (
        f"Communication-bound: {percent(communication / step)} of the step, {times(communication / useful)} the compute. "
        f"Without it the step would take {format_time(step - communication, 3)}."
    )
    return Verdict(
        code="communication-bound",
        text=text,
        checks=checks(
            "Is it moving bytes or waiting? The rank with the shortest collectives is the one the others wait for",
            "Bytes over time against the link: give sent_bytes and nominal_bandwidth",
            "Fewer bytes or fewer synchronisations: bf16 gradients, accumulation with no_sync(), a larger batch",
        ),
    )


@dataclass(frozen=True)
class AccumulationDiagnosis:
    """An optimizer step of one micro-step against one of k, seconds.

    Attributes:
        k: micro-steps accumulated.
        step_1_s, step_k_s: as measured.
        ratio: ``step_k_s / (k step_1_s)``: 1 if accumulating saves nothing.
        micro_step_s, sync_s: compute of a micro-step and synchronisation, measured or from the two times.
        if_synced_every_s: ``k step_1_s``, what k synchronised micro-steps take.
        if_skipped_s: ``k micro_step_s + sync_s``, with one synchronisation; None while the parts are unknown.
        throughput_gain: the first over the second: what skipping is worth at this k.
        limit_gain: the same for very many micro-steps: ``step_1_s / micro_step_s``.
        verdict: in words.
    """

    k: int
    step_1_s: float
    step_k_s: float
    ratio: float
    micro_step_s: float | None
    sync_s: float | None
    if_synced_every_s: float
    if_skipped_s: float | None
    throughput_gain: float | None
    limit_gain: float | None
    verdict: Verdict

    def text(self) -> str:
        """The diagnosis for people."""
        rows = [
            ("1 micro-step", format_time(self.step_1_s)),
            (
                f"{self.k} micro-steps",
                f"{format_time(self.step_k_s)}, {percent(self.ratio)} of {self.k} single steps",
            ),
        ]
        if self.if_skipped_s is not None and self.micro_step_s is not None and self.sync_s is not None:
            parts = f"{format_time(self.micro_step_s)} compute, {format_time(self.sync_s)} synchronisation"
            rows.append(("a step's parts", parts))
            rows.append(("synchronised once", format_time(self.if_skipped_s)))
        if self.throughput_gain is not None and self.limit_gain is not None:
            gain = f"{times(self.throughput_gain)}, and {times(self.limit_gain)} at most for many micro-steps"
            rows.append(("worth", gain))
        return report("Gradient accumulation", rows, self.verdict)


def accumulation(
    step_1_s: float | str,
    step_k_s: float | str,
    k: int,
    compute_s: float | str | None = None,
    sync_s: float | str | None = None,
) -> AccumulationDiagnosis:
    """Does accumulating k micro-steps skip k-1 synchronisations?

    It should take ``t(k) = k compute + sync``. If it takes ``k t(1)``, every micro-step synchronises.

    Args:
        step_1_s: an optimizer step without accumulation.
        step_k_s: one of k micro-steps of the same size.
        k: 2 or more.
        compute_s: forward and backward without synchronisation (one rank alone, or under no_sync), if measured.
        sync_s: the synchronisation, if measured.

    Raises:
        ValueError: an argument is out of range, or a part is longer than the step.
    """
    one, many = seconds("step_1_s", step_1_s), seconds("step_k_s", step_k_s)
    steps = count("k", k, least=2)
    micro, sync = optional(seconds, "compute_s", compute_s), optional(seconds, "sync_s", sync_s)
    for name, part in (("compute_s", micro), ("sync_s", sync)):
        if part is not None and part > one:
            raise ValueError(f"{name} must not exceed step_1_s {format_time(one)}, not {format_time(part)}")
    ratio = many / (steps * one)
    if micro is None and sync is not None:
        micro = one - sync
    known = micro is not None
    if micro is None and ratio < 0.97:
        # Two equations, two unknowns: t(1) = c + s, t(k) = k c + s.
        micro = min(max((many - one) / (steps - 1), 0.0), one)
    if micro is not None and sync is None:
        sync = one - micro
    skipped = None if micro is None or sync is None else steps * micro + sync
    return AccumulationDiagnosis(
        k=steps,
        step_1_s=one,
        step_k_s=many,
        ratio=ratio,
        micro_step_s=micro,
        sync_s=sync,
        if_synced_every_s=steps * one,
        if_skipped_s=skipped,
        throughput_gain=steps * one / skipped if skipped else None,
        limit_gain=one / micro if micro else None,
        verdict=_accumulation_verdict(one, many, steps, ratio, skipped if known else None),
    )


_SKIP_CHECKS = (
    "DDP: forward and backward of all micro-steps but the last inside no_sync(); FSDP2: set_requires_gradient_sync(False)",
    "A wrapper that does nothing for a class it does not know: count the collectives of one step in a profile",
    "ZeRO-2 and 3 reduce in every micro-step by design: there the saving does not exist",
)


def _accumulation_verdict(one: float, many: float, k: int, ratio: float, skipped: float | None) -> Verdict:
    every = k * one
    if skipped is not None and every - skipped < 0.05 * every:
        text = (
            f"There is nothing to skip: synchronisation is {percent(1 - skipped / every)} of the time, so {k} micro-steps "
            "take about as long either way."
        )
        return Verdict(code="nothing-to-skip", text=text, checks=())
    if many > 1.1 * every:
        text = (
            f"{k} micro-steps take {times(many / one)} a single step, more than {k} single steps: accumulation adds work "
            "of its own."
        )
        return Verdict(
            code="slower-than-single-steps",
            text=text,
            checks=(
                "Micro-steps of the same size? Memory that spills, data loading, logging in every micro-step",
            ),
        )
    if skipped is not None:
        if abs(many - every) < abs(many - skipped):
            text = (
                f"Accumulation is not skipping synchronisation: {k} micro-steps take {format_time(many, 3)}, as long as "
                f"{k} single steps ({format_time(every, 3)}), where one synchronisation would make it "
                f"{format_time(skipped, 3)}, {times(every / skipped)} the throughput."
            )
            return Verdict(code="not-skipping", text=text, checks=_SKIP_CHECKS)
        text = (
            f"Accumulation skips synchronisation: {format_time(many, 3)} is close to the {format_time(skipped, 3)} of "
            f"one synchronisation, against {format_time(every, 3)} with {k}."
        )
        return Verdict(code="skipping", text=text, checks=())
    if ratio >= 0.97:
        text = (
            f"{k} micro-steps take {k} times a single step ({percent(ratio)}): accumulation is not skipping "
            "synchronisation, unless synchronising costs next to nothing here."
        )
        return Verdict(
            code="not-skipping",
            text=text,
            checks=checks("Time one rank alone (or compute_s under no_sync): that settles it", *_SKIP_CHECKS),
        )
    micro = (many - one) / (k - 1)
    text = (
        f"Accumulation saves time: the two times fit {format_time(micro, 3)} of compute per micro-step and "
        f"{format_time(one - micro, 3)} paid once per optimizer step."
    )
    return Verdict(code="skipping", text=text, checks=())
