"""Gradients leave in buckets while the backward pass still runs: which bucket size hides most?"""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import R10, Experiment, Preset, decades, slider
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.overlap import DDP_BUCKET_BYTES, BucketedStep, bucketed_step

_MIB = 2**20
_RANKS = tuple([2**exponent for exponent in range(1, 13)])
# 25 MiB is DDP's default.
_BUCKETS_MIB = (8, 16, 25, 32, 64, 128, 256, 512, 1024)
# Each point of the curve plays a whole step.
_CURVE = tuple([float(2**exponent * _MIB) for exponent in range(3, 12)])
# With more buckets, those that follow each other without a gap are drawn as one bar.
_DRAWN = 24
_FORWARD = 1 / 3


class _Setting:
    """What the reader has set, and the step played at once."""

    def __init__(
        self, n_bytes: float, bucket: float, ranks: int, bandwidth: float, latency_s: float, compute_s: float
    ) -> None:
        self.n_bytes, self.bucket, self.ranks, self.compute_s = n_bytes, bucket, ranks, compute_s
        self.bandwidth, self.latency_s = bandwidth, latency_s
        self.step = self.play(bucket)
        self.whole_s = ring_allreduce_time_s(n_bytes, ranks, bandwidth, latency_s)
        self.curve = [(size, self.play(size).step_time_s) for size in _CURVE]
        self.best = min(self.curve, key=lambda point: point[1])

    def play(self, bucket: float) -> BucketedStep:
        """One step with buckets of this size; a third of the compute is the forward pass."""
        forward = _FORWARD * self.compute_s
        return bucketed_step(
            self.ranks,
            forward,
            self.compute_s - forward,
            self.n_bytes,
            self.bandwidth,
            self.latency_s,
            bucket,
        )


def picture(
    bucket_mib: float,
    gradient_bytes: float,
    ranks: int,
    bandwidth: float,
    latency_s: float,
    compute_s: float,
) -> dict[str, Any]:
    """One step with its buckets on a time line, and the step time over the bucket size."""
    setting = _Setting(gradient_bytes, bucket_mib * _MIB, ranks, bandwidth, latency_s, compute_s)
    return chart.chart(
        panels=[_step_panel(setting), _curve_panel(setting)],
        words=_sentences(setting),
        readouts=_readouts(setting),
    )


def _runs(step: BucketedStep) -> list[tuple[float, float, int]]:
    """(start, end, number of buckets): each bucket, or, where there are many, each stretch without a gap."""
    many = len(step.buckets) > _DRAWN
    found: list[tuple[float, float, int]] = []
    for bucket in step.buckets:
        if many and found and bucket.start_s <= found[-1][1]:
            start, _, count = found[-1]
            found[-1] = (start, bucket.end_s, count + 1)
        else:
            found.append((bucket.start_s, bucket.end_s, 1))
    # Gaps between all of them: what is left is drawn, the words have the numbers.
    return found if len(found) <= 4 * _DRAWN else found[:: len(found) // (2 * _DRAWN)]


def _step_panel(setting: _Setting) -> dict[str, Any]:
    step = setting.step
    end, most = step.step_time_s, 1.2 * max(setting.compute_s + setting.whole_s, step.step_time_s)
    spans = [
        chart.span(0, 0.0, step.forward_s, "compute"),
        chart.span(0, step.forward_s, step.forward_s + step.backward_s, "compute", "forward, backward"),
    ]
    runs = _runs(step)
    for index, (start, finish, _) in enumerate(runs):
        label = words.plural(len(step.buckets), "bucket") if index == len(runs) - 1 else ""
        spans.append(chart.span(1, start, finish, "communication", label))
    return chart.timeline(
        title="One step",
        lanes=["compute", "all-reduce", "bracket"],
        time=chart.time_axis("time", most, about=5),
        spans=spans,
        brackets=[
            chart.bracket(
                2,
                max(setting.compute_s, setting.whole_s),
                setting.compute_s + setting.whole_s,
                end,
                words.seconds(end),
            )
        ],
        alt=f"Time line of a step: compute {words.seconds(setting.compute_s)}, {words.plural(len(step.buckets), 'bucket')} "
        f"of gradients with {words.seconds(step.communication_s)} of all-reduce, of which "
        f"{words.seconds(step.exposed_communication_s)} run after the backward pass; the step takes {words.seconds(end)}.",
    )


def _curve_panel(setting: _Setting) -> dict[str, Any]:
    full, none = max(setting.compute_s, setting.whole_s), setting.compute_s + setting.whole_s
    # The reader's own step is always inside, whatever is cut off the curve.
    highest = max([none, setting.step.step_time_s] + [min(time, 3 * none) for _, time in setting.curve])
    ticks = [(8.0, "8"), (64.0, "64"), (512.0, "512")]
    y = chart.time_axis("step", 1.08 * highest)
    unit = y["label"].split("(")[-1].rstrip(")")
    y["label"] = ""
    return chart.lines(
        title=f"Step over bucket size ({unit})",
        x=chart.axis(
            "bucket (MiB)", (_CURVE[0] / _MIB, _CURVE[-1] / _MIB), ticks, scale="log", control="bucket_mib"
        ),
        y=y,
        curves=[
            chart.series("step", "compute", [(size / _MIB, time) for size, time in setting.curve], "strong")
        ],
        limits=[
            chart.limit(none, "no overlap", side="above" if none < 0.9 * highest else "below", align="end"),
            chart.limit(full, "full overlap", side="below", align="end"),
        ],
        marks=[
            chart.mark(
                setting.bucket / _MIB,
                setting.step.step_time_s,
                words.seconds(setting.step.step_time_s),
                "compute",
            )
        ],
        alt=f"Step time over the size of a bucket, on a log scale: least with {_mib(setting.best[0])}, "
        f"{words.seconds(setting.best[1])}; with one bucket {words.seconds(none)}; with everything hidden {words.seconds(full)}.",
    )


def _mib(size: float) -> str:
    return words.plain_number(size / _MIB) + "\u00a0MiB"


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    step = setting.step
    hidden = max(step.communication_s - step.exposed_communication_s, 0.0)
    return [
        chart.readout("step", words.seconds(step.step_time_s), f"compute {words.seconds(setting.compute_s)}"),
        chart.readout("buckets", str(len(step.buckets)), f"of {_mib(setting.bucket)}"),
        chart.readout(
            "all-reduce",
            words.seconds(step.communication_s),
            f"in one piece {words.seconds(setting.whole_s)}",
            "communication-text",
        ),
        chart.readout(
            "hidden", words.percent(hidden / step.communication_s), "of the all-reduce", "communication-text"
        ),
        chart.readout("least", words.seconds(setting.best[1]), f"near {_mib(setting.best[0])}"),
    ]


def _sentences(setting: _Setting) -> list[str]:
    return [_verdict(setting), _force(setting), _limits(setting)]


def _verdict(setting: _Setting) -> str:
    step = setting.step
    hidden = max(step.communication_s - step.exposed_communication_s, 0.0)
    return (
        f"Buckets of {_mib(setting.bucket)} hide {words.percent(hidden / step.communication_s)} of the all-reduce: a step "
        f"takes {words.seconds(step.step_time_s)}, {words.seconds(step.exposed_communication_s)} longer than its compute."
    )


def _force(setting: _Setting) -> str:
    step, each_s = setting.step, 2 * (setting.ranks - 1) * setting.latency_s
    if len(step.buckets) == 1:
        return "One bucket holds everything, so it can't start before the backward pass has ended: nothing overlaps."
    paid = f"Each of {len(step.buckets)} buckets pays {words.seconds(each_s)} of latency"
    if step.communication_s > 1.5 * setting.whole_s:
        return f"{paid}, which makes the all-reduce {words.ratio(step.communication_s / setting.whole_s)} as long as in one piece: the buckets are too small."
    return f"{paid}; the last one has no compute left to hide under."


def _limits(setting: _Setting) -> str:
    best = setting.play(setting.best[0])
    if len(best.buckets) == 1:
        bound = ", everything in one: more buckets would pay more latency than they hide"
    elif best.communication_s > best.backward_s:
        bound = ": the all-reduces take longer than the backward pass, so no bucket size hides them all"
    else:
        bound = ": only the last bucket is left to wait for"
    return (
        f"{words.plural(setting.ranks, 'rank')} send {words.n_bytes(setting.n_bytes)} of gradients at "
        f"{words.bandwidth(setting.bandwidth)}. The least is {words.seconds(setting.best[1])} near {_mib(setting.best[0])}"
        f"{bound}. The model lets communication slow no computing down, which it does on a GPU."
    )


def _preset(name: str, label: str, source: str, **values: Any) -> Preset:
    return Preset(name=name, label=label, values=values, source=source)


EXPERIMENT = Experiment(
    name="overlap-timeline",
    title="Overlap, bucket by bucket",
    question="How much of the all-reduce hides under the backward pass, and what is the right bucket?",
    controls=(
        slider("bucket_mib", "Bucket (MiB)", _BUCKETS_MIB, DDP_BUCKET_BYTES // _MIB),
        slider("gradient_bytes", "Gradients P", decades(1e8, 2e9), 1e9, "bytes"),
        slider("ranks", "Ranks N", _RANKS, 64, whole=True),
        slider("bandwidth", "Bandwidth B", decades(1e9, 5e11, R10), 10e9, "bytes/s"),
        slider("latency_s", "Latency per hop", decades(1e-7, 1e-4), 10e-6, "seconds"),
        slider("compute_s", "Compute, one rank", decades(1e-2, 1, R10), 0.1, "seconds"),
    ),
    presets=(
        _preset(
            "source",
            "The source's cluster, 64 ranks",
            "The source text's toy: 1 GB of gradients, 10 GB/s, 10 µs per hop, 100 ms; 25 MiB is DDP's default.",
        ),
        _preset(
            "h100-nvlink",
            "8×H100 NVLink",
            "436 GB/s: all-reduce bus bandwidth measured in one node (Hugging Face, Ultra-Scale Playbook, 2025); "
            "3.4 µs: NCCL, tuning.cc. Gradients and compute are the source's.",
            ranks=8,
            bandwidth=436e9,
            latency_s=3.4e-6,
        ),
        _preset(
            "h100-8-nodes",
            "8 nodes of 8×H100",
            "99.6 GB/s: all-reduce bus bandwidth measured across 8 nodes (Ultra-Scale Playbook, 2025), latency included, "
            "so that slider stands at its least. Gradients and compute are the source's.",
            ranks=64,
            bandwidth=99.6e9,
            latency_s=1e-7,
        ),
        _preset(
            "one-bucket",
            "Everything in one bucket",
            "The source's toy with a bucket larger than all gradients: the sum, as if there were no overlap.",
            bucket_mib=1024,
        ),
        _preset(
            "many-ranks",
            "4,096 ranks, DDP's bucket",
            "The source's toy on many ranks: latency is paid for every bucket.",
            ranks=4096,
        ),
    ),
    picture=picture,
)
