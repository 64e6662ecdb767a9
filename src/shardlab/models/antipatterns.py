"""Sixteen ways to waste a cluster: each a healthy run beside a broken one, computed by the other models.

An :class:`AntiPattern` has eight levels of severity. :func:`compare` gives, for one level and one :class:`Setting`,
what healthy and broken runs spend, and the damage as one number; :func:`damages` gives that number for all levels.
Communication is not overlapped with compute anywhere here: the damage is the worst case of a bracket.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardlab.checks import choice, count, positive
from shardlab.hardware import accelerator, link
from shardlab.models.antipattern_texts import TEXTS
from shardlab.models.batch import (
    accumulated_step_time_s,
    epoch_order,
    rank_samples,
    resume_coverage,
    scaled_learning_rate,
    token_average,
    uneven_steps,
)
from shardlab.models.checkpoint import checkpoint_bytes, transfer_time_s
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.communication import data_traffic
from shardlab.models.lehmer import Lehmer
from shardlab.models.memory import model_states, unsharded_bytes
from shardlab.models.memory_activations import in_flight_micro_batches, layer_activations
from shardlab.models.pipeline_formulas import bubble_of_ideal
from shardlab.models.stragglers import slow_rank_step
from shardlab.models.tensor import layer_sent_bytes
from shardlab.transformer import Transformer, layer_params, parameters, preset, training_flops

if TYPE_CHECKING:
    from collections.abc import Callable

    _Bar = tuple[str, bool, tuple[float, ...]]

LEVELS = 8
DEVICE = "H100-80GB"
RANK_FLOPS = 430e12
"""What one H100 did in training Llama 3 405B on 8,192 of them (arXiv 2407.21783, Table 4), FLOP/s."""

GRADIENT_BYTES = 2.0
MOST_RANKS = 1024
MODELS = ("gpt2-xl", "llama3-8b", "llama3-70b")

# Assumed, for the checkpoint alone: what one rank writes, and what the storage takes from all of them, bytes/s.
WRITER_BANDWIDTH, STORAGE_BANDWIDTH = 2e9, 500e9

NODE_RANKS = 8
DATA_RANKS, DATA_SAMPLES = 8, 32
EPOCH_BATCHES = 128
PLANNED_STEPS = 128


@dataclass(frozen=True)
class Setting:
    """The run that goes wrong.

    Attributes:
        ranks: N, 2 to 1024.
        bandwidth: bytes/s per rank and direction between nodes.
        model: what is trained.
        tokens: of one rank's micro-batch.
        params: Ψ.
        compute_s: forward and backward of one micro-batch on one rank: 6 Ψ tokens / 430 TFLOP/s.
    """

    ranks: int
    bandwidth: float
    model: Transformer
    tokens: int
    params: float
    compute_s: float

    @property
    def gradient_bytes(self) -> float:
        """P: 16-bit gradients."""
        return GRADIENT_BYTES * self.params


def setting(ranks: int, bandwidth: float, model: str = "llama3-8b", tokens: int = 8192) -> Setting:
    """A run on H100s.

    Args:
        ranks: ``N``.
        bandwidth: bytes/s per rank between nodes.
        model: one of ``MODELS``.
        tokens: of a micro-batch.

    Raises:
        ValueError: an argument is out of range.
    """
    chosen = preset(choice("model", model, MODELS))
    length = count("tokens", tokens)
    params = float(parameters(chosen))
    return Setting(
        ranks=count("ranks", ranks, least=2, most=MOST_RANKS),
        bandwidth=positive("bandwidth", bandwidth, "bytes/s"),
        model=chosen,
        tokens=length,
        params=params,
        compute_s=training_flops(params, length) / RANK_FLOPS,
    )


@dataclass(frozen=True)
class Row:
    """One bar: a name, whether it belongs to the broken run, and one value per part."""

    name: str
    broken: bool
    values: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Healthy beside broken.

    Attributes:
        unit: of the values: ``"seconds"``, ``"bytes"``, ``"samples"``, ``"steps"`` or ``"loss"``.
        parts: (name, role of the palette) of each part of a bar.
        rows: the bars.
        curves: loss curves where there are some: (name, broken, points of (step, loss)).
        damage: one number, in the anti-pattern's ``damage_kind``.
        knob: value of the severity's level, in the anti-pattern's ``knob_kind``.
    """

    unit: str
    parts: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    curves: tuple[tuple[str, bool, tuple[tuple[float, float], ...]], ...]
    damage: float
    knob: float


@dataclass(frozen=True)
class AntiPattern:
    """One way to go wrong.

    Attributes:
        name: key.
        title: the mistake in a few words.
        symptom, tell, mend, harmless: what is seen; how to tell it from its neighbours; what to do; when it costs little.
        knob, knob_kind: what severity changes, and how to write its value (``"count"``, ``"slower"``, ``"times"``,
            ``"share"``).
        levels: eight values, from mild to severe.
        damage_name, damage_kind: what ``damage`` is: a ``"ratio"`` (1 is no harm), a ``"share"`` or a loss (0 is none).
        needs: which of ranks, bandwidth, model and tokens matter.
        build: (setting, level's value) to :class:`Comparison`.
    """

    name: str
    title: str
    symptom: str
    tell: str
    mend: str
    harmless: str
    knob: str
    knob_kind: str
    levels: tuple[float, ...]
    damage_name: str
    damage_kind: str
    needs: tuple[str, ...]
    build: Callable[[Setting, float], Comparison]


# ---------------------------------------------------------------- shared steps

_COMPUTE = ("compute", "compute")
_SENDING = ("communication", "communication")
_WAITING = ("waiting", "idle")


def _nvlink() -> float:
    inside = link("NVLink4")
    return inside.bandwidth * inside.efficiency


def _total(values: tuple[float, ...]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total


def _ratio(
    knob: float,
    unit: str,
    parts: tuple[tuple[str, str], ...],
    rows: tuple[_Bar, ...],
) -> Comparison:
    """Damage: the longest broken bar over the first, healthy one."""
    made = tuple([Row(name=name, broken=broken, values=values) for name, broken, values in rows])
    worst = max([_total(row.values) for row in made if row.broken])
    return Comparison(
        unit=unit, parts=parts, rows=made, curves=(), damage=worst / _total(made[0].values), knob=knob
    )


def _shares(
    knob: float,
    unit: str,
    parts: tuple[tuple[str, str], ...],
    healthy: tuple[str, tuple[float, ...]],
    broken: tuple[str, tuple[float, ...]],
    damage: float,
) -> Comparison:
    rows = (
        Row(name=healthy[0], broken=False, values=healthy[1]),
        Row(name=broken[0], broken=True, values=broken[1]),
    )
    return Comparison(unit=unit, parts=parts, rows=rows, curves=(), damage=damage, knob=knob)


def _all_reduce_s(run: Setting, ranks: int, bandwidth: float) -> float:
    return ring_allreduce_time_s(run.gradient_bytes, ranks, bandwidth)


# ---------------------------------------------------------------- traffic


def _uncounted(run: Setting, slower: float) -> Comparison:
    inside = min(run.ranks, NODE_RANKS)
    rows = (
        ("one node", False, (run.compute_s, _all_reduce_s(run, inside, _nvlink()))),
        ("all nodes", True, (run.compute_s, _all_reduce_s(run, run.ranks, run.bandwidth / slower))),
    )
    return _ratio(slower, "seconds", (_COMPUTE, _SENDING), rows)


def _needless_zero3(run: Setting, micro_batches: float) -> Comparison:
    steps = int(micro_batches)
    rows: list[_Bar] = []
    for stage in (1, 3):
        sent = data_traffic(run.params, run.ranks, stage, steps).total_bytes
        rows.append((f"ZeRO-{stage}", stage == 3, (steps * run.compute_s, sent / run.bandwidth)))
    return _ratio(micro_batches, "seconds", (_COMPUTE, _SENDING), tuple(rows))


def _sync_every(run: Setting, micro_batches: float) -> Comparison:
    steps = int(micro_batches)
    sync = _all_reduce_s(run, run.ranks, run.bandwidth)
    rows: list[_Bar] = []
    for name, every in (("once", False), ("each time", True)):
        whole = accumulated_step_time_s(run.compute_s, sync, steps, every)
        rows.append((name, every, (steps * run.compute_s, whole - steps * run.compute_s)))
    return _ratio(micro_batches, "seconds", (_COMPUTE, _SENDING), tuple(rows))


def _tensor_between_nodes(run: Setting, slower: float) -> Comparison:
    width = min(run.ranks, NODE_RANKS)
    sent = run.model.layers * layer_sent_bytes(run.tokens, 1, run.model.hidden, width)
    compute = run.compute_s / width
    rows = (
        ("in a node", False, (compute, sent / _nvlink())),
        ("across", True, (compute, sent * slower / run.bandwidth)),
    )
    return _ratio(slower, "seconds", (_COMPUTE, _SENDING), rows)


def _busy_by_the_meter(run: Setting, slower: float) -> Comparison:
    rows: list[_Bar] = []
    for name, factor in (("as planned", 1.0), ("as it is", slower)):
        exchange = _all_reduce_s(run, run.ranks, run.bandwidth / factor)
        rows.append((name, len(rows) == 1, (run.compute_s, exchange)))
    return _ratio(slower, "seconds", (_COMPUTE, ("NCCL kernels, “busy”", "communication")), tuple(rows))


def model_flops_utilisation(run: Setting, step_s: float) -> float:
    """MFU of a rank that computes one micro-batch in ``step_s`` seconds, over the H100's dense bf16 peak."""
    seconds = positive("step_s", step_s, "seconds")
    return training_flops(run.params, run.tokens) / (seconds * accelerator(DEVICE).peak_flops)


# ---------------------------------------------------------------- waiting


def pipeline_stages(run: Setting) -> int:
    """p of the pipeline anti-patterns: one node's ranks at most."""
    return min(run.ranks, NODE_RANKS)


def healthy_micro_batches(run: Setting) -> int:
    """m of the healthy pipeline: eight for every stage."""
    return 8 * pipeline_stages(run)


def _few_micro_batches(run: Setting, cut: float) -> Comparison:
    stages, most = pipeline_stages(run), healthy_micro_batches(run)
    work = run.compute_s / stages
    rows: list[_Bar] = []
    for broken, m in ((False, most), (True, max(int(most / cut), 1))):
        rows.append((f"m = {m}", broken, (work, work * bubble_of_ideal(stages, m))))
    return _ratio(float(m), "seconds", (_COMPUTE, ("bubble", "idle")), tuple(rows))


def _slow_rank(run: Setting, slowdown: float) -> Comparison:
    step = slow_rank_step(run.compute_s, slowdown, run.ranks)
    lost = step.expected_step_s - run.compute_s
    rows = (
        ("healthy", False, (run.compute_s, 0.0)),
        ("slow rank", True, (step.expected_step_s, 0.0)),
        ("other ranks", True, (run.compute_s, lost)),
        ("mean rank", True, (step.mean_s, 0.0)),
    )
    return _ratio(slowdown, "seconds", (_COMPUTE, _WAITING), rows)


def _one_writer(run: Setting, alone: float) -> Comparison:
    size = checkpoint_bytes(run.params, "adam-14")
    together = transfer_time_s(size, STORAGE_BANDWIDTH, run.ranks, WRITER_BANDWIDTH)
    shared = transfer_time_s(size * (1 - alone), STORAGE_BANDWIDTH, run.ranks, WRITER_BANDWIDTH)
    single = transfer_time_s(size * alone, STORAGE_BANDWIDTH, 1, WRITER_BANDWIDTH)
    parts = (("all ranks write", "memory-optimizer"), ("rank 0 alone, others wait", "idle"))
    rows = (("all write", False, (together, 0.0)), ("rank 0 last", True, (shared, single)))
    return _ratio(alone, "seconds", parts, rows)


def _uneven_ranks(_run: Setting, missing: float) -> Comparison:
    short = EPOCH_BATCHES - int(missing)
    steps = uneven_steps([EPOCH_BATCHES, short])
    done = steps.safe_steps
    parts = (("done", "compute"), ("never reached", "idle"))
    lost = EPOCH_BATCHES - done
    return _shares(
        missing,
        "steps",
        parts,
        ("equal", (float(EPOCH_BATCHES), 0.0)),
        ("unequal", (float(done), float(lost))),
        lost / EPOCH_BATCHES,
    )


# ---------------------------------------------------------------- memory


def _one_unit(run: Setting, layers_at_once: float) -> Comparison:
    states = model_states(run.params, run.ranks, 3).total_bytes
    rows: list[_Bar] = []
    for name, layers in (("unit: layer", 1.0), ("unit: more", layers_at_once)):
        whole = unsharded_bytes(min(layers, run.model.layers) * layer_params(run.model))
        rows.append((name, len(rows) == 1, (states, whole)))
    parts = (("own shards", "memory-optimizer"), ("gathered whole", "memory-parameters"))
    return _ratio(layers_at_once, "bytes", parts, tuple(rows))


def _gpipe_memory(run: Setting, times: float) -> Comparison:
    stages, model = pipeline_stages(run), run.model
    batches = int(times) * stages
    one = layer_activations(
        run.tokens,
        1,
        model.hidden,
        model.heads,
        model.ffn,
        model.kv_heads,
        model.head_dim,
        model.gated,
        flash_attention=True,
        dropout=model.dropout,
    ).kept_bytes
    rows: list[_Bar] = []
    for schedule in ("1f1b", "gpipe"):
        held = in_flight_micro_batches(schedule, stages, 0, batches)
        name = "1F1B" if schedule == "1f1b" else "GPipe"
        rows.append((name, schedule == "gpipe", (held * one * model.layers / stages,)))
    return _ratio(times, "bytes", (("activations, first stage", "memory-activations"),), tuple(rows))


# ---------------------------------------------------------------- data


def _own_shuffles(run: Setting, eighths: float) -> Comparison:
    ranks = min(run.ranks, DATA_RANKS)
    own = max(int(eighths * ranks / LEVELS), 1)
    shared = epoch_order(DATA_SAMPLES, 0, 0)
    reads = [0] * DATA_SAMPLES
    for rank in range(ranks):
        order = shared if rank < ranks - own else epoch_order(DATA_SAMPLES, rank + 1, 0)
        # Padding repeats samples in the healthy run too: it is left out here.
        for sample in rank_samples(order, ranks, rank, drop_last=True):
            reads[sample] += 1
    dealt = DATA_SAMPLES // ranks * ranks
    once = len([times for times in reads if times == 1])
    more = len([times for times in reads if times > 1])
    never = DATA_SAMPLES - once - more - (DATA_SAMPLES - dealt)
    parts = (("once", "compute"), ("twice or more", "communication"), ("never", "idle"))
    return _shares(
        float(own),
        "samples",
        parts,
        ("one shuffle", (float(dealt), 0.0, 0.0)),
        ("own shuffles", (float(once), float(more), float(never))),
        never / dealt,
    )


def _replayed(_run: Setting, resumed_at: float) -> Comparison:
    step = int(resumed_at)
    right = resume_coverage(PLANNED_STEPS, step, PLANNED_STEPS, True)
    wrong = resume_coverage(PLANNED_STEPS, step, PLANNED_STEPS, False)
    parts = (("once", "compute"), ("twice", "communication"), ("never", "idle"))
    values = [(float(c.read_once), float(c.read_twice), float(c.never_read)) for c in (right, wrong)]
    return _shares(
        resumed_at,
        "steps",
        parts,
        ("position kept", values[0]),
        ("from the start", values[1]),
        wrong.never_read / PLANNED_STEPS,
    )


LONG_TEXT, LONG_LOSS, SHORT_LOSS = 1024, 1.0, 2.0


def _mean_of_means(_run: Setting, shorter: float) -> Comparison:
    average = token_average([LONG_TEXT, int(LONG_TEXT / shorter)], [LONG_LOSS, SHORT_LOSS])
    # Texts of one length are the reference of severity 1, where both averages agree.
    rows = (
        ("per token", (average.per_token,)),
        ("mean of means", (average.mean_of_means,)),
    )
    return _shares(shorter, "loss", (("loss", "compute"),), rows[0], rows[1], average.relative_error)


# ---------------------------------------------------------------- learning

ADAM_STEPS = 40
PEAK_LR = 0.3
_CURVATURES = (1.0, 0.8, 0.6, 0.4, 0.3, 0.2)
_START = 1.0
_NOISE = 0.3
_FLOOR = 1.0


def _loss(weights: list[float], curvatures: tuple[float, ...]) -> float:
    total = _FLOOR
    for weight, curvature in zip(weights, curvatures):
        total += 0.5 * curvature * weight * weight
    return total


class _Adam:
    """Adam on a quadratic with noisy gradients: a run that can be saved with its memory or without."""

    def __init__(self, weights: list[float]) -> None:
        self.weights = list(weights)
        self.means = [0.0 for _ in weights]
        self.squares = [0.0 for _ in weights]
        self.mean_scale = self.square_scale = 1.0
        self.updates = 0

    def step(self, noises: list[float]) -> float:
        """One update at a linearly falling learning rate; returns the loss without noise."""
        rate = PEAK_LR * (1 - self.updates / ADAM_STEPS)
        self.updates += 1
        self.mean_scale *= 0.9
        self.square_scale *= 0.95
        for index, noise in enumerate(noises):
            gradient = _CURVATURES[index] * self.weights[index] + noise
            self.means[index] = 0.9 * self.means[index] + 0.1 * gradient
            self.squares[index] = 0.95 * self.squares[index] + 0.05 * gradient * gradient
            mean = self.means[index] / (1 - self.mean_scale)
            square = self.squares[index] / (1 - self.square_scale)
            self.weights[index] -= rate * mean / (math.sqrt(square) + 1e-8)
        return _loss(self.weights, _CURVATURES)


def _weights_only(_run: Setting, crash_at: float) -> Comparison:
    source, crash = Lehmer(1), int(crash_at)
    kept = lost = _Adam([_START for _ in _CURVATURES])
    healthy = [(0.0, _loss(kept.weights, _CURVATURES))]
    broken = list(healthy)
    for step in range(ADAM_STEPS):
        # Both runs see the same noise: what differs is the memory.
        noises = [_NOISE * (2 * source.uniform() - 1) for _ in _CURVATURES]
        if step == crash:
            lost = _Adam(kept.weights)
        healthy.append((step + 1.0, kept.step(noises)))
        broken.append((step + 1.0, lost.step(noises) if lost is not kept else healthy[-1][1]))
    jump = max([late[1] - early[1] for early, late in zip(healthy[crash:], broken[crash:])])
    curves = (("all kept", False, tuple(healthy)), ("weights only", True, tuple(broken)))
    return _curves(crash_at, curves, jump)


def _curves(
    knob: float, curves: tuple[tuple[str, bool, tuple[tuple[float, float], ...]], ...], damage: float
) -> Comparison:
    rows = tuple([Row(name=name, broken=broken, values=(points[-1][1],)) for name, broken, points in curves])
    return Comparison(
        unit="loss",
        parts=(("loss at the end", "compute"),),
        rows=rows,
        curves=curves,
        damage=damage,
        knob=knob,
    )


SGD_STEPS = 48
SGD_LR = 0.5
_SGD_CURVATURES = (0.2, 0.1)


def sgd_losses(accumulation: int, lr: float) -> tuple[tuple[float, float], ...]:
    """Losses of plain gradient descent that updates once in ``accumulation`` batches, over the batches it has read."""
    every = count("accumulation", accumulation)
    rate = positive("lr", lr)
    weights = [_START for _ in _SGD_CURVATURES]
    points = [(0.0, _loss(weights, _SGD_CURVATURES))]
    for update in range(SGD_STEPS // every):
        for index, curvature in enumerate(_SGD_CURVATURES):
            weights[index] -= rate * curvature * weights[index]
        points.append((float((update + 1) * every), _loss(weights, _SGD_CURVATURES)))
    return tuple(points)


def _same_rate(_run: Setting, accumulation: float) -> Comparison:
    times = int(accumulation)
    small = sgd_losses(1, SGD_LR)
    kept = sgd_losses(times, SGD_LR)
    scaled = sgd_losses(times, scaled_learning_rate(SGD_LR, 1, times, "linear"))
    gain = small[0][1] - small[-1][1]
    curves = (("small batch", False, small), ("rate × k", False, scaled), ("rate kept", True, kept))
    return _curves(accumulation, curves, (kept[-1][1] - small[-1][1]) / gain)


# ---------------------------------------------------------------- the list

_DOUBLING = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
_SLOWDOWNS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 4.0)
_MULTIPLES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
_EIGHTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)
_SHARES = (0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4, 1.0)
_CRASHES = (8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 28.0, 30.0)
_MISSING = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 96.0)
_RESUMES = (8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 64.0)

_ALL = ("ranks", "bandwidth", "model", "tokens")
_NONE: tuple[str, ...] = ()
_STEP = "the step time"


def _entry(
    name: str,
    knob: tuple[str, str],
    levels: tuple[float, ...],
    damage: tuple[str, str],
    needs: tuple[str, ...],
    build: Callable[[Setting, float], Comparison],
) -> AntiPattern:
    title, symptom, tell, mend, harmless = TEXTS[name]
    return AntiPattern(
        name=name,
        title=title,
        symptom=symptom,
        tell=tell,
        mend=mend,
        harmless=harmless,
        knob=knob[0],
        knob_kind=knob[1],
        levels=levels,
        damage_name=damage[0],
        damage_kind=damage[1],
        needs=needs,
        build=build,
    )


_SLOWER = ("network speed", "slower")
_MICRO = ("micro-batches a step", "count")

ANTI_PATTERNS = (
    _entry("uncounted-traffic", _SLOWER, _DOUBLING, (_STEP, "ratio"), _ALL, _uncounted),
    _entry("needless-zero3", _MICRO, _DOUBLING, (_STEP, "ratio"), _ALL, _needless_zero3),
    _entry(
        "few-micro-batches",
        ("micro-batches a step", "count"),
        _DOUBLING,
        ("the time of a micro-batch", "ratio"),
        ("ranks", "model", "tokens"),
        _few_micro_batches,
    ),
    _entry(
        "weights-only",
        ("crash at step, of 40", "count"),
        _CRASHES,
        ("in the loss at worst", "loss"),
        _NONE,
        _weights_only,
    ),
    _entry(
        "own-shuffles",
        ("ranks with their own seed", "count"),
        _EIGHTHS,
        ("of the epoch never read", "share"),
        ("ranks",),
        _own_shuffles,
    ),
    _entry(
        "averaged-away",
        ("time of the slow rank", "times"),
        _SLOWDOWNS,
        (_STEP, "ratio"),
        ("ranks", "model", "tokens"),
        _slow_rank,
    ),
    _entry(
        "same-learning-rate",
        ("batches accumulated", "count"),
        _MULTIPLES,
        ("of the progress missing", "share"),
        _NONE,
        _same_rate,
    ),
    _entry("busy-is-not-working", _SLOWER, _DOUBLING, (_STEP, "ratio"), _ALL, _busy_by_the_meter),
    _entry("sync-every-time", _MICRO, _DOUBLING, (_STEP, "ratio"), _ALL, _sync_every),
    _entry("tensor-between-nodes", _SLOWER, _DOUBLING, (_STEP, "ratio"), _ALL, _tensor_between_nodes),
    _entry(
        "rank-0-writes",
        ("written by rank 0 alone", "share"),
        _SHARES,
        ("the time of a save", "ratio"),
        ("ranks", "model"),
        _one_writer,
    ),
    _entry(
        "uneven-ranks",
        ("batches one rank lacks, of 128", "count"),
        _MISSING,
        ("of the epoch never run", "share"),
        _NONE,
        _uneven_ranks,
    ),
    _entry(
        "data-from-the-start",
        ("resumed at step, of 128", "count"),
        _RESUMES,
        ("of the data never read", "share"),
        _NONE,
        _replayed,
    ),
    _entry(
        "mean-of-means",
        ("length of the short text", "slower"),
        _DOUBLING,
        ("off the right loss", "share"),
        _NONE,
        _mean_of_means,
    ),
    _entry(
        "one-big-unit",
        ("layers in a unit", "count"),
        _DOUBLING,
        ("the memory", "ratio"),
        ("ranks", "model"),
        _one_unit,
    ),
    _entry(
        "gpipe-memory",
        ("micro-batches a stage", "count"),
        _MULTIPLES,
        ("the activations", "ratio"),
        ("model", "tokens"),
        _gpipe_memory,
    ),
)
"""The first eight are the source text's, the others come from public reports."""

NAMES = tuple([pattern.name for pattern in ANTI_PATTERNS])


def anti_pattern(name: str) -> AntiPattern:
    """The anti-pattern of that name.

    Raises:
        ValueError: there is none.
    """
    return ANTI_PATTERNS[NAMES.index(choice("name", name, NAMES))]


def compare(name: str, run: Setting, level: int) -> Comparison:
    """Healthy beside broken at a level of severity from 1 (mild) to 8.

    Raises:
        ValueError: no such anti-pattern, or the level is out of range.
    """
    pattern = anti_pattern(name)
    return pattern.build(run, pattern.levels[count("level", level, most=LEVELS) - 1])


def damages(name: str, run: Setting) -> list[float]:
    """The damage at every level, mild to severe."""
    pattern = anti_pattern(name)
    return [pattern.build(run, value).damage for value in pattern.levels]


def no_harm(kind: str) -> float:
    """The damage of a healthy run: 1 for a ``"ratio"``, 0 for a ``"share"`` or a ``"loss"``."""
    return 1.0 if choice("kind", kind, ("ratio", "share", "loss")) == "ratio" else 0.0
