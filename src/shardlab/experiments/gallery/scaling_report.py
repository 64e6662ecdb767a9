"""From your own hundred steps to a report: efficiency, what the link delivered, a verdict, and what to try."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, decades, slider
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.diagnose_data_parallel import DataParallelDiagnosis
from shardlab.models.diagnose_data_parallel import data_parallel as diagnose
from shardlab.models.scaling import data_parallel_curve

MOST_RANKS = 512
_CURVE_RANKS = {2**exponent for exponent in range(1, 10)}
RULE = 0.5
"""The efficiency below which the source text says: look at the network first."""

_STEPS = decades(1e-3, 10)
_UNTIMED = (0.0,)
_WITH_NONE = _UNTIMED + decades(1e-4, 10)
_SAID = "unknown"


def picture(
    base_ranks: int,
    base_step_s: float,
    ranks: int,
    step_s: float,
    scaling: str,
    all_reduce_s: float,
    gradient_bytes: float,
    link: float,
) -> dict[str, Any]:
    """The step in its predicted bracket, three readings of the bandwidth, and the efficiency of more ranks."""
    report = _Report(base_ranks, base_step_s, ranks, step_s, scaling, all_reduce_s, gradient_bytes, link)
    return chart.chart(
        panels=[_bandwidth_panel(report), _efficiency_panel(report), _step_panel(report)],
        words=_sentences(report),
        readouts=_readouts(report),
        bounds={"base_ranks": {"most": ranks - 1}},
    )


class _Report:
    """What the reader measured, and the diagnosis of it, each computed once."""

    def __init__(
        self,
        base_ranks: int,
        base_step_s: float,
        ranks: int,
        step_s: float,
        scaling: str,
        all_reduce_s: float,
        gradient_bytes: float,
        link: float,
    ) -> None:
        fewer = min(base_ranks, ranks - 1)
        kept = None if scaling == _SAID else scaling
        self.link = link
        self.timed = all_reduce_s > 0
        known: dict[str, Any] = {"gradient_bytes": gradient_bytes, "nominal_bandwidth": link}
        # By the step alone first: the bracket of what the link can have delivered.
        self.by_step = diagnose(base_step_s, step_s, ranks, fewer, kept, **known)
        self.answer: DataParallelDiagnosis = self.by_step
        if self.timed:
            known["communication_s"] = all_reduce_s
            self.answer = diagnose(base_step_s, step_s, ranks, fewer, kept, **known)
        self.low, self.high = self.by_step.implied_bandwidth or (0.0, None)
        sent = ring_allreduce_sent_bytes(gradient_bytes, ranks)
        self.busbw = sent / all_reduce_s if self.timed else None
        # The bandwidth to plan with: measured, or what the step says, or at least what it must have been.
        self.rate = self.busbw or self.high or self.low
        self.all_reduce_s = sent / self.rate
        self.compute_s = self.answer.compute_s
        self.bracket = (
            max(self.compute_s, self.all_reduce_s),
            self.compute_s + self.all_reduce_s,
        )
        strong = self.answer.assumed_scaling == "strong"
        self.efficiency = self.answer.strong_efficiency if strong else self.answer.weak_efficiency
        self.speedup = self.answer.strong_speedup if strong else self.answer.weak_speedup
        whole = base_step_s * fewer if strong else base_step_s
        counts = sorted(_CURVE_RANKS.union({ranks}))
        # (ranks, efficiency with nothing overlapped, with everything)
        self.curve = [
            (n, slow / n, fast / n)
            for n, _, _, slow, fast in data_parallel_curve(
                counts, whole, gradient_bytes, self.rate, 0.0, scaling=self.answer.assumed_scaling
            )
        ]


def _bandwidth_panel(report: _Report) -> dict[str, Any]:
    values = [report.busbw or 0.0, report.low, report.high or 0.0]
    most = 1.5 * max(max(values), report.link)
    unit, name = (1e9, "GB/s") if most >= 1e9 else (1e6, "MB/s")
    texts = [
        words.bandwidth(report.busbw) if report.busbw else "not measured",
        words.bandwidth(report.low),
        words.bandwidth(report.high) if report.high else "nothing shows",
    ]
    rows = ["all-reduce alone", "step, all hidden", "step, none hidden"]
    return chart.bars(
        title="What the link delivered",
        categories=rows,
        value=chart.axis(name, (0.0, most), chart.even_ticks(most, unit)),
        stacks=[chart.stack("delivered", "communication", values)],
        limits=[chart.limit(report.link, "the link", align="end" if report.link > most / 2 else "start")],
        texts=texts,
        alt="Bars of bandwidth: "
        + ", ".join([f"{row} {text}" for row, text in zip(rows, texts)])
        + f"; the link as named carries {words.bandwidth(report.link)}.",
    )


def _efficiency_panel(report: _Report) -> dict[str, Any]:
    answer = report.answer
    most = max(1.0, 1.1 * report.efficiency)
    first, last = report.curve[0], report.curve[-1]
    return chart.lines(
        title=f"Efficiency, {answer.assumed_scaling} scaling (%)",
        x=chart.axis(
            "ranks N",
            (2, MOST_RANKS),
            [(count, str(count)) for count in (2, 8, 64, 512)],
            scale="log",
            control="ranks",
        ),
        y=chart.axis("", (0.0, most), chart.even_ticks(most, 0.01)),
        curves=[
            chart.series("all hidden", "compute", [(n, fast) for n, _, fast in report.curve], "thin"),
            chart.series("none hidden", "compute", [(n, slow) for n, slow, _ in report.curve], "thin"),
        ],
        bands=[chart.band("on this link", "compute", report.curve)],
        limits=[chart.limit(RULE, "the source's rule", side="below", align="start")],
        marks=[chart.mark(answer.n_ranks, report.efficiency, words.percent(report.efficiency), "compute")],
        alt=f"Efficiency over ranks. Measured at {words.plural(answer.n_ranks, 'rank')}: "
        f"{words.percent(report.efficiency)}. On the same link predicted from {words.percent(first[1])} to "
        f"{words.percent(first[2])} at {words.plural(first[0], 'rank')} and {words.percent(last[1])} to "
        f"{words.percent(last[2])} at {words.plural(last[0], 'rank')}.",
    )


def _step_panel(report: _Report) -> dict[str, Any]:
    low, high = report.bracket
    step = report.answer.step_s
    return chart.timeline(
        title=f"One step of {report.answer.n_ranks} ranks, against {report.answer.base_ranks}: measured in its bracket",
        lanes=["compute", "all-reduce", "step"],
        time=chart.time_axis("time", 1.25 * max(high, step), about=5),
        spans=[
            chart.span(0, 0.0, report.compute_s, "compute", words.seconds(report.compute_s)),
            chart.span(1, report.compute_s, high, "communication", words.seconds(report.all_reduce_s)),
        ],
        brackets=[chart.bracket(2, low, high, step, words.seconds(step))],
        alt=f"Time line: compute {words.seconds(report.compute_s)}, all-reduce {words.seconds(report.all_reduce_s)}; "
        f"together between {words.seconds(low)} and {words.seconds(high)}; measured {words.seconds(step)}.",
    )


def _readouts(report: _Report) -> list[dict[str, Any]]:
    answer = report.answer
    unknown = answer.scaling is None
    both = f"{words.percent(answer.weak_efficiency)} or {words.percent(answer.strong_efficiency)}"
    of_link = [report.low / report.link, (report.high or report.low) / report.link]
    if report.busbw:
        of_link = [report.busbw / report.link]
    return [
        chart.readout(
            "efficiency",
            both if unknown else words.percent(report.efficiency),
            "weak or strong?" if unknown else f"{answer.scaling} scaling",
        ),
        chart.readout(
            "speedup", words.ratio(report.speedup), f"over {words.plural(answer.base_ranks, 'rank')}"
        ),
        chart.readout(
            "beyond compute",
            words.seconds(answer.exposed_s),
            words.percent(answer.exposed_s / answer.step_s) + " of the step",
            "communication-text",
        ),
        chart.readout(
            "a rank sends", words.n_bytes(answer.sent_bytes or 0.0), "per step, ring", "communication-text"
        ),
        chart.readout(
            "of the link",
            " to ".join([words.percent(share) for share in of_link]),
            words.bandwidth(report.link),
        ),
    ]


def _sentences(report: _Report) -> list[str]:
    answer = report.answer
    texts = [answer.question] if answer.question else []
    texts.append(answer.verdict.text)
    if answer.verdict.checks:
        first = answer.verdict.checks[0]
        texts.append("Try first: " + first + ("" if first.endswith("?") else "."))
    texts.append(_bracket_words(report))
    last = report.curve[-1]
    low, high = words.percent(last[1]), words.percent(last[2])
    reached = low if low == high else f"{low} to {high}"
    texts.append(
        f"If every further link is like this one, {words.plural(last[0], 'rank')} reach {reached} ({answer.assumed_scaling} scaling)."
    )
    return texts


def _bracket_words(report: _Report) -> str:
    if not report.timed:
        return (
            "No all-reduce was timed, so the bandwidth is read off the step, and whatever else slows the step is counted "
            "as network: time one all-reduce alone."
        )
    low, high = report.bracket
    step = report.answer.step_s
    opening = (
        f"Compute, taken from {words.plural(report.answer.base_ranks, 'rank')}, and the all-reduce alone predict "
        f"{words.seconds(low)} to {words.seconds(high)}; the step took "
        f"{words.seconds(step)}"
    )
    if step > 1.1 * high:
        return f"{opening}: {words.seconds(step - high)} are neither, so look for a slow rank, data, or too small buckets."
    if step < 0.95 * low:
        return f"{opening}: shorter than it can be, so the measurements do not belong together."
    return f"{opening}: inside the bracket, so these two numbers explain it."


EXPERIMENT = Experiment(
    name="scaling-report",
    title="Scaling report",
    question="Type what a hundred steps measured. What did the link deliver, is it to blame, and what comes next?",
    controls=(
        slider("base_ranks", "Ranks to compare with", (1, 2, 4, 8, 16, 32), 1, whole=True),
        slider("base_step_s", "Their step", _STEPS, 0.1, "seconds"),
        slider("ranks", "Ranks N", (2, 4, 8, 16, 32, 64, 128, 256, 512), 8, whole=True),
        slider("step_s", "Step on N", _STEPS, 0.2, "seconds"),
        choice(
            "scaling",
            "What was kept?",
            ((_SAID, "nobody said"), ("weak", "batch per rank (weak)"), ("strong", "global batch (strong)")),
            "weak",
        ),
        slider(
            "all_reduce_s",
            "All-reduce alone (0: not timed)",
            _WITH_NONE,
            0.05,
            "seconds",
        ),
        slider("gradient_bytes", "Gradients P", decades(1e6, 1e11), 1e9, "bytes"),
        slider("link", "Slowest link crossed", decades(1e8, 1e12, (1, 1.25, 2.5, 5)), 25e9, "bytes/s"),
    ),
    presets=(
        Preset(
            name="two-t4",
            label="Two T4: 42 % or 84 %?",
            values={
                "base_step_s": 22.03e-3,
                "ranks": 2,
                "step_s": 26.36e-3,
                "scaling": _SAID,
                "all_reduce_s": 11.24e-3,
                "gradient_bytes": 16e6,
                "link": 15.75e9,
            },
            source="A post on dev.to: 4 million parameters, fp32 gradients, two T4; PCIe 3 x16 carries 15.75 GB/s.",
        ),
        Preset(
            name="gigabit",
            label="Two boxes on 1 Gb/s",
            values={
                "base_step_s": 32 / 171,
                "ranks": 4,
                "step_s": 10 * 32 / 171,
                "all_reduce_s": 0.0,
                "gradient_bytes": 102.2e6,
                "link": 0.125e9,
            },
            source="horovod issue 752: 171 images/s a GPU alone, ten times slower on two boxes; we assume ResNet-50 and 32 "
            "images a GPU.",
        ),
        Preset(
            name="vgg",
            label="VGG-16 on 100 Gb/s",
            values={
                "base_ranks": 8,
                "base_step_s": 256 / 1531.9,
                "ranks": 16,
                "step_s": 512 / 546.9,
                "all_reduce_s": 0.0,
                "gradient_bytes": 553.4e6,
                "link": 12.5e9,
            },
            source="horovod issue 2581: 1531.9 images/s on one node of 8, 546.9 on two, 32 images a GPU.",
        ),
        Preset(
            name="bert",
            label="BERT on 40 Gb/s",
            values={
                "base_ranks": 4,
                "base_step_s": 0.5,
                "ranks": 8,
                "step_s": 4.0,
                "all_reduce_s": 0.0,
                "gradient_bytes": 440e6,
                "link": 5e9,
            },
            source="transformers issue 3274: bert-base, 2 steps a second on one box of 4 GPUs, 4 s a step on two.",
        ),
    ),
    picture=picture,
)
