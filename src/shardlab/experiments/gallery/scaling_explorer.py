"""When do more data-parallel ranks help? Speedup, efficiency and one step on a time line."""

from __future__ import annotations

import math
from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import R10, Experiment, Preset, choice, decades, slider, toggle
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.scaling import (
    DataParallelStep,
    break_even_ranks,
    data_parallel,
    data_parallel_curve,
    efficiency_cap,
    strong_speedup_cap,
)

MOST_RANKS = 4096
_POWERS = {2**exponent for exponent in range(13)}
_RANK_STOPS = tuple(sorted(_POWERS.union({3 * 2**exponent for exponent in range(11)})))
# The curves bend where N is small; beyond that one point an octave is enough.
_CURVE_RANKS = _POWERS.union({3, 6})

SOURCE_TABLES: dict[float, tuple[tuple[int, float, float], ...]] = {
    10e9: ((1, 1.00, 1.000), (8, 2.91, 0.363), (64, 21.47, 0.335), (512, 165.25, 0.323)),
    2e9: ((8, 0.82, 0.103), (64, 5.90, 0.092), (512, 46.20, 0.090)),
}
"""The source text's printed tables: bandwidth (bytes/s) to rows (N, weak speedup, efficiency).

Both with 1 GB of gradients, 10 µs per hop, 100 ms of compute, no overlap.
"""


_BAND = "no overlap to full overlap"
_REFERENCE = "the source's table"


def picture(
    ranks: int,
    scaling: str,
    bandwidth: float,
    gradient_bytes: float,
    latency_s: float,
    compute_s: float,
    overlap: float,
    source_points: bool,
) -> dict[str, Any]:
    """Speedup and efficiency over N for weak and strong scaling, and one step at the chosen N."""
    setting = _Setting(ranks, scaling, bandwidth, gradient_bytes, latency_s, compute_s, overlap)
    reference = _nearest_table(bandwidth) if source_points else ()
    return chart.chart(
        panels=[
            _speedup_panel(setting, reference),
            _efficiency_panel(setting, reference),
            _step_panel(setting),
        ],
        words=_sentences(setting),
        readouts=_readouts(setting),
    )


class _Setting:
    """What the reader has set, and the models' answers to it, each computed once."""

    def __init__(
        self,
        ranks: int,
        scaling: str,
        bandwidth: float,
        gradient_bytes: float,
        latency_s: float,
        compute_s: float,
        overlap: float,
    ) -> None:
        self.ranks = ranks
        self.scaling = scaling
        self.bandwidth = bandwidth
        self.gradient_bytes = gradient_bytes
        self.latency_s = latency_s
        self.compute_s = compute_s
        self.overlap = overlap
        counts = sorted(_CURVE_RANKS.union({ranks}))
        step = (compute_s, gradient_bytes, bandwidth, latency_s)
        self.weak = data_parallel_curve(counts, *step, scaling="weak", overlap=overlap)
        self.strong = data_parallel_curve(counts, *step, scaling="strong", overlap=overlap)
        self.chosen, self.other = (self.weak, self.strong) if scaling == "weak" else (self.strong, self.weak)
        self.step = data_parallel(ranks, *step, scaling=scaling, overlap=overlap)
        # Speedup with nothing overlapped, and with everything.
        self.bracket = self.chosen[counts.index(ranks)][3:]
        self.efficiency_limit = efficiency_cap(compute_s, gradient_bytes, bandwidth, overlap=overlap)
        self.strong_limit = strong_speedup_cap(compute_s, gradient_bytes, bandwidth)
        self.break_even = break_even_ranks(compute_s, gradient_bytes, bandwidth, latency_s, scaling, overlap)


def _nearest_table(bandwidth: float) -> tuple[tuple[int, float, float], ...]:
    """The source's table whose bandwidth is closer on a log scale."""
    return SOURCE_TABLES[10e9] if bandwidth > math.sqrt(10e9 * 2e9) else SOURCE_TABLES[2e9]


def _ranks_axis() -> dict[str, Any]:
    return chart.axis(
        "ranks N",
        (1, MOST_RANKS),
        [(count, str(count)) for count in (1, 8, 64, 512, 4096)],
        scale="log",
        control="ranks",
    )


def _speedup_panel(setting: _Setting, reference: tuple[tuple[int, float, float], ...]) -> dict[str, Any]:
    lowest = min(1 / 3, min([point[1] for point in setting.weak + setting.strong]))
    floor = 10.0 ** max(math.floor(math.log10(lowest)), -4)
    low = setting.strong_limit < 1
    # Half a decade is enough where nothing falls deeper, and no limit's name stands beneath its line.
    floor = 3 * floor if lowest > 3.3 * floor and not low else floor
    limits = [chart.limit(1.0, "one rank", align="end", side="above" if low else "below")]
    if floor < setting.strong_limit < MOST_RANKS:
        name = f"limit of strong {words.ratio(setting.strong_limit)}"
        limits.append(
            chart.limit(
                setting.strong_limit, name, "below" if low else "above", align="start" if low else "end"
            )
        )
    other = "strong" if setting.scaling == "weak" else "weak"
    step = setting.step
    return chart.lines(
        title="Speedup over one rank (×)",
        x=_ranks_axis(),
        y=chart.axis("", (floor, MOST_RANKS), chart.log_ticks(floor, MOST_RANKS), scale="log"),
        curves=[
            chart.series("ideal", "muted", [(1, 1.0), (MOST_RANKS, float(MOST_RANKS))], "thin", dashed=True),
            chart.series(other, "compute", [point[:2] for point in setting.other]),
            chart.series(setting.scaling, "compute", [point[:2] for point in setting.chosen], "strong"),
        ],
        bands=[
            chart.band(_BAND, "compute", [(n, slow, fast) for n, _, _, slow, fast in setting.chosen]),
        ],
        limits=limits,
        marks=[chart.mark(count, speedup, _REFERENCE, shape="ring") for count, speedup, _ in reference]
        + [chart.mark(step.n_ranks, step.speedup, words.ratio(step.speedup), "compute")],
        alt=f"Speedup over the number of ranks, both on log scales. At {words.plural(step.n_ranks, 'rank')} "
        f"{setting.scaling} scaling reaches {words.ratio(step.speedup)}; at {MOST_RANKS} ranks weak scaling reaches "
        f"{words.ratio(setting.weak[-1][1])} and strong scaling "
        f"{words.ratio(setting.strong[-1][1])}.",
    )


def _efficiency_panel(setting: _Setting, reference: tuple[tuple[int, float, float], ...]) -> dict[str, Any]:
    other = "strong" if setting.scaling == "weak" else "weak"
    step = setting.step
    return chart.lines(
        title="Efficiency: speedup / N (%)",
        x=_ranks_axis(),
        y=chart.axis("", (0.0, 1.0), chart.even_ticks(1.0, 0.01)),
        curves=[
            chart.series(other, "compute", [(n, kept) for n, _, kept, _, _ in setting.other]),
            chart.series(
                setting.scaling, "compute", [(n, kept) for n, _, kept, _, _ in setting.chosen], "strong"
            ),
        ],
        bands=[
            chart.band(_BAND, "compute", [(n, slow / n, fast / n) for n, _, _, slow, fast in setting.chosen]),
        ],
        limits=[
            chart.limit(
                setting.efficiency_limit,
                f"limit of weak {words.percent(setting.efficiency_limit)}",
                side="above" if setting.efficiency_limit < 0.5 else "below",
                align="end" if setting.efficiency_limit < 0.5 else "start",
            )
        ],
        marks=[chart.mark(count, efficiency, _REFERENCE, shape="ring") for count, _, efficiency in reference]
        + [chart.mark(step.n_ranks, step.efficiency, words.percent(step.efficiency), "compute")],
        alt=f"Efficiency over the number of ranks. At {words.plural(step.n_ranks, 'rank')} {setting.scaling} scaling "
        f"keeps {words.percent(step.efficiency)}; for many ranks weak scaling tends to at most "
        f"{words.percent(setting.efficiency_limit)}, strong scaling to nothing.",
    )


def _step_panel(setting: _Setting) -> dict[str, Any]:
    step = setting.step
    best, worst = step.step_time_bracket_s
    start = (1 - setting.overlap) * step.compute_time_s
    most = 1.25 * max(worst, setting.compute_s)
    return chart.timeline(
        title=f"One step at N = {step.n_ranks}, {setting.scaling} scaling",
        lanes=["compute", "all-reduce", "step"],
        time=chart.time_axis("time", most, about=5),
        spans=[
            chart.span(0, 0.0, step.compute_time_s, "compute", words.seconds(step.compute_time_s)),
            chart.span(
                1,
                start,
                start + step.communication_time_s,
                "communication",
                words.seconds(step.communication_time_s),
            ),
        ],
        limits=[
            chart.limit(
                setting.compute_s, "one rank alone", align="end" if setting.compute_s > most / 2 else "start"
            )
        ],
        brackets=[chart.bracket(2, best, worst, step.step_time_s, words.seconds(step.step_time_s))],
        alt=f"Time line of one step: compute {words.seconds(step.compute_time_s)}, ring all-reduce "
        f"{words.seconds(step.communication_time_s)}, together {words.seconds(step.step_time_s)}; with full overlap "
        f"{words.seconds(best)}, with none {words.seconds(worst)}.",
    )


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    step = setting.step
    slow, fast = setting.bracket
    best, worst = step.step_time_bracket_s
    return [
        chart.readout("speedup", words.ratio(step.speedup), f"{words.ratio(slow)} to {words.ratio(fast)}"),
        chart.readout("efficiency", words.percent(step.efficiency), f"{setting.scaling} scaling"),
        chart.readout(
            "step time", words.seconds(step.step_time_s), f"{words.seconds(best)} to {words.seconds(worst)}"
        ),
        chart.readout(
            "ring all-reduce",
            words.seconds(step.communication_time_s),
            _hidden_note(step),
            "communication-text",
        ),
        chart.readout(
            "share of the step",
            words.percent(step.communication_share),
            "exposed all-reduce",
            "communication-text",
        ),
    ]


def _hidden_note(step: DataParallelStep) -> str:
    hidden = step.communication_time_s - step.exposed_communication_s
    return f"{words.seconds(hidden)} hidden" if hidden > 0 else "none of it hidden"


def _sentences(setting: _Setting) -> list[str]:
    step = setting.step
    if step.n_ranks == 1:
        return [
            f"One rank has nobody to agree with: a step is {words.seconds(setting.compute_s)} of compute and no "
            "communication."
        ]
    return [_bottleneck(setting), _gain(setting), _limit(setting) + " " + _break_even(setting)]


def _bottleneck(setting: _Setting) -> str:
    step = setting.step
    compute, communication = words.seconds(step.compute_time_s), words.seconds(step.communication_time_s)
    if step.bottleneck == "communication":
        return (
            f"Communication is the bottleneck: the ring all-reduce takes {communication}, compute {compute}."
        )
    return f"Compute is the bottleneck: it takes {compute}, the ring all-reduce {communication}."


def _gain(setting: _Setting) -> str:
    step = setting.step
    before, after = words.seconds(setting.compute_s), words.seconds(step.step_time_s)
    verdict = "faster" if step.speedup > 1 else "slower"
    if 0.995 < step.speedup < 1.005:
        verdict = f"hardly {verdict}"
    if setting.scaling == "weak":
        return (
            f"Weak scaling: a step takes {after} instead of {before}, for {step.n_ranks} times the samples: "
            f"{words.ratio(step.speedup)} the speed of one rank ({verdict}), {words.percent(step.efficiency)} efficiency. "
            + _balance(setting)
        )
    return (
        f"Strong scaling: each rank computes {words.seconds(step.compute_time_s)} of the same batch, and a step takes "
        f"{after} instead of {before}: {words.ratio(step.speedup)} the speed of one rank ({verdict}). "
        + _balance(setting)
    )


def _balance(setting: _Setting) -> str:
    """The bandwidth at which the all-reduce takes as long as compute."""
    step = setting.step
    left = step.compute_time_s - 2 * (step.n_ranks - 1) * setting.latency_s
    if left <= 0:
        return "Latency alone takes at least as long as compute."
    bandwidth = ring_allreduce_sent_bytes(setting.gradient_bytes, step.n_ranks) / left
    return f"At {words.bandwidth(bandwidth)} the two would take equally long."


def _limit(setting: _Setting) -> str:
    traffic = words.seconds(2 * setting.gradient_bytes / setting.bandwidth)
    if setting.scaling == "weak":
        if setting.efficiency_limit >= 1:
            return f"The all-reduce tends to 2P/B = {traffic} plus latency and hides under compute: latency is what costs."
        return (
            f"With more ranks the all-reduce tends to 2P/B = {traffic} plus latency, efficiency to "
            f"{words.percent(setting.efficiency_limit)} at most; speedup has no limit until latency takes over."
        )
    return (
        f"With more ranks 2P/B = {traffic} of traffic stays while compute shrinks, "
        f"so speedup tends to {words.ratio(setting.strong_limit)}, and latency takes it lower."
    )


def _break_even(setting: _Setting) -> str:
    if setting.break_even is None:
        return f"With {setting.scaling} scaling no number of ranks is faster than one."
    if setting.break_even > MOST_RANKS:
        return f"It takes {setting.break_even} ranks to be faster than one."
    opening = f"From {words.plural(setting.break_even, 'rank')} on it is faster than one rank"
    best = max(setting.chosen, key=lambda point: point[1])[0]
    if best == MOST_RANKS:
        return opening + "."
    slower = [point[0] for point in setting.chosen if point[0] > best and point[1] < 1]
    after = f"from {slower[0]} on it is slower than one" if slower else "more ranks are slower"
    return f"{opening}; of the numbers drawn, {best} is the fastest, and {after} again."


def _source_step(**link: Any) -> dict[str, Any]:
    """The source's gradients and compute on another link."""
    values: dict[str, Any] = {"gradient_bytes": 1e9, "compute_s": 0.1, "overlap": 0.0, "scaling": "weak"}
    values.update(link)
    return values


EXPERIMENT = Experiment(
    name="scaling-explorer",
    title="Scaling explorer",
    question="When do more data-parallel ranks help, and what stops them?",
    controls=(
        slider("ranks", "Ranks N", _RANK_STOPS, 8, whole=True),
        choice(
            "scaling",
            "Scaling",
            (("weak", "weak: batch per rank fixed"), ("strong", "strong: global batch fixed")),
            "weak",
        ),
        slider("bandwidth", "Bandwidth B", decades(1e8, 1e12, R10), 10e9, "bytes/s"),
        slider("gradient_bytes", "Gradients P", decades(1e6, 1e11, R10), 1e9, "bytes"),
        slider("latency_s", "Latency per hop", decades(1e-7, 1e-2), 10e-6, "seconds"),
        slider("compute_s", "Compute C, one rank", decades(1e-3, 10, R10), 0.1, "seconds"),
        slider("overlap", "Overlap, 0 to 1", tuple([n / 20 for n in range(21)]), 0.0),
        toggle("source_points", "Show the source's table", True),
    ),
    presets=(
        Preset(
            name="source",
            label="The source's cluster",
            values=_source_step(bandwidth=10e9, latency_s=10e-6, ranks=8),
            source="The source text's toy: 1 GB of gradients, 10 GB/s, 10 µs per hop, 100 ms of compute.",
        ),
        Preset(
            name="source-2gb",
            label="The source's cluster, 2 GB/s",
            values=_source_step(bandwidth=2e9, latency_s=10e-6, ranks=8),
            source="The same toy on a network five times slower: 8 ranks are slower than one.",
        ),
        Preset(
            name="h100-nvlink",
            label="8×H100 NVLink",
            values=_source_step(bandwidth=436e9, latency_s=3.4e-6, ranks=8, source_points=False),
            source="436 GB/s: all-reduce bus bandwidth measured in one node (Hugging Face, Ultra-Scale Playbook, 2025); "
            "3.4 µs: NCCL, tuning.cc. The step is the source's.",
        ),
        Preset(
            name="h100-64-nodes",
            label="64 nodes of 8×H100",
            values=_source_step(bandwidth=32.9e9, latency_s=1e-7, ranks=512, source_points=False),
            source="32.9 GB/s: all-reduce bus bandwidth measured across 64 nodes (Ultra-Scale Playbook, 2025), latency "
            "included, so that slider stands at its least.",
        ),
        Preset(
            name="ethernet-10",
            label="10 GbE",
            values=_source_step(bandwidth=1.25e9, latency_s=10e-6, ranks=8, source_points=False),
            source="10 Gb/s of line rate are 1.25 GB/s, before protocol overhead; latency and step are the source's.",
        ),
    ),
    picture=picture,
)
