"""Gradient accumulation: what it does to the batch, the learning rate, the bytes and the time of an optimizer step."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import R10, Experiment, Preset, choice, decades, slider, toggle
from shardlab.models.batch import accumulated_step_time_s, global_batch, scaled_learning_rate
from shardlab.models.communication import DataTraffic, data_traffic

# One micro-step: 32 samples in 100 ms, the compute of the source's toy.
MICRO_BATCH, MICRO_STEP_S = 32, 0.1
_STEPS = (1, 2, 4, 8, 16, 32, 64)
_STAGES = (("0", "DDP"), ("1", "ZeRO-1"), ("2", "ZeRO-2"), ("3", "ZeRO-3 or FSDP"))
_RULES = (
    ("linear", "SGD: linear, × k"),
    ("sqrt", "Adam: square root, × √k"),
    ("none", "leave it"),
)
_NAMES = {"0": "DDP", "1": "ZeRO-1", "2": "ZeRO-2", "3": "ZeRO-3"}


class _Setting:
    """What the reader has set, and the models' answers to it."""

    def __init__(
        self,
        accumulation: int,
        ranks: int,
        base_batch: int,
        rule: str,
        stage: str,
        no_sync: bool,
        gradient_bytes: float,
        bandwidth: float,
    ) -> None:
        self.accumulation, self.ranks, self.base_batch = accumulation, ranks, base_batch
        self.rule, self.stage, self.no_sync = rule, stage, no_sync
        self.gradient_bytes, self.bandwidth = gradient_bytes, bandwidth
        self.batch = global_batch(MICRO_BATCH, accumulation, ranks)
        self.growth = self.batch / base_batch
        self.lr_factor = scaled_learning_rate(1.0, base_batch, self.batch, rule)
        self.traffic = self.sent(stage, accumulation)
        self.step_s = self.seconds(stage, accumulation)

    def sent(self, stage: str, steps: int) -> DataTraffic:
        """Traffic of one rank in an optimizer step; parameters and gradients have 2 bytes an element."""
        # Stages 2 and 3 reduce after every micro-step whatever the switch says.
        every = None if self.no_sync else True
        return data_traffic(
            self.gradient_bytes / 2, self.ranks, int(stage), steps, sync_every_micro_batch=every
        )

    def seconds(self, stage: str, steps: int) -> float:
        """One optimizer step without overlap."""
        return accumulated_step_time_s(
            MICRO_STEP_S, self.sent(stage, steps).total_bytes / self.bandwidth, steps
        )

    def per_sample(self, stage: str, steps: int) -> float:
        """Compute's share of the step: what is left of the throughput."""
        return steps * MICRO_STEP_S / self.seconds(stage, steps)


def picture(
    accumulation: int,
    ranks: int,
    base_batch: int,
    rule: str,
    stage: str,
    no_sync: bool,
    gradient_bytes: float,
    bandwidth: float,
) -> dict[str, Any]:
    """Bytes per stage, throughput kept over the micro-steps, and one optimizer step on a time line."""
    setting = _Setting(accumulation, ranks, base_batch, rule, stage, no_sync, gradient_bytes, bandwidth)
    return chart.chart(
        panels=[_kept_panel(setting), _bytes_panel(setting), _step_panel(setting)],
        words=[_batch_words(setting), _rate_words(setting), _traffic_words(setting)],
        readouts=_readouts(setting),
    )


def _kept_panel(setting: _Setting) -> dict[str, Any]:
    curves = []
    for stage, _ in _STAGES:
        points = [(steps, setting.per_sample(stage, steps)) for steps in _STEPS]
        chosen = stage == setting.stage
        curves.append(chart.series(_NAMES[stage], "compute", points, "strong" if chosen else "thin"))
    kept = setting.per_sample(setting.stage, setting.accumulation)
    return chart.lines(
        title="Throughput kept (%)",
        x=chart.axis(
            "micro-steps G",
            (1, 64),
            [(float(steps), str(steps)) for steps in (1, 4, 16, 64)],
            "log",
            "accumulation",
        ),
        y=chart.axis("", (0.0, 1.0), chart.even_ticks(1.0, 0.01)),
        curves=curves,
        marks=[chart.mark(setting.accumulation, kept, words.percent(kept), "compute")],
        alt="Share of an optimizer step that is compute, over the number of micro-steps, for DDP and the ZeRO stages. "
        f"{_NAMES[setting.stage]} with {words.plural(setting.accumulation, 'micro-step')} keeps {words.percent(kept)}; with 64 "
        + ", ".join(
            [f"{_NAMES[stage]} {words.percent(setting.per_sample(stage, 64))}" for stage, _ in _STAGES]
        )
        + ".",
    )


def _bytes_panel(setting: _Setting) -> dict[str, Any]:
    traffic = [setting.sent(stage, setting.accumulation) for stage, _ in _STAGES]
    totals = [one.total_bytes for one in traffic]
    return chart.bars(
        title="Sent per rank and optimizer step",
        categories=[_NAMES[stage] for stage, _ in _STAGES],
        value=chart.size_axis("sent", 1.3 * max(totals)),
        stacks=[
            chart.stack(
                "gradients",
                "communication",
                [one.all_reduce_bytes + one.reduce_scatter_bytes for one in traffic],
            ),
            chart.stack("weights", "communication", [one.all_gather_bytes for one in traffic], "light"),
        ],
        texts=[words.n_bytes(total) for total in totals],
        alt=f"Bytes that one rank sends per optimizer step of {words.plural(setting.accumulation, 'micro-step')}: "
        + ", ".join([f"{_NAMES[_STAGES[i][0]]} {words.n_bytes(totals[i])}" for i in range(4)])
        + ".",
    )


def _step_panel(setting: _Setting) -> dict[str, Any]:
    """Compute and communication in turn: communication after the last micro-step, or after each."""
    traffic, steps = setting.traffic, setting.accumulation
    total_s = traffic.total_bytes / setting.bandwidth
    after_each = traffic.gradient_reductions > 1
    # Of stages 1 and 2, the all-gather of the weights comes once, at the end.
    once_s = traffic.all_gather_bytes / setting.bandwidth if traffic.zero_stage in (1, 2) else 0.0
    each_s = (total_s - once_s) / steps if after_each else 0.0
    spans, now = [], 0.0
    for index in range(steps):
        label = words.plural(steps, "micro-step") if index == steps - 1 else ""
        spans.append(chart.span(0, now, now + MICRO_STEP_S, "compute", label))
        now += MICRO_STEP_S
        if each_s:
            spans.append(chart.span(1, now, now + each_s, "communication"))
            now += each_s
    left = setting.step_s - now
    if left > 1e-9 * setting.step_s:
        spans.append(chart.span(1, now, setting.step_s, "communication"))
    # A lane of its own: a line at the end of the step would cross the label of the last micro-step.
    spans.append(chart.span(2, 0.0, setting.step_s, "muted", words.seconds(setting.step_s), text_role="text"))
    return chart.timeline(
        title=f"One optimizer step, {_NAMES[setting.stage]}: {setting.batch} samples, learning rate × "
        + words.amount(setting.lr_factor),
        lanes=["compute", "communication", "step"],
        time=chart.time_axis("time", 1.2 * setting.step_s, about=5),
        spans=spans,
        alt=f"Time line of one optimizer step: {words.plural(steps, 'micro-step')} of {words.seconds(MICRO_STEP_S)}, "
        f"{words.seconds(total_s)} of communication {'in pieces after each' if after_each else 'after the last'}; together "
        f"{words.seconds(setting.step_s)}.",
    )


def _readouts(setting: _Setting) -> list[dict[str, Any]]:
    return [
        chart.readout(
            "global batch",
            str(setting.batch),
            f"was {setting.base_batch}: k = {words.plain_number(setting.growth)}",
        ),
        chart.readout("learning rate", "× " + words.amount(setting.lr_factor), "a start, to be tested"),
        chart.readout(
            "sent per step", words.n_bytes(setting.traffic.total_bytes), "by one rank", "communication-text"
        ),
        chart.readout("optimizer step", words.seconds(setting.step_s), "nothing overlapped"),
        chart.readout(
            "samples per second",
            words.amount(setting.batch / setting.step_s),
            f"on {words.plural(setting.ranks, 'rank')}",
        ),
    ]


def _batch_words(setting: _Setting) -> str:
    product = f"{MICRO_BATCH} × {setting.accumulation} × {setting.ranks} = {setting.batch}"
    if setting.batch == setting.base_batch:
        return (
            f"The global batch is {product} samples, as it was: accumulation changes nothing about learning, and the "
            "learning rate stays."
        )
    return (
        f"The global batch is {product} samples, {words.ratio(setting.growth)} the old {setting.base_batch}: this is another "
        "training, not only another speed."
    )


def _rate_words(setting: _Setting) -> str:
    if setting.batch == setting.base_batch:
        return "Micro-batch times micro-steps times ranks is what counts, not how it is split."
    factor = words.ratio(setting.lr_factor)
    smaller = setting.growth < 1
    if setting.rule == "linear":
        if smaller:
            return f"The linear rule makes the learning rate {factor}: a smaller batch takes more updates, each of them shorter; it is a rule for SGD."
        return f"The linear rule makes the learning rate {factor}, after a warm-up; it is a rule for SGD and fails for very large batches."
    if setting.rule == "sqrt":
        return f"The square-root rule makes the learning rate {factor}; for Adam it moves the two decay rates as well."
    updates = (
        "more updates of the same size for the same samples, from noisier gradients"
        if smaller
        else "fewer updates of the same size for the same samples"
    )
    root = words.ratio(scaled_learning_rate(1.0, setting.base_batch, setting.batch, "sqrt"))
    return f"The learning rate stays: {updates}. A rule would suggest {root} (Adam) or {words.ratio(setting.growth)} (SGD)."


def _traffic_words(setting: _Setting) -> str:
    now, one = setting.traffic.total_bytes, setting.sent(setting.stage, 1).total_bytes
    opening = (
        f"{_NAMES[setting.stage]} on {words.plural(setting.ranks, 'rank')} sends {words.n_bytes(now)} per optimizer step and "
        f"rank, {words.n_bytes(now / setting.accumulation)} per micro-step"
    )
    if setting.accumulation == 1:
        return f"{opening}. At {words.bandwidth(setting.bandwidth)} a step takes {words.seconds(setting.step_s)}."
    if now <= one * (1 + 1e-9):
        reason = f"the gradients wait for the last of {setting.accumulation} micro-steps"
    elif setting.stage in ("0", "1"):
        reason = "without no_sync every micro-step talks, and accumulation saves nothing"
        if setting.stage == "1":
            reason = "without no_sync the gradients are reduced after every micro-step"
    elif setting.stage == "2":
        reason = "gradients are kept as shards, so each micro-step has to reduce its own"
    else:
        reason = "every micro-step gathers the weights anew, so accumulation saves nothing"
    return f"{opening}: {reason}. At {words.bandwidth(setting.bandwidth)} a step takes {words.seconds(setting.step_s)}."


def _preset(name: str, label: str, source: str, **values: Any) -> Preset:
    return Preset(name=name, label=label, values=values, source=source)


EXPERIMENT = Experiment(
    name="accumulation",
    title="Gradient accumulation",
    question="What does accumulating over G micro-steps save, and what does it do to batch and learning rate?",
    controls=(
        slider("accumulation", "Micro-steps G", _STEPS, 4, whole=True),
        slider("ranks", "Ranks N", (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024), 8, whole=True),
        slider(
            "base_batch", "Batch before", tuple([2**exponent for exponent in range(5, 14)]), 256, whole=True
        ),
        choice("rule", "Learning-rate rule", _RULES, "linear"),
        choice("stage", "Sharding", _STAGES, "0"),
        toggle("no_sync", "no_sync until the last", True),
        slider("gradient_bytes", "Gradients P (16-bit)", decades(1e7, 1e11), 1e9, "bytes"),
        slider("bandwidth", "Bandwidth B", decades(1e9, 1e12, R10), 10e9, "bytes/s"),
    ),
    presets=(
        _preset(
            "source",
            "The source's cluster, G = 4",
            "The source text's toy: 1 GB of gradients, 10 GB/s, 100 ms for a micro-step, 8 ranks.",
        ),
        _preset(
            "goyal",
            "ImageNet in an hour",
            "Goyal et al. (arXiv 1706.02677): batch 256 to 8192 on 256 GPUs, 32 images each, learning rate × 32; ResNet-50 "
            "has 25.6 million parameters, here in 16 bits. The 10 GB/s are the source's.",
            accumulation=1,
            ranks=256,
            gradient_bytes=51.2e6,
        ),
        _preset(
            "fixed-batch",
            "Same batch, 4 times fewer ranks",
            "256 samples on 2 ranks in place of 8: what accumulation is for when GPUs are few. The toy is the source's.",
            accumulation=4,
            ranks=2,
        ),
        _preset(
            "forgotten",
            "no_sync forgotten",
            "The source's toy; in public reports accumulation saved nothing because the skip was never in force "
            "(NVIDIA cosmos-framework, issue 161).",
            no_sync=False,
        ),
        _preset(
            "zero-3",
            "ZeRO-3, G = 16",
            "The source's toy with sharded parameters: every micro-step gathers them twice (ZeRO, arXiv 1910.02054, section 7).",
            stage="3",
            accumulation=16,
        ),
    ),
    picture=picture,
)
