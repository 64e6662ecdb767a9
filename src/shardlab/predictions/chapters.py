"""The chapters' predictions. Every answer is computed by ``shardlab.models``, as the chapter does further down."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from shardlab import hardware
from shardlab.measured import ALL_REDUCE
from shardlab.models import (
    batch,
    checkpoint,
    collectives,
    communication,
    context,
    diagnose,
    memory,
    pipeline_formulas,
    plan,
    published,
    scaling,
    stragglers,
    tensor,
)
from shardlab.models.mesh import mesh
from shardlab.predictions.model import Choice, Guess, Prediction, Sketch
from shardlab.predictions.words import in_words, part_in_words
from shardlab.quiz.model import decimal
from shardlab.quiz.parts import billions
from shardlab.transformer import FLOPS_PER_PARAMETER_AND_TOKEN, parameters, preset
from shardlab.units import GB, KB, MIB, MS, TB, US


def why_distribute() -> Prediction:
    """Chapter 01: Llama 2 7B on A100s of 80 GB at 40 % of their peak, 4 million tokens a step."""
    n_params = parameters(preset("llama2-7b"))
    card = hardware.accelerator("A100-80GB")
    held = memory.model_states(n_params).total_bytes
    of_peak = 0.4
    rate = of_peak * card.peak_flops
    years = FLOPS_PER_PARAMETER_AND_TOKEN * n_params * 2e12 / rate / 86_400 / 365.25
    compute_s = FLOPS_PER_PARAMETER_AND_TOKEN * n_params * 4e6 / rate
    balance = 1 + compute_s / (2 * 2 * n_params / (200e9 / 8))
    return Prediction(
        id="c01",
        items=(
            Guess(
                id="state",
                prompt="How many GB does a training step hold before the first token?",
                key=held / GB,
                unit="GB",
                why="Weights, gradients, a master copy and Adam's two moments take "
                f"{decimal(held / n_params, 2)} bytes for each parameter.",
                at=("GB before the first token",),
            ),
            Guess(
                id="years",
                prompt="For how many years would one GPU compute?",
                key=years,
                unit="years",
                why=f"Every token costs {FLOPS_PER_PARAMETER_AND_TOKEN} FLOP for each parameter, "
                f"and we count with {decimal(100 * of_peak, 2)} % of the peak.",
                at=("years on one GPU",),
            ),
            Guess(
                id="gpus",
                prompt="From how many GPUs on is more than half of every step communication?",
                key=balance,
                unit="GPUs",
                why="Compute is shared out, the all-reduce is not: they meet where the shared compute takes as long as 2*P*/*B*.",
                at=("GPUs until half is communication",),
                digits=4,
            ),
        ),
    )


def what_collectives_cost() -> Prediction:
    """Chapter 02: the best all-reduce of a small and of a large buffer."""
    ranks, latency_s = 64, 10 * US
    small, large = (
        collectives.fastest("all-reduce", n_bytes, ranks, 25 * GB, latency_s) for n_bytes in (1 * KB, 1 * GB)
    )
    rounds = collectives.algorithm("all-reduce", small.algorithm).cost(1 * KB, ranks).rounds
    return Prediction(
        id="c02",
        items=(
            Guess(
                id="small",
                prompt="How long does the best way take for 1 kB?",
                key=small.time_s / US,
                unit="µs",
                why=f"{in_words(rounds).capitalize()} rounds of messages, and each costs {decimal(latency_s / US, 2)} µs "
                f"before its first byte: {small.algorithm}.",
                at=(1 * KB,),
                scale=US,
            ),
            Guess(
                id="large",
                prompt="And for 1 GB?",
                key=large.time_s / MS,
                unit="ms",
                why="Every rank has to send almost the whole buffer twice: "
                f"{large.algorithm.replace('rabenseifner', 'Rabenseifner')}.",
                at=(1 * GB,),
                scale=MS,
            ),
            Choice(
                id="same",
                prompt="Is the same way best for both?",
                options=(("yes", "Yes"), ("no", "No")),
                key="yes" if small.algorithm == large.algorithm else "no",
                why="Few rounds win for small buffers, few bytes for large ones.",
            ),
        ),
    )


def data_parallel() -> Prediction:
    """Chapter 03: the source's cluster, weak scaling."""
    ranks = (8, 64, 512)
    few, more = ranks[:2]
    compute_s = 100 * MS
    steps = [scaling.data_parallel(n, compute_s, 1 * GB, 10 * GB, 10 * US) for n in ranks]
    alone, *times = [
        f"{decimal(seconds / MS)} ms" for seconds in (compute_s, *[step.step_time_s for step in steps])
    ]
    computing = part_in_words(compute_s / steps[2].step_time_s)
    whys = (
        f"A step processes {in_words(few)} batches, but takes {times[0]} instead of {alone}.",
        f"The step hardly grows any more, to {times[1]}: a rank of {more} sends little more than one of {few}.",
        f"A step takes {times[2]}, and compute, {alone} of it, is about {computing}.",
    )
    return Prediction(
        id="c03",
        items=tuple(
            Guess(
                id=f"n{n}",
                prompt=f"{n} GPUs: how many times the samples per second of one?",
                key=step.speedup,
                unit="×",
                why=why,
                at=(n,),
                tick=str(n),
            )
            for n, step, why in zip(ranks, steps, whys, strict=True)
        ),
        sketch=Sketch(x="GPUs", y="samples per second, times one GPU", low=1, high=1000, scale="log"),
    )


def zero() -> Prediction:
    """Chapter 04: 7.5 billion parameters on 64 ranks, per stage."""
    n_params = 7.5e9
    parts = ("the optimizer's part", "the gradients too", "the parameters too")
    plain, *held = [memory.model_states(n_params, 64, stage).total_bytes for stage in (0, 1, 2, 3)]
    traffic = [communication.zero_volume_ratio(stage) for stage in (1, 2, 3)]
    sent = (
        "A reduce-scatter and an all-gather are the two halves of the all-reduce.",
        "The same two halves, only the gradients' whole buffer is given up earlier.",
        "Weights are gathered once more, for the backward pass.",
    )
    return Prediction(
        id="c04",
        items=(
            *(
                Guess(
                    id=f"held{stage}",
                    prompt=f"Stage {stage} shares out {part}: how many GB are left on a rank?",
                    key=n_bytes / GB,
                    unit="GB",
                    why=f"{decimal(n_bytes / n_params)} bytes for each parameter instead of {decimal(plain / n_params, 2)}.",
                    at=(stage, 0),
                    tick=str(stage),
                )
                for stage, part, n_bytes in zip((1, 2, 3), parts, held, strict=True)
            ),
            *(
                Guess(
                    id=f"sent{stage}",
                    prompt=f"Stage {stage}: how many times the bytes of plain data parallelism?",
                    key=ratio,
                    unit="×",
                    why=why,
                    at=(stage, 1),
                )
                for stage, ratio, why in zip((1, 2, 3), traffic, sent, strict=True)
            ),
        ),
        sketch=Sketch(x="ZeRO stage", y="GB on a rank", low=1, high=120, scale="log"),
    )


def tensor_parallel() -> Prediction:
    """Chapter 05: a GPT-3 layer over 8 A100, in one server and in eight."""
    node = hardware.node("dgx-a100")
    nvlink = dict(zip(ALL_REDUCE[0].n_bytes, ALL_REDUCE[0].busbw, strict=True))[128 * MIB]
    links = (nvlink, node.network_bandwidth_per_gpu)
    waits = [
        tensor.communication_compute_ratio(12288, 2048, 8, node.accelerator.matmul_flops, link)
        for link in links
    ]
    near, far = (1 / (1 + wait) for wait in waits)
    calls = in_words(tensor.layer_collectives().all_reduce)
    return Prediction(
        id="c05",
        items=(
            Guess(
                id="near",
                prompt="All eight in one server: how many per cent of eight times the speed are left?",
                key=100 * near,
                unit="%",
                why=f"{calls.capitalize()} all-reduces a layer take {part_in_words(waits[0])} of the compute's time over NVLink.",
                at=("one server",),
                scale=0.01,
                digits=2,
            ),
            Guess(
                id="far",
                prompt="Each in a server of its own: how many per cent?",
                key=100 * far,
                unit="%",
                why="Over one port the same all-reduces take longer than the compute.",
                at=("eight servers",),
                scale=0.01,
                digits=2,
            ),
        ),
    )


def pipeline() -> Prediction:
    """Chapter 06: eight stages, eight micro-batches."""
    total = pipeline_formulas.bubble_of_total
    stages, allowed = 8, 0.1
    idle = total(stages, 8)
    needed = next(m for m in range(1, 1000) if total(stages, m) <= allowed)
    times = in_words(needed / (stages - 1))
    return Prediction(
        id="c06",
        items=(
            Guess(
                id="idle",
                prompt="What share of the total time does a rank idle?",
                key=100 * idle,
                unit="%",
                why=f"(*p*−1)/(*m*+*p*−1) = {Fraction(idle).limit_denominator(100)} of the total.",
                at=("idle",),
            ),
            Guess(
                id="needed",
                prompt=f"How many micro-batches bring that down to {decimal(100 * allowed, 2)} %?",
                key=float(needed),
                unit="micro-batches",
                why=f"{times.capitalize()} times *p*−1: for {part_in_words(allowed)} of idleness, "
                f"ideal work has to be {times} times the fill and drain.",
                at=("micro-batches",),
                digits=2,
            ),
            Guess(
                id="gain",
                prompt="By how many percentage points does 1F1B idle less than GPipe?",
                key=0.0,
                unit="points",
                why="Both idle alike. What 1F1B lowers is the number of micro-batches whose activations wait in memory.",
                at=("1F1B gains",),
            ),
        ),
    )


def context_parallel() -> Prediction:
    """Chapter 07: causal ring attention with the sequence dealt in order."""
    ranks = (2, 4, 16)
    return Prediction(
        id="c07",
        items=tuple(
            Guess(
                id=f"n{n}",
                prompt=f"{n} ranks: how many times as long as with equal work?",
                key=context.ring_work(131_072, n, "contiguous").slowdown,
                unit="×",
                why="In every step but the first some rank has a whole block to compute, and all wait for it.",
                at=(n,),
                tick=str(n),
            )
            for n in ranks
        ),
        sketch=Sketch(x="ranks", y="time over a fair share", low=1, high=4),
    )


def composing() -> Prediction:
    """Chapter 08: GPT-3 on 32 GPUs, tensor 8, pipeline 2, data 2."""
    gpt3, order = preset("gpt3-175b"), (("tensor", 8), ("data", 2), ("pipeline", 2))
    sent = dict(
        communication.layout_traffic(
            parameters(gpt3),
            gpt3.layers,
            2048,
            1,
            gpt3.hidden,
            gpt3.heads,
            64,
            data_parallel=2,
            tensor_parallel=8,
            pipeline_parallel=2,
            zero_stage=1,
            sequence_parallel=True,
        ).items
    )
    axes = sorted(("tensor", "data", "pipeline"), key=lambda axis: sent[axis], reverse=True)
    node = hardware.node("dgx-h100")
    together, strewn = mesh(order), mesh(order[::-1])
    near, far = (
        each.ring_bandwidth(("tensor",), node.intra.bandwidth, node.network_bandwidth)
        for each in (together, strewn)
    )
    return Prediction(
        id="c08",
        items=(
            Choice(
                id="axis",
                prompt="Along which axis does a rank send most?",
                options=tuple((axis, axis) for axis in ("data", "tensor", "pipeline")),
                key=axes[0],
                why="Every layer and every micro-batch pays for the tensor axis; the gradients travel once a step.",
                at=("heaviest axis",),
            ),
            Guess(
                id="times",
                prompt="How many times as much as along the next?",
                key=sent[axes[0]] / sent[axes[1]],
                unit="×",
                why=f"{decimal(sent[axes[0]] / GB)} GB against {decimal(sent[axes[1]] / GB)} GB a step.",
                at=("times the next",),
                digits=2,
            ),
            Guess(
                id="slower",
                prompt="With tensor groups strewn over all nodes, how many times as long does their traffic take?",
                key=near / far,
                unit="×",
                why=f"{in_words(strewn.leaving(('tensor',))).capitalize()} rings leave every node at once and share its network.",
                at=("slower by",),
                digits=2,
            ),
        ),
    )


def engineering() -> Prediction:
    """Chapter 09: accumulation, jitter, tokens."""
    local = 4
    step = scaling.data_parallel(8, local * 100 * MS, 1 * GB, 10 * GB, 10 * US)
    ranks, mean_s, sd_s = 1024, 100 * MS, 10 * MS
    slowest_s = stragglers.normal_jitter_step(mean_s, sd_s, ranks).expected_step_s
    tokens, losses = [10, 90], [2.0, 1.0]
    loss = batch.token_average(tokens, losses)
    return Prediction(
        id="c09",
        items=(
            Guess(
                id="speedup",
                prompt=f"What is the factor with {local} local batches before every all-reduce?",
                key=step.speedup,
                unit="×",
                why=f"The wait of {decimal(step.communication_time_s / MS)} ms is spread over {in_words(local)} batches.",
                at=("speedup",),
            ),
            Guess(
                id="jitter",
                prompt=f"How long does a step take on {ranks} ranks that need {decimal(mean_s / MS)} ms, "
                f"give or take {decimal(sd_s / MS, 2)} ms?",
                key=slowest_s / MS,
                unit="ms",
                why=f"The slowest of {ranks} is more than {in_words(math.floor((slowest_s - mean_s) / sd_s))} "
                "standard deviations late, in every step.",
                at=("step, ms",),
            ),
            Guess(
                id="loss",
                prompt="What is the loss of the batch, if every token counts the same?",
                key=loss.per_token,
                unit="",
                why=f"{tokens[1]} of {loss.tokens} tokens have a loss of {losses[1]}.",
                at=("loss",),
            ),
        ),
    )


def checkpoints() -> Prediction:
    """Chapter 10: Llama 3 405B with its failure rate."""
    n_params, restart_s = 405e9, 600.0
    size = checkpoint.checkpoint_bytes(n_params, "adam-12")
    write_s = checkpoint.transfer_time_s(size, 2 * TB)
    mtbf_s = checkpoint.observed_mtbf_s(54 * 86_400, 419)
    best_s = checkpoint.optimal_interval_s(write_s, mtbf_s)
    cost = checkpoint.checkpoint_cost(best_s, write_s, mtbf_s, restart_s)
    return Prediction(
        id="c10",
        items=(
            Guess(
                id="size",
                prompt="How large is one checkpoint?",
                key=size / TB,
                unit="TB",
                why=f"{decimal(size / n_params, 2)} bytes for each of {billions(n_params)} parameters.",
                at=("size, TB",),
            ),
            Guess(
                id="interval",
                prompt="How often would you save: every how many seconds?",
                key=best_s,
                unit="s",
                why=f"Writing takes seconds and a failure comes every {in_words(round(mtbf_s / 3600))} hours, "
                "so the best interval is minutes.",
                at=("interval, s",),
            ),
            Guess(
                id="lost",
                prompt="What share of the time is lost, if you choose well?",
                key=100 * cost.waste_fraction,
                unit="%",
                why=f"Most of it is the {decimal(restart_s)} s of each restart, which no interval can save.",
                at=("time lost, %",),
                digits=2,
            ),
        ),
    )


def production() -> Prediction:
    """Chapter 11: two reports from the public record."""
    n_cards = 2
    cards = diagnose.data_parallel(
        base_step_s=22.03 * MS, step_s=26.36 * MS, n_ranks=n_cards, scaling="strong", gradient_bytes="16 MB"
    )
    servers = diagnose.data_parallel(
        base_step_s=256 / 1531.9,
        step_s=512 / 546.9,
        n_ranks=16,
        base_ranks=8,
        scaling="weak",
        gradient_bytes="553.4 MB",
        nominal_bandwidth="100 Gb/s",
    )
    # Scaling and link are named above, so both are known.
    assert cards.efficiency is not None
    assert servers.fraction_of_nominal is not None
    efficiency, used = cards.efficiency, servers.fraction_of_nominal[1]
    assert used is not None
    return Prediction(
        id="c11",
        items=(
            Guess(
                id="efficiency",
                prompt="What is the efficiency of the two T4?",
                key=100 * efficiency,
                unit="%",
                why="The report doesn't say it, but the global batch was kept: "
                f"{in_words(n_cards)} cards take longer for what one did.",
                at=("efficiency of two T4",),
                scale=0.01,
                digits=2,
            ),
            Guess(
                id="share",
                prompt="What share of its 100 Gb/s did the second job use?",
                key=100 * used,
                unit="%",
                why="The gradients and the longer step together say what the network delivered.",
                at=("share of 100 Gb/s",),
                scale=0.01,
                digits=2,
            ),
        ),
    )


def antipatterns() -> Prediction:
    """Chapter 12: one slow rank among 64."""
    ranks, n_slow = 64, 1
    slow = stragglers.slow_rank_step(100 * MS, 1.5, ranks=ranks, slow_ranks=n_slow)
    return Prediction(
        id="c12",
        items=(
            Guess(
                id="step",
                prompt="By what factor does the step time change?",
                key=slow.expected_step_s / (100 * MS),
                unit="×",
                why="All wait for the slowest.",
                at=("step time",),
            ),
            Guess(
                id="mean",
                prompt="And the mean compute time over the ranks?",
                key=slow.mean_s / (100 * MS),
                unit="×",
                why=f"{in_words(n_slow).capitalize()} rank of {ranks} hardly moves a mean, so this dashboard stays green.",
                at=("mean compute",),
                digits=4,
            ),
            Guess(
                id="loss",
                prompt="And the loss after 1000 steps?",
                key=1.0,
                unit="×",
                why="A slow rank computes the same gradients, only later.",
                at=("loss",),
            ),
        ),
    )


def capstone() -> Prediction:
    """Chapter 13: Llama 3 405B on 16,384 H100, as its authors measured it."""
    step = published.llama3_steps()[1]
    made = plan.predict_published(step)
    losses = ("pipeline bubble", "tensor-parallel communication", "data-parallel communication")
    return Prediction(
        id="c13",
        items=(
            Guess(
                id="mfu",
                prompt=f"Which share of the peak of {decimal(step.cluster.node.accelerator.peak_flops / 1e12)} TFLOP/s "
                "goes into the model?",
                key=100 * made.mfu * made.step_time_s / step.step_s,
                unit="%",
                why="As measured by its authors; how the rest is spent is what the chapter works out.",
                at=("MFU",),
                scale=0.01,
            ),
            Guess(
                id="step",
                prompt="How long is a step?",
                key=step.step_s,
                unit="s",
                why=f"That follows from the share: the FLOP of {decimal(step.global_batch * step.sequence / 1e6)} million tokens "
                f"over what {step.cluster.gpus} GPUs deliver.",
                at=("step",),
            ),
            Choice(
                id="loss",
                prompt="Which loss is the largest?",
                options=(
                    ("pipeline bubble", "waiting in the pipeline"),
                    ("tensor-parallel communication", "tensor-parallel traffic"),
                    ("data-parallel communication", "the gradients"),
                ),
                key=max(losses, key=made.seconds),
                why="By the model: nobody published these parts.",
                at=("loss",),
            ),
        ),
    )


PREDICTIONS: dict[str, Callable[[], Prediction]] = {
    "c01": why_distribute,
    "c02": what_collectives_cost,
    "c03": data_parallel,
    "c04": zero,
    "c05": tensor_parallel,
    "c06": pipeline,
    "c07": context_parallel,
    "c08": composing,
    "c09": engineering,
    "c10": checkpoints,
    "c11": production,
    "c12": antipatterns,
    "c13": capstone,
}
