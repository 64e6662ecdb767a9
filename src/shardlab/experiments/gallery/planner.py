"""Which layout is fastest for a model, a cluster and a batch: a small search, ranked, with the reason for each place."""

from __future__ import annotations

from typing import Any

from shardlab.experiments import chart, words
from shardlab.experiments.controls import Experiment, Preset, choice, slider, toggle
from shardlab.hardware import cluster
from shardlab.models.plan_layout import layout_of, problem
from shardlab.models.plan_predict import Prediction, prediction_of
from shardlab.models.plan_search import SearchRun
from shardlab.transformer import preset

SOFTWARE = "megatron-core"
# What is left free: fragmentation, and what the bill doesn't know.
USABLE = 0.92
ROWS = 5

TENSORS = (1, 2, 4, 8)
PIPELINES = (1, 2, 4, 8, 16)

# Bars: what counts as one part of a step, with its role and texture. The rest is "other".
_PARTS = (
    ("compute", "compute", "solid", ("layers", "output head")),
    ("recomputation", "compute", "light", ("recomputation",)),
    ("tensor", "communication", "solid", ("tensor-parallel communication",)),
    ("data", "communication", "light", ("data-parallel communication",)),
    ("bubble", "idle", "hatch", ("pipeline bubble",)),
)
_TOLD = (
    ("layer time", ("layers",)),
    ("output head", ("output head",)),
    ("recomputation", ("recomputation",)),
    ("tensor traffic", ("tensor-parallel communication",)),
    ("data traffic", ("data-parallel communication",)),
    ("bubble", ("pipeline bubble",)),
    ("stage transfers", ("pipeline transfers",)),
    ("optimizer", ("optimizer",)),
)


def _power(value: int) -> int:
    """The largest power of two that is not above the value."""
    found = 1
    while 2 * found <= value:
        found *= 2
    return found


class _Answer:
    """The search and the reader's guess, each computed once."""

    def __init__(
        self, model: str, node: str, gpus: int, batch: int, sequence: int, tensor: int, pipeline: int
    ) -> None:
        self.gpus = _power(gpus)
        self.batch, self.sequence = batch, sequence
        self.run = SearchRun(
            preset(model),
            cluster(node, self.gpus),
            batch,
            sequence,
            SOFTWARE,
            tensor=TENSORS,
            pipeline=PIPELINES,
            context=1,
            expert=1,
            zero_stages=(1, 3),
            micro_batches=(1, 2, 4),
            recomputations=("none", "full"),
            schedules=("1f1b",),
            sequence_parallel=(True,),
            memory_fraction=USABLE,
        )
        self.run.advance(2000)
        # In whole microseconds: the last bits differ between engines, and equal steps must keep their order.
        ranked = sorted([(int(1e6 * seconds), key) for seconds, key in self.run.fitting])
        self.splits = _one_per_split([key for _, key in ranked])
        self.top = [prediction_of(self.run.evaluator, layout_of(key)) for key in self.splits[:ROWS]]
        self.guess = (min(_power(tensor), 8), min(_power(pipeline), 16))
        self.place = 0
        for index, key in enumerate(self.splits):
            if (key[1], key[2]) == self.guess:
                self.place = index + 1
        self.guessed: Prediction | None = None
        if self.place:
            self.guessed = prediction_of(self.run.evaluator, layout_of(self.splits[self.place - 1]))


def _one_per_split(keys: list[Any]) -> list[Any]:
    """The best of each (tensor, pipeline): the first in the ranking."""
    seen, kept = [], []
    for key in keys:
        if (key[1], key[2]) not in seen:
            seen.append((key[1], key[2]))
            kept.append(key)
    return kept


def picture(
    model: str,
    node: str,
    gpus: int,
    batch: int,
    sequence: int,
    tensor: int,
    pipeline: int,
    answer: bool,
) -> dict[str, Any]:
    """The fastest layout of each split, where their time goes, and how the reader's guess compares."""
    found = _Answer(model, node, gpus, batch, sequence, tensor, pipeline)
    shown = _shown(found, answer)
    return chart.chart(
        panels=[_bars(found, shown), _table(found, shown, answer)],
        words=_sentences(found, answer),
        readouts=_readouts(found, answer),
    )


def _shown(found: _Answer, answer: bool) -> list[tuple[int, Prediction]]:
    """(place, prediction) of the rows to draw: the best few and the guess, or the guess alone."""
    rows = [(index + 1, made) for index, made in enumerate(found.top)] if answer else []
    if found.guessed is not None and (not answer or found.place > len(found.top)):
        rows.append((found.place, found.guessed))
    return rows


def _split(made: Prediction) -> str:
    plan = made.layout
    return f"DP{plan.data} TP{plan.tensor} PP{plan.pipeline}"


def _seconds(made: Prediction, labels: tuple[str, ...]) -> float:
    total = 0.0
    for label in labels:
        total += made.seconds(label)
    return total


def _bars(found: _Answer, shown: list[tuple[int, Prediction]]) -> dict[str, Any]:
    stacks, rest = [], [made.step_time_s for _, made in shown]
    for name, role, texture, labels in _PARTS:
        values = [_seconds(made, labels) for _, made in shown]
        rest = [max(left - value, 0.0) for left, value in zip(rest, values)]
        stacks.append(chart.stack(name, role, values or [0.0], texture))
    stacks.append(chart.stack("other", "muted", rest or [0.0]))
    most = max([made.step_time_s for _, made in shown]) if shown else 1.0
    told = "; ".join([f"{_split(made)} {words.seconds(made.step_time_s)}" for _, made in shown])
    return chart.bars(
        title="Where a step's time goes, predicted",
        categories=[_split(made) for _, made in shown] or ["nothing fits"],
        value=chart.time_axis("step", 1.25 * most),
        stacks=stacks,
        texts=[words.seconds(made.step_time_s) for _, made in shown] or [""],
        alt=f"Bars: {told}." if told else "No bars: no such layout fits.",
    )


def _extra(made: Prediction, best: Prediction) -> tuple[str, float]:
    """The cause that takes most time beyond the winner's, and how much."""
    name, most = "", 0.0
    for label, labels in _TOLD:
        gap = _seconds(made, labels) - _seconds(best, labels)
        if gap > most * 1.000001:
            name, most = label, gap
    return name, most


def _table(found: _Answer, shown: list[tuple[int, Prediction]], answer: bool) -> dict[str, Any]:
    rows = []
    for place, made in shown:
        plan = made.layout
        settings = f"ZeRO-{plan.zero_stage}, b={plan.micro_batch}"
        settings += ", recompute" if plan.recompute == "full" else ""
        why = ""
        if answer:
            name, gap = _extra(made, found.top[0])
            why = "fastest" if place == 1 else f"+{words.seconds(gap)} {name}"
        rows.append(
            [
                (f"{place}. " if answer else "") + _split(made),
                settings,
                words.percent(made.mfu),
                words.n_bytes(made.memory.total_bytes),
                why,
            ]
        )
    strong = [index for index, (place, _) in enumerate(shown) if place == found.place]
    return chart.table(
        title="One row a split, at its best settings" + ("; your guess in bold" if found.place else ""),
        columns=["split", "settings", "MFU", "memory", "why not first"],
        rows=rows or [["none", "", "", "", ""]],
        strong_rows=strong,
    )


def _readouts(found: _Answer, answer: bool) -> list[dict[str, Any]]:
    run = found.run
    readouts = [
        chart.readout(
            "layouts that fit",
            f"{len(run.fitting)} of {run.tried}",
            f"in {words.n_bytes(run.limit)} per GPU",
            "memory-text",
        ),
        chart.readout(
            "your guess",
            words.seconds(found.guessed.step_time_s) if found.guessed else "does not run",
            f"TP {found.guess[0]}, PP {found.guess[1]}",
        ),
    ]
    if answer:
        best = found.top[0] if found.top else None
        readouts.append(
            chart.readout(
                "fastest", words.seconds(best.step_time_s) if best else "none", _split(best) if best else ""
            )
        )
        readouts.append(
            chart.readout(
                "place of your guess",
                f"{found.place} of {len(found.splits)}" if found.place else "none",
                "splits that fit",
            )
        )
    return readouts


def _sentences(found: _Answer, answer: bool) -> list[str]:
    texts = []
    if answer:
        texts.append(_winner(found))
    texts.append(_guess(found, answer))
    if not answer:
        texts.append("Choose your own tensor and pipeline degrees, then show the answer.")
    texts.append(
        "In the bars: compute blue, recomputation striped blue; tensor traffic orange, data traffic striped orange; the bubble "
        "striped grey, the rest grey."
    )
    texts.append(
        f"{len(found.run.fitting)} of {found.run.tried} layouts fit. Searched: TP to 8, PP to 16 with 1F1B, ZeRO-1 and 3, "
        f"micro-batch 1, 2, 4, none or full recomputation; {words.percent(1 - USABLE)} of the memory left free. "
        "No interleaving, no context parallelism: the library's search has both."
    )
    return texts


def _winner(found: _Answer) -> str:
    if not found.top:
        return _nothing(found)
    best = found.top[0]
    lost, most = "", 0.0
    for label, seconds in best.items:
        if label != "layers" and seconds > most * 1.000001:
            lost, most = label, seconds
    article = "the " if lost in ("output head", "pipeline bubble", "optimizer", "fixed overhead") else ""
    share = words.percent(best.seconds("layers") / best.step_time_s)
    text = (
        f"Fastest is {_split(best)}, {words.seconds(best.step_time_s)} a step: {share} of it is the layers' own work, and "
        f"the largest loss is {article}{lost}, {words.seconds(most)}."
    )
    if best.layout.zero_stage == 3 and best.layout.data > 100:
        text += " Doubt it: for ZeRO-3 on hundreds of GPUs published runs were slower than this model."
    return text


def _nothing(found: _Answer) -> str:
    least = found.run.least_memory
    if least is None:
        return "No layout can run: the batch or the sequence does not divide."
    return (
        f"No layout fits: the leanest needs {words.n_bytes(least[0])} of the {words.n_bytes(found.run.limit)} that a GPU "
        "offers. More GPUs would share it."
    )


def _guess(found: _Answer, answer: bool) -> str:
    tensor, pipeline = found.guess
    opening = f"Your guess, TP {tensor} and PP {pipeline}, "
    made = found.guessed
    if made is None:
        return opening + _why_not(found)
    if not answer:
        return opening + f"fits and takes {words.seconds(made.step_time_s)} a step."
    if found.place == 1:
        return opening + "is the fastest split."
    best = found.top[0]
    name, gap = _extra(made, best)
    return (
        opening
        + f"takes place {found.place} of {len(found.splits)}: {words.percent(made.step_time_s / best.step_time_s - 1)} "
        f"slower; {name} adds most, {words.seconds(gap)}."
    )


def _why_not(found: _Answer) -> str:
    tensor, pipeline = found.guess
    run = found.run
    if found.gpus % (tensor * pipeline):
        return f"needs a multiple of {tensor * pipeline} GPUs, and there are {found.gpus}."
    data = found.gpus // (tensor * pipeline)
    key: Any = (data, tensor, pipeline, 1, 1, 3 if data > 1 else 0, 1, "full", tensor > 1, "1f1b", 1)
    wrong = problem(run.model, found.gpus, found.batch, found.sequence, key)
    if wrong is not None:
        return f"cannot run: {wrong[1]}."
    need = 0.0
    for part in run.evaluator.memory(*key):
        need += part
    return f"does not fit: at its leanest it needs {words.n_bytes(need)} of {words.n_bytes(run.limit)}."


EXPERIMENT = Experiment(
    name="planner",
    title="Planner",
    question="Which split is fastest for this model on this cluster, and what holds the others back?",
    controls=(
        choice(
            "model",
            "Model",
            (
                ("llama3-8b", "Llama 3 8B"),
                ("llama3-70b", "Llama 3 70B"),
                ("sc21-18.4b", "GPT 18.4B"),
                ("gpt3-175b", "GPT-3 175B"),
            ),
            "llama3-70b",
        ),
        choice(
            "node",
            "Nodes of 8",
            (
                ("dgx-a100", "DGX A100"),
                ("a100-pcie", "A100, PCIe"),
                ("dgx-h100", "DGX H100"),
                ("dgx-b200", "DGX B200"),
            ),
            "dgx-h100",
        ),
        slider("gpus", "GPUs", (8, 16, 32, 64, 128, 256, 512, 1024), 64, whole=True),
        slider("batch", "Global batch, sequences", (64, 128, 256, 512, 1024, 2048), 256, whole=True),
        slider("sequence", "Tokens in a sequence", (2048, 4096, 8192), 8192, whole=True),
        slider("tensor", "Your guess: tensor", TENSORS, 8, whole=True),
        slider("pipeline", "Your guess: pipeline", PIPELINES, 2, whole=True),
        toggle("answer", "Show the answer", True),
    ),
    presets=(
        Preset(
            name="llama3-70b",
            label="70B on 64 H100",
            values={"model": "llama3-70b", "node": "dgx-h100", "gpus": 64, "batch": 256, "sequence": 8192},
            source="Llama 3 70B's sizes and 8192 tokens (arXiv 2407.21783) on DGX H100; the batch is chosen.",
        ),
        Preset(
            name="gpt-18b",
            label="18.4B on 256 A100",
            values={
                "model": "sc21-18.4b",
                "node": "dgx-a100",
                "gpus": 256,
                "batch": 1024,
                "sequence": 2048,
                "tensor": 8,
                "pipeline": 1,
            },
            source="SC21 (arXiv 2104.04473), Table 1, fourth row, which ran TP 8 and PP 1; today's kernels.",
        ),
        Preset(
            name="gpt3",
            label="GPT-3 on 128 A100",
            values={
                "model": "gpt3-175b",
                "node": "dgx-a100",
                "gpus": 128,
                "batch": 512,
                "sequence": 2048,
                "tensor": 8,
                "pipeline": 16,
            },
            source="GPT-3's sizes (arXiv 2104.04473) on DGX A100 80 GB; GPUs and batch are chosen.",
        ),
        Preset(
            name="small",
            label="8B on one node",
            values={
                "model": "llama3-8b",
                "node": "dgx-h100",
                "gpus": 8,
                "batch": 64,
                "sequence": 8192,
                "tensor": 2,
                "pipeline": 2,
            },
            source="Llama 3 8B's sizes (arXiv 2407.21783) on one DGX H100; the guess is 3D parallelism.",
        ),
    ),
    picture=picture,
)
