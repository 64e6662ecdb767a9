"""Chapter 13: can you predict a run from model, cluster and layout?

The envelope of the chapter first. Then a whole run of the reader's own, term by term, with the formulas of all
chapters; which resource to buy; how well a calculator does; and how long a run is that is more than its steps.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.checkpoint import checkpoint_cost, expected_run_time_s, young_interval_s
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.memory import model_states
from shardlab.models.mesh import mesh
from shardlab.models.pipeline_formulas import bubble_of_ideal, bubble_of_total
from shardlab.models.plan import predict_published
from shardlab.models.published import llama3_steps
from shardlab.models.tensor import layer_sent_bytes
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Table,
    Variant,
    choice,
    decimal,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, billions, figure, gigabytes, percent, ranking, share, whole
from shardlab.transformer import model_flops, parameters, training_flops
from shardlab.units import GB, significant

SEED = 13
DAY = 86400.0


def build(seed: int = SEED) -> Quiz:
    """Llama 3 on 16384 GPUs first, then four fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c13",
        title="Can you predict a run from model, cluster and layout?",
        question="How long is a step, where does its time go, and how far is such a prediction to be trusted?",
        variants=(_chapter(), _run(seed), _bought(seed), _rows(seed), _month(seed)),
        values={},
        seed=seed,
    )


def seconds(value: float, digits: int = 3) -> str:
    """Seconds of a cause: ``0.538 s``."""
    return decimal(value, digits) + " s"


def _chapter() -> Variant:
    published = llama3_steps()[1]
    model, gpus = published.model, published.cluster.gpus
    node = published.cluster.node
    t, p, v, s = published.tensor, published.pipeline, 8, published.sequence
    m = published.global_batch // published.data
    params = float(parameters(model))
    flops = model_flops(model, s, published.global_batch)
    rate = node.accelerator.matmul_flops * node.accelerator.sustained
    work = flops / gpus / rate
    tensor = m * model.layers / p * layer_sent_bytes(s, 1, model.hidden, t) / node.intra.bandwidth
    bubble = (work + tensor) * bubble_of_ideal(p, m, v)
    network = node.network_bandwidth_per_gpu
    moved = params / (t * p) * (4 + 2)
    data = moved / network
    by_hand = work + tensor + bubble + data
    made = predict_published(published)
    low, high = made.step_time_bracket_s
    values = {
        "gpus": str(gpus),
        "flops": decimal(flops / 1e18, 4),
        "rate": decimal(rate / 1e12, 4),
        "params": billions(params),
        "t": str(t),
        "p": str(p),
        "v": str(v),
        "m": str(m),
        "parts": str(t * p),
        "net": decimal(network / GB),
        "tensor": seconds(tensor),
        "work": seconds(work),
        "bubble": seconds(bubble),
        "data": seconds(data),
        "moved": gigabytes(moved),
        "ideal": percent(bubble_of_ideal(p, m, v)),
        "hand": seconds(by_hand),
        "measured": seconds(published.step_s),
        "short": percent(1 - by_hand / published.step_s),
        "best": seconds(made.step_time_s),
        "low": seconds(low),
        "high": seconds(high),
    }
    return variant(
        id="chapter",
        title="Llama 3 405B on the back of an envelope",
        scenario="A step of Llama 3 405B on {gpus} GPUs is {flops} · 10^18^ FLOP of the model. Its first and last stage hold a layer less than the others; here all stages count as equal, so Ψ is a little above 405 billion. Layers are split over {t} tensor-parallel ranks and {p} stages, which we take as {v} chunks each; a pipeline gets {m} micro-batches. "
        "A GPU keeps up {rate} TFLOP/s. The collectives inside layers take {tensor} of the step.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="m, p, v", meaning="micro-batches, stages, chunks", value="{m}, {p}, {v}"),
            Given(
                symbol="B", meaning="network, of one GPU and direction, by the data sheet", value="{net} GB/s"
            ),
        ),
        values=values,
        parts=(
            figure(
                id="work",
                prompt="How long does the arithmetic take?",
                key=work,
                unit="s",
                wrong=[
                    (flops / gpus / node.accelerator.peak_flops, "peak-for-sustained"),
                    (work / 3, "forward-only"),
                    (work * 8 / 6, "recompute-counted"),
                ],
                solution=("FLOP over GPUs over FLOP/s: {work}.",),
            ),
            figure(
                id="bubble",
                prompt="How long is the bubble, if only arithmetic and the collectives inside layers are pipelined?",
                key=bubble,
                unit="s",
                relative=0.02,
                wrong=[
                    ((work + tensor) * bubble_of_ideal(p, m), "interleaving-ignored"),
                    (
                        (work + tensor) * bubble_of_total(p, m, v),
                        "total-for-ideal",
                        "That share is of the total time. What is at hand is the working time.",
                    ),
                    (work * bubble_of_ideal(p, m, v), "tensor-outside-bubble"),
                    ((work + tensor) * p / (v * m), "stages-for-gaps"),
                ],
                solution=(
                    "Idle over ideal time: (*p*−1)/(*v*·*m*) = {ideal} of {work} + {tensor}: {bubble}.",
                ),
            ),
            figure(
                id="data",
                prompt="Each replica's gradients go out in fp32, its weights come back in bf16; almost every byte crosses the network once each way. How long does that take, if nothing hides it?",
                key=data,
                unit="s",
                relative=0.02,
                wrong=[
                    (params * (4 + 2) / network, "axis-forgotten"),
                    (params / (t * p) * (2 + 2) / network, "gradient-width"),
                    (params / (t * p) * 4 / network, "one-way", "The updated weights come back, too."),
                    (8 * data, "bits-for-bytes"),
                ],
                solution=("A rank has Ψ/{parts}: 6 bytes of each are {moved}, over {net} GB/s {data}.",),
            ),
            choice(
                id="bracket",
                prompt="The library's model says {best}, and gives a bracket of {low} to {high}. The paper's throughput makes it {measured}; the rate for this GPU was fitted to another row of the same table. What does that say?",
                options=(
                    wrong(
                        "bar",
                        "The error is at most half the bracket.",
                        "bracket-as-error-bar",
                    ),
                    wrong(
                        "proof",
                        "One row met: the model is right for every layout.",
                        "one-row-proves",
                    ),
                    right(
                        "overlap",
                        "{low} if all communication is hidden and {high} if none is. The best estimate lies between, by what the software is known to overlap.",
                        "A measurement outside the bracket would say that a cause is missing, or an input wrong.",
                    ),
                    wrong(
                        "fit",
                        "Nothing: a constant was fitted to this row.",
                        "held-out-denied",
                        "The constant comes from the row of 8192 GPUs. This one was predicted with it.",
                    ),
                ),
            ),
            open_question(
                id="short",
                prompt="The four add up to {hand}; by the throughput that the paper prints it was {measured}. What did the envelope leave out, and what may you not do about it?",
                answer="It is {short} short, on the side on which all such sums err: they leave things out. "
                "Here: a kernel is also memory traffic and a launch, norms and activation functions take time, the output head works on the last stage alone, stages hand activations on, "
                "and a link is slower than its data sheet. Part of the exchange across replicas hides under compute, which goes the other way. "
                "Add causes that can be measured or computed on their own. Do not bend a constant until this one row fits: then it is no longer a prediction, and the other rows pay for it. "
                "Give a bracket from all communication hidden to none.",
                points=(
                    "Kernels are more than arithmetic: memory traffic, launches, norms.",
                    "Output head, transfers between stages, links below their data sheet.",
                    "Some communication is hidden, which shortens the step.",
                    "No constant is bent to the row that it is tested on; a bracket is given.",
                ),
            ),
        ),
    )


def _run(seed: int) -> Variant:
    draw = Draw(seed, "c13/run")

    def propose() -> tuple[Any, ...]:
        return (
            draw.pick(((7e9, 32, 4096), (13e9, 40, 5120), (34e9, 48, 8192), (65e9, 80, 8192))),
            draw.pick((2, 4, 8)),
            draw.pick((2, 4, 8)),
            draw.pick((4, 8, 16)),
            draw.pick((8, 12, 16, 24, 32)),
            draw.pick((2048, 4096, 8192)),
            draw.pick(((675e12, 989e12, 450 * GB, 50 * GB), (230e12, 312e12, 300 * GB, 25 * GB))),
        )

    def causes(drawn: tuple[Any, ...]) -> list[float]:
        (params, layers, hidden), t, p, d, m, s, (rate, _, inside, network) = drawn
        work = training_flops(params, float(m * s)) / (t * p) / rate
        tensor = m * layers / p * layer_sent_bytes(s, 1, hidden, t) / inside
        bubble = (work + tensor) * bubble_of_ideal(p, m)
        data = ring_allreduce_sent_bytes(2 * params / (t * p), d) / network
        return [work, tensor, bubble, data]

    def fits(drawn: tuple[Any, ...]) -> bool:
        held = model_states(drawn[0][0] / (drawn[1] * drawn[2]), drawn[3], 1).total_bytes
        found = causes(drawn)
        # Each cause shows in the sum, the order is no matter of rounding, and the states leave room in 80 GB.
        return held < 60 * GB and min(found) > 0.02 * found[0] and apart(found, 1.1)

    drawn = draw.until(propose, fits)
    (params, layers, hidden), t, p, d, m, s, (rate, peak, inside, network) = drawn
    work, tensor, bubble, data = causes(drawn)
    world = mesh((("tensor", t), ("pipeline", p), ("data", d))).ranks
    local = params / (t * p)
    held = model_states(local, d, 1).total_bytes
    none, hidden_step = work + tensor + bubble + data, work + tensor + bubble
    flops = training_flops(params, float(d * m * s))
    mfu = flops / (world * peak * none)
    values = {
        "params": billions(params),
        "layers": str(layers),
        "hidden": str(hidden),
        "world": str(world),
        "t": str(t),
        "p": str(p),
        "d": str(d),
        "m": str(m),
        "s": str(s),
        "rate": decimal(rate / 1e12),
        "peak": decimal(peak / 1e12),
        "inside": decimal(inside / GB),
        "network": decimal(network / GB),
        "parts": str(t * p),
        "local": billions(local),
        "held": gigabytes(held),
        "work": seconds(work),
        "sent": gigabytes(layer_sent_bytes(s, 1, hidden, t)),
        "rank_layers": str(layers // p),
        "tensor": seconds(tensor),
        "bubble": seconds(bubble),
        "ideal": percent(bubble_of_ideal(p, m)),
        "data": seconds(data),
        "none": seconds(none),
        "all": seconds(hidden_step),
        "mfu": percent(mfu),
    }
    return variant(
        id="run",
        title="A run of your own",
        scenario="A model of {params} parameters, {layers} layers of hidden size {hidden}, trains on {world} GPUs with {t} tensor-parallel ranks inside a node, {p} equal stages (1F1B) and data parallelism with ZeRO-1 over the rest. "
        "Each pipeline gets {m} micro-batches of one sequence of {s} tokens. Nothing is recomputed; activations, gradients and weights travel in 2 bytes; latency is small; 6 FLOP per parameter and token.",
        given=(
            Given(symbol="F", meaning="dense peak of a GPU", value="{peak} TFLOP/s"),
            Given(symbol="F′", meaning="what it keeps up in large products", value="{rate} TFLOP/s"),
            Given(symbol="Bᵢₙ", meaning="link of a GPU inside a node, per direction", value="{inside} GB/s"),
            Given(symbol="B", meaning="network of a GPU, per direction", value="{network} GB/s"),
        ),
        values=values,
        parts=(
            whole(
                id="data-ranks",
                prompt="How many data-parallel ranks are there?",
                key=d,
                unit="ranks",
                wrong=[
                    (world // t, "axis-forgotten"),
                    (world // p, "axis-forgotten"),
                    (world - t - p, "axes-add-up"),
                    (world, "axis-forgotten"),
                ],
                solution=("{world} / ({t} · {p}) = {d}.",),
            ),
            figure(
                id="held",
                prompt="How large are the model states of a rank, with 2 + 2 + 12 bytes per parameter?",
                key=held / GB,
                unit="GB",
                wrong=[
                    (16 * local / GB, "nothing-sharded"),
                    (model_states(params, d, 1).total_bytes / GB, "axis-forgotten"),
                    (model_states(local, d, 2).total_bytes / GB, "other-stage"),
                    (model_states(local, d, 3).total_bytes / GB, "all-sharded"),
                ],
                solution=(
                    "Ψ/{parts} = {local} on a rank: 4 bytes each, and 12/{d} of the sharded optimizer: {held}.",
                ),
            ),
            figure(
                id="work",
                prompt="How long does a rank's arithmetic take in a step?",
                key=work,
                unit="s",
                wrong=[
                    (work * rate / peak, "peak-for-sustained"),
                    (work / 3, "forward-only"),
                    (work * p, "axis-forgotten"),
                    (work / m, "one-micro-batch"),
                ],
                solution=("6Ψ/{parts} · {m} · {s} FLOP over {rate} TFLOP/s: {work}.",),
            ),
            figure(
                id="tensor",
                prompt="And its collectives inside layers, which nothing hides?",
                key=tensor,
                unit="s",
                relative=0.02,
                wrong=[
                    (tensor / 2, "forward-only"),
                    (tensor * p, "axis-forgotten", "A rank holds {rank_layers} of the {layers} layers."),
                    (tensor / m, "one-micro-batch"),
                    (tensor * inside / network, "finest-split-anywhere"),
                ],
                solution=(
                    "8·*s*·*h*·(*t*−1)/*t* numbers of 2 bytes are {sent} a layer; {rank_layers} layers and {m} micro-batches over {inside} GB/s: {tensor}.",
                ),
            ),
            figure(
                id="bubble",
                prompt="How long does each rank idle in the pipeline?",
                key=bubble,
                unit="s",
                relative=0.02,
                wrong=[
                    ((work + tensor) * bubble_of_total(p, m), "total-for-ideal"),
                    (work * bubble_of_ideal(p, m), "tensor-outside-bubble"),
                    ((work + tensor) * p / m, "stages-for-gaps"),
                ],
                solution=("(*p*−1)/*m* = {ideal} of {work} + {tensor}: {bubble}.",),
            ),
            figure(
                id="data",
                prompt="How long do gradients and weights take across the replicas, if nothing hides them?",
                key=data,
                unit="s",
                relative=0.02,
                wrong=[
                    (data * t * p, "axis-forgotten"),
                    (data / 2, "one-phase"),
                    (8 * data, "bits-for-bytes"),
                    (m * data, "bytes-per-micro-batch"),
                ],
                solution=("2(*d*−1)/*d* of 2 bytes for {local} over {network} GB/s: {data}.",),
            ),
            share(
                id="mfu",
                prompt="What is the MFU if nothing of that last part is hidden?",
                key=mfu,
                points=1.0,
                wrong=[
                    (mfu * peak / rate, "peak-for-sustained", "MFU is a share of the dense peak."),
                    (
                        flops / (world * peak * work),
                        "free-lunch",
                        "That leaves out everything but arithmetic.",
                    ),
                    (mfu / 3, "forward-only"),
                ],
                solution=(
                    "The step takes {none} (and {all} if all of it is hidden): 6Ψ·*D* over {world} GPUs, {peak} TFLOP/s and that time: {mfu}.",
                ),
            ),
            ranking(
                id="losses",
                prompt="Put the causes in order.",
                first="largest",
                last="smallest",
                highest=True,
                rows=[
                    (work, "work", "arithmetic", "{work}"),
                    (tensor, "tensor", "collectives inside layers", "{tensor}"),
                    (bubble, "bubble", "waiting in the pipeline", "{bubble}"),
                    (data, "data", "gradients and weights across replicas", "{data}"),
                ],
                start=draw,
            ),
        ),
    )


def _bought(seed: int) -> Variant:
    draw = Draw(seed, "c13/bought")

    def propose() -> tuple[float, ...]:
        return (
            draw.pick((3.0, 4.0, 5.0, 6.0)),
            draw.pick((0.4, 0.6, 0.8, 1.2, 1.6)),
            draw.pick((0.5, 0.9, 1.4, 2.0, 2.6)),
            draw.pick((0.125, 0.175, 0.25, 0.375)),
        )

    def steps(drawn: tuple[float, ...]) -> list[float]:
        """The step as it is, and with each thing doubled: compute, inside, network, micro-batches (of half size)."""
        work, tensor, data, ratio = drawn
        return [
            (work + tensor) * (1 + ratio) + data,
            (work / 2 + tensor) * (1 + ratio) + data,
            (work + tensor / 2) * (1 + ratio) + data,
            (work + tensor) * (1 + ratio) + data / 2,
            (work + tensor) * (1 + ratio / 2) + data,
        ]

    drawn = draw.until(propose, lambda some: apart(steps(some), 1.03))
    work, tensor, data, ratio = drawn
    now, chip, inside, network, chunks = steps(drawn)
    gains = [("inside", inside), ("network", network), ("chunks", chunks)]
    best = min(gains, key=lambda each: each[1])[0]
    values = {
        "work": seconds(work),
        "tensor": seconds(tensor),
        "data": seconds(data),
        "bubble": seconds((work + tensor) * ratio),
        "ratio": percent(ratio),
        "now": seconds(now, 4),
        "chip": seconds(chip, 4),
        "inside": seconds(inside, 4),
        "network": seconds(network, 4),
        "chunks": seconds(chunks, 4),
    }
    return variant(
        id="bought",
        title="What would you double?",
        scenario="A step is made of four causes: arithmetic, collectives inside layers, the pipeline's bubble of {ratio} over ideal time (of the first two), and the exchange across replicas. Nothing is hidden under anything else.",
        given=(
            Given(symbol="w", meaning="arithmetic", value="{work}"),
            Given(symbol="c", meaning="collectives inside layers", value="{tensor}"),
            Given(symbol="x", meaning="bubble, idle over ideal time", value="{ratio}"),
            Given(symbol="d", meaning="exchange across replicas", value="{data}"),
        ),
        values=values,
        parts=(
            figure(
                id="now",
                prompt="How long is the step?",
                key=now,
                unit="s",
                digits=4,
                wrong=[
                    (work + tensor + data, "no-bubble"),
                    (work * (1 + ratio) + tensor + data, "tensor-outside-bubble"),
                    ((work + tensor + data) * (1 + ratio), "all-in-bubble"),
                    ((work + tensor) / (1 - ratio) + data, "ideal-for-total"),
                ],
                solution=("({work} + {tensor}) and {ratio} of that, {bubble}, and {data}: {now}.",),
            ),
            figure(
                id="chip",
                prompt="GPUs with twice the FLOP/s and the same links: how long is it then?",
                key=chip,
                unit="s",
                digits=4,
                wrong=[
                    (now / 2, "amdahl-forgotten"),
                    (
                        work / 2 + tensor + (work + tensor) * ratio + data,
                        "bubble-stays",
                    ),
                    ((work + tensor) / 2 * (1 + ratio) + data, "links-faster-too"),
                ],
                solution=("Arithmetic and its part of the bubble halve, nothing else does: {chip}.",),
            ),
            figure(
                id="network",
                prompt="Twice the network between nodes, with tensor parallelism inside them and free hand-overs between stages?",
                key=network,
                unit="s",
                digits=4,
                wrong=[
                    (now / 2, "amdahl-forgotten"),
                    ((work + tensor / 2) * (1 + ratio) + data / 2, "links-faster-too"),
                    (inside, "other-network"),
                    (now - data, "free-lunch", "The exchange halves; it doesn't vanish."),
                ],
                solution=("Only the exchange across replicas halves: {network}.",),
            ),
            ranking(
                id="best",
                prompt="Compute is as it is. In which order do these shorten the step?",
                first="shortest step",
                last="longest step",
                rows=[
                    (inside, "inside", "twice the bandwidth inside the node", "{inside}"),
                    (network, "network", "twice the network between nodes", "{network}"),
                    (chunks, "chunks", "twice the chunks per rank, whose messages are free here", "{chunks}"),
                    (now, "now", "nothing", "{now}"),
                ],
                start=draw,
            ),
            choice(
                id="hidden",
                prompt="Later you learn that the whole exchange across replicas was hidden under the backward pass. What does the doubled network bring then?",
                options=(
                    wrong("all", "All of {data}.", "hidden-can-be-saved"),
                    wrong("half", "Half of {data}.", "hidden-can-be-saved"),
                    right("nothing", "Nothing.", "What is hidden does not lengthen the step."),
                    wrong(
                        "more",
                        "More than before: compute has the links to itself.",
                        "overlap-saves-bytes",
                        "The bytes are the same, and nobody waited for them.",
                    ),
                ),
                solution=(
                    "Of the three that were for sale, "
                    + {
                        "inside": "the links inside the node",
                        "network": "the network",
                        "chunks": "the chunks",
                    }[best]
                    + " came first by the sum with nothing hidden. A bracket shows how much hangs on that.",
                ),
            ),
        ),
    )


def _rows(seed: int) -> Variant:
    draw = Draw(seed, "c13/rows")
    names = ("A", "B", "C", "D", "E", "F")

    def propose() -> list[tuple[float, float]]:
        rows = []
        for place in range(len(names)):
            measured = draw.pick((3.6, 5.2, 8.4, 12.5, 18.0, 24.4, 37.5, 51.2))
            # The first two were fitted.
            error = draw.pick((-1, 1)) * draw.pick((0.2, 0.4, 0.6) if place < 2 else (3, 4, 6, 8, 11, 14))
            rows.append((measured, float(significant(measured * (1 + error / 100), 4))))
        return rows

    def errors(rows: list[tuple[float, float]]) -> list[float]:
        return [predicted / measured - 1 for measured, predicted in rows]

    def mean(found: list[float]) -> float:
        total = 0.0
        for each in found:
            total += each
        return total / len(found)

    def fits(rows: list[tuple[float, float]]) -> bool:
        held = errors(rows)[2:]
        return min(held) < -0.02 and max(held) > 0.02 and apart([abs(each) for each in held], 1.1)

    rows = draw.until(propose, fits)
    found = errors(rows)
    sizes = [abs(each) for each in found]
    worst = sizes.index(max(sizes))
    honest = mean(sizes[2:])
    values = {
        "honest": percent(honest),
        "worst": names[worst],
        "signed": f"{100 * found[worst]:+.1f} %".replace("-", "−"),
    }
    values.update([(f"e{names[place]}", percent(sizes[place])) for place in range(2, len(names))])
    return variant(
        id="rows",
        title="How good is this calculator?",
        scenario="A calculator of step times is held against six measured steps. Its constants were fitted to the steps A and B; the others it had not seen.",
        table=Table(
            caption="Steps, in seconds",
            columns=("step", "predicted", "measured", "used for fitting"),
            rows=tuple(
                [
                    (name, decimal(predicted, 4), decimal(measured, 3), "yes" if place < 2 else "no")
                    for place, (name, (measured, predicted)) in enumerate(zip(names, rows))
                ]
            ),
        ),
        values=values,
        parts=(
            share(
                id="worst",
                prompt="How large is the error of step {worst}, in per cent of the measurement and without sign?",
                key=sizes[worst],
                points=0.1,
                wrong=[
                    (
                        abs(rows[worst][0] / rows[worst][1] - 1),
                        "wrong-whole",
                        "That is a share of the prediction.",
                    ),
                    (mean(sizes), "mean-for-worst"),
                    (
                        1 + found[worst],
                        "step-inflation",
                        "Take the 1 off: the question asks for the difference.",
                    ),
                ],
                solution=("Predicted over measured less 1: {signed}.",),
            ),
            share(
                id="mean",
                prompt="What is the mean error of its predictions, without sign?",
                key=honest,
                points=0.15,
                wrong=[
                    (mean(sizes), "fit-is-no-prediction"),
                    (abs(mean(found[2:])), "signs-cancel"),
                    (sizes[worst], "worst-for-mean", "That is the largest. The question asks for the mean."),
                ],
                solution=("The mean over C to F, which it had not seen: {honest}.",),
            ),
            ranking(
                id="order",
                prompt="Put the four predictions in order of the size of their error.",
                first="smallest",
                last="largest",
                rows=[
                    (sizes[place], names[place].lower(), f"step {names[place]}", "{e" + names[place] + "}")
                    for place in range(2, len(names))
                ],
                start=draw,
            ),
            several(
                id="said",
                prompt="What has to stand beside such a table?",
                options=(
                    wrong("best", "only the rows that the model is made for", "misses-left-out"),
                    right("fitted", "which rows were used for fitting", "They prove nothing about others."),
                    wrong(
                        "refit",
                        "a second fit to all rows, if its mean is smaller",
                        "fit-is-no-prediction",
                        "It is always smaller, and then nothing is left to test it on.",
                    ),
                    right(
                        "largest", "the largest error, and every row that was missed", "A mean hides them."
                    ),
                    right(
                        "open",
                        "what the sources leave open, and what was assumed for it",
                        "A micro-batch that is not printed is a free choice.",
                    ),
                ),
            ),
        ),
    )


def _month(seed: int) -> Variant:
    draw = Draw(seed, "c13/month")

    def propose() -> tuple[float, ...]:
        return (
            1e12 * draw.pick((1.0, 2.0, 5.0, 10.0)),
            1e6 * draw.pick((4.0, 8.0, 16.0)),
            draw.pick((4.0, 6.0, 8.0, 10.0)),
            draw.pick((512, 1024, 2048, 4096)),
            draw.pick((30.0, 60.0, 90.0)),
            draw.pick((300.0, 600.0)),
        )

    def whole_run(drawn: tuple[float, ...]) -> tuple[float, float, float, float, float]:
        tokens, batch, step, gpus, write, restart = drawn
        useful = tokens / batch * step
        # One interruption in 50 000 GPU-hours, as Llama 3 saw (419 in 54 days on 16 384).
        between = 50_000 * 3600.0 / gpus
        interval = young_interval_s(write, between)
        waste = checkpoint_cost(interval, write, between, restart).first_order_waste
        return (
            useful,
            between,
            interval,
            waste,
            expected_run_time_s(useful, interval, write, between, restart),
        )

    def fits(drawn: tuple[float, ...]) -> bool:
        useful, between, _, waste, _ = whole_run(drawn)
        # The restart shows in the waste.
        return 8 * DAY < useful < 200 * DAY and waste < 0.07 and drawn[-1] > 0.003 * between

    drawn = draw.until(propose, fits)
    tokens, batch, step, gpus, write, restart = drawn
    useful, between, interval, waste, total = whole_run(drawn)
    price = draw.pick((2, 3))
    dollars = total / 3600 * gpus * price
    deadline = int(draw.pick((0.9, 1.25)) * total / DAY + 0.5)
    values = {
        "tokens": decimal(tokens / 1e12, 2),
        "batch": decimal(batch / 1e6, 2),
        "step": decimal(step, 2),
        "gpus": str(gpus),
        "between": decimal(between / 3600),
        "write": decimal(write, 2),
        "restart": decimal(restart / 60, 2),
        "price": str(price),
        "steps": decimal(tokens / batch, 6),
        "days": decimal(useful / DAY),
        "interval": decimal(interval / 60),
        "waste": percent(waste),
        "total": decimal(total / DAY),
        "dollars": decimal(dollars / 1e6),
        "deadline": str(deadline),
    }
    return variant(
        id="month",
        title="A step is not a run",
        scenario="A run reads {tokens} · 10^12^ tokens in steps of {batch} million tokens. A step takes {step} s on {gpus} GPUs. The job fails once in {between} h on average; a checkpoint stops it for {write} s, and after a failure it takes {restart} min until training goes on. A GPU costs {price} dollars an hour.",
        given=(
            Given(symbol="M", meaning="mean time between failures of the job", value="{between} h"),
            Given(symbol="δ", meaning="a checkpoint, training stops", value="{write} s"),
            Given(symbol="R", meaning="restart", value="{restart} min"),
        ),
        values=values,
        parts=(
            figure(
                id="days",
                prompt="How many days would the steps alone take?",
                key=useful / DAY,
                unit="days",
                wrong=[
                    (useful / 3600, "days-for-hours", "That is hours."),
                    (useful / DAY / gpus, "whole-cluster", "A step's time is that of all GPUs together."),
                    (tokens / batch / DAY, "steps-for-seconds"),
                ],
                solution=("{steps} steps of {step} s: {days} days.",),
            ),
            figure(
                id="interval",
                prompt="How far apart should checkpoints be, by Young's formula?",
                key=interval / 60,
                unit="min",
                wrong=[
                    ((write * between) ** 0.5 / 60, "root-of-half"),
                    (between / 60, "once-per-failure"),
                    (2 * write * between / 60, "root-forgotten"),
                ],
                solution=("√(2δ*M*) = {interval} min.",),
            ),
            share(
                id="waste",
                prompt="Then writing, work done again and restarts cost which share of the computing time, to first order?",
                key=waste,
                points=0.12,
                wrong=[
                    (write / interval + interval / 2 / between, "restart-forgotten"),
                    (write / interval + (interval + restart) / between, "whole-interval-lost"),
                    (write / interval, "failures-left-out"),
                ],
                solution=("δ/τ + (τ/2 + *R*)/*M* = {waste}.",),
            ),
            figure(
                id="bill",
                prompt="What does the run cost, failures included?",
                key=dollars / 1e6,
                unit="million dollars",
                relative=0.02,
                wrong=[
                    (dollars / 24e6, "days-for-hours", "GPUs are paid by the hour."),
                    (dollars / gpus / 1e6, "rank-for-cluster", "That is one GPU."),
                    (dollars * 24 / 1e6, "days-for-hours", "That counts every day 24 times."),
                ],
                solution=("{total} days · 24 h · {gpus} GPUs · {price} dollars = {dollars} million.",),
            ),
            choice(
                id="deadline",
                prompt="The model is wanted in {deadline} days. Does the plan hold?",
                options=(
                    wrong(
                        "often",
                        "Only if checkpoints are written twice as often.",
                        "more-is-safer",
                        "Young's interval is the cheapest. Twice as many cost more time than they save.",
                    ),
                    judged(
                        "holds",
                        "Yes, with days to spare for evaluations, a roll-back and bad luck.",
                        total < deadline * DAY,
                        "Steps and failures take {total} days.",
                        "run-longer-than-wanted",
                    ),
                    judged(
                        "late",
                        "No: it takes longer than that.",
                        total > deadline * DAY,
                        "Steps and failures take {total} days.",
                        "run-shorter-than-wanted",
                    ),
                ),
            ),
        ),
    )
