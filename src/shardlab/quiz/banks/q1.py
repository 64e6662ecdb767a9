"""Q1: what do data, tensor and pipeline parallelism and ZeRO split, what does each solve, and what does it cost?

Two corrections of the source: "model parallelism" is the umbrella term for splitting inside layers (tensor parallel)
and between them (pipeline parallel), and not every split pays with communication. Pipelines pay with idle time, and
ZeRO-1 and ZeRO-2 send as many bytes as plain data parallelism.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.communication import boundary_bytes, data_traffic
from shardlab.models.memory import model_states
from shardlab.models.pipeline_formulas import bubble_of_total, p2p_sent_bytes
from shardlab.models.tensor import layer_sent_bytes
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Trap,
    Variant,
    choice,
    judged,
    open_question,
    quiz_of,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, billions, figure, gigabytes, ms, percent, ranking, share, times, whole
from shardlab.quiz.states import state_slips, states
from shardlab.units import format_bandwidth, format_bytes

SEED = 1
SEQUENCE = 2048
NVLINK, CARD = (
    300e9,
    25e9,
)  # bytes/s per rank and direction: inside an A100 node, and its share of the network


def build(seed: int = SEED) -> Quiz:
    """The source's question with a model of 7 billion parameters first, then five fresh variants."""
    return quiz_of(
        id="q1",
        title="What does each kind of parallelism split?",
        question="Which problem does each split solve, and what do you pay for it?",
        variants=(_chapter(), _fitting(seed), _tensor(seed), _pipeline(seed), _same_share(seed), _mesh(seed)),
        values={},
        seed=seed,
    )


def _tensor_bytes(hidden: int, layers: int, ranks: int, micro_batches: int = 1) -> float:
    """Bytes that one rank sends for a forward and a backward pass of all layers, with one sequence a micro-batch."""
    return micro_batches * layers * layer_sent_bytes(SEQUENCE, 1, hidden, ranks)


def _pipeline_bytes(hidden: int, stages: int, micro_batches: int) -> float:
    """Bytes that the busiest stage sends in one step."""
    return max(p2p_sent_bytes("1f1b", stages, micro_batches, boundary_bytes(SEQUENCE, 1, hidden)))


def _chapter() -> Variant:
    n, params, hidden, layers = 8, 7e9, 4096, 32
    whole_states = states(params)
    data = data_traffic(params, n).total_bytes
    gathered = data_traffic(params, n, zero_stage=3).total_bytes
    tensor = _tensor_bytes(hidden, layers, n, micro_batches=n)
    stages = _pipeline_bytes(hidden, n, n)
    values = {
        "N": str(n),
        "params": billions(params),
        "weights": gigabytes(2 * params),
        "whole": gigabytes(whole_states),
        "zero1": gigabytes(states(params, n, 1)),
        "data": gigabytes(data),
        "gathered": gigabytes(gathered),
        "tensor": gigabytes(tensor),
        "stages": format_bytes(stages),
        "idle": percent(bubble_of_total(n, n)),
    }

    def copies(zero_stage: int) -> bool:
        return model_states(params, n, zero_stage).parameters == 2 * params

    same_volume = data_traffic(params, n, zero_stage=2).total_bytes == data
    return variant(
        id="chapter",
        title="Five ways to use eight GPUs",
        scenario="A model of {params} parameters trains on {N} ranks with mixed-precision Adam, 16 bytes per parameter. It has 32 layers of hidden size 4096, "
        "and a step takes 8 sequences of 2048 tokens. It can be split by data parallelism, ZeRO, tensor parallelism or pipeline parallelism, "
        "each over all {N} ranks.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="ranks", value="{N}"),
        ),
        values=values,
        parts=(
            choice(
                id="one-layer",
                prompt="A single layer is too large to compute on one rank. Which split helps?",
                options=(
                    wrong(
                        "data",
                        "data parallelism",
                        "batch-for-model",
                        "It splits the batch. Every rank computes every layer whole.",
                    ),
                    right(
                        "tensor",
                        "tensor parallelism",
                        "It splits the matrices inside a layer. Each rank keeps and computes its slice.",
                    ),
                    wrong("pipeline", "pipeline parallelism", "layers-for-matrices"),
                    wrong("zero", "ZeRO-3", "gathers-whole-layer"),
                ),
            ),
            several(
                id="copies",
                prompt="Under which of these does every rank keep a full copy of the parameters ({weights} of 16-bit weights)?",
                options=(
                    judged("data", "data parallelism", copies(0), "Only the batch is split."),
                    judged(
                        "zero1",
                        "ZeRO-1",
                        copies(1),
                        "Only the optimizer state, with its fp32 copy of the weights, is sharded.",
                    ),
                    judged(
                        "zero2",
                        "ZeRO-2",
                        copies(2),
                        "Optimizer state and gradients are sharded, the 16-bit weights are not.",
                    ),
                    judged("zero3", "ZeRO-3", copies(3), "", "gather-is-no-copy"),
                    wrong(
                        "tensor",
                        "tensor parallelism",
                        "model-replicated",
                        "A rank keeps 1/{N} of every matrix.",
                    ),
                    wrong(
                        "pipeline",
                        "pipeline parallelism",
                        "model-replicated",
                        "A rank keeps 1/{N} of the layers.",
                    ),
                ),
            ),
            figure(
                id="zero1",
                prompt="How much memory do parameters, gradients and optimizer take on one rank with ZeRO-1?",
                key=states(params, n, 1) / 1e9,
                unit="GB",
                wrong=state_slips(params, n, 1),
                solution=(
                    "16-bit weights and gradients stay whole: 4Ψ. The 12 bytes of optimizer state are shared out: 12Ψ/*N*.",
                    "4 · 7 + 12 · 7 / {N} GB = {zero1}, after {whole} without sharding.",
                ),
            ),
            ranking(
                id="bytes",
                prompt="Put these in order of the bytes that the busiest rank sends in one step of 8 sequences.",
                first="fewest bytes",
                last="most bytes",
                rows=[
                    (data, "data", "data parallelism, one sequence per rank", "{data}"),
                    (gathered, "zero3", "ZeRO-3, one sequence per rank", "{gathered}"),
                    (tensor, "tensor", "tensor parallelism, every sequence on all ranks", "{tensor}"),
                    (stages, "pipeline", "pipeline parallelism, 8 micro-batches of one sequence", "{stages}"),
                ],
                start=("data", "zero3", "pipeline", "tensor"),
                traps=(
                    Trap(above="data", below="pipeline", misconception="boundary-is-dear", why=""),
                    Trap(above="tensor", below="data", misconception="slices-send-less", why=""),
                ),
            ),
            choice(
                id="pays",
                prompt="“They all trade communication for memory or compute.” What is wrong with this sentence?",
                options=(
                    wrong("nothing", "Nothing.", "every-split-pays-bytes"),
                    judged(
                        "idle",
                        "Pipelines pay mainly with idle time, and ZeRO-1 and ZeRO-2 send no more than data parallelism does.",
                        same_volume and stages < 0.1 * data,
                        "The pipeline sends {stages} and idles for {idle} of the time here. ZeRO-1 and ZeRO-2 save memory and send {data} like data parallelism.",
                    ),
                    wrong(
                        "tensor",
                        "Tensor parallelism pays nothing when the ranks share a node.",
                        "fast-link-is-free",
                    ),
                    wrong(
                        "data",
                        "Data parallelism pays with idle time, not with communication.",
                        "idle-for-all-reduce",
                    ),
                ),
            ),
            open_question(
                id="explain",
                prompt="For data parallelism, tensor parallelism, pipeline parallelism and ZeRO: say in one sentence each what is split, what that solves, and what it costs.",
                answer="Data parallelism splits the batch: more samples per second, for a full copy of the model states ({whole}) on every rank and an "
                "all-reduce of the gradients. Tensor parallelism splits the matrices inside each layer, for layers that are too large or too slow for one rank, and pays "
                "with all-reduces of activations in every layer, so it wants fast links. Pipeline parallelism splits the stack of layers, so that a model fits over several "
                "nodes; it sends little and pays with idle time. ZeRO splits what data parallelism copies: optimizer state, then gradients, at no extra bytes, "
                "then parameters, at half as many bytes again. (“Model parallelism” is the umbrella term for the tensor and pipeline kinds.)",
                points=(
                    "Data: the batch; throughput; a full copy and an all-reduce of gradients.",
                    "Tensor: matrices inside a layer; activations all-reduced in every layer, so fast links.",
                    "Pipeline: the stack of layers; idle time.",
                    "ZeRO: optimizer, gradients, parameters; memory; extra bytes for the parameters only.",
                ),
            ),
        ),
    )


# Ways to share out the model states over all ranks: (id, ZeRO stage, text), the ones that send least first.
WAYS = (
    ("data", 0, "data parallelism alone"),
    ("zero1", 1, "ZeRO-1"),
    ("zero2", 2, "ZeRO-2"),
    ("zero3", 3, "ZeRO-3"),
)


def _fitting(seed: int) -> Variant:
    draw = Draw(seed, "q1/fitting")

    def held(drawn: Any) -> list[float]:
        params, ranks, _, _ = drawn
        return [states(params, ranks, stage) for _, stage, _ in WAYS]

    def fits(drawn: Any) -> bool:
        room = drawn[2] - drawn[3]
        sizes = held(drawn)
        # Stage 1 or 2 is the first that fits, and no size is near the limit.
        return (
            sizes[0] > room >= sizes[2]
            and all(abs(size / room - 1) > 0.06 for size in sizes)
            and apart(sizes)
        )

    drawn = draw.until(
        lambda: (
            1e9 * draw.pick((2, 3, 4, 5, 6, 7, 8, 10, 13)),
            draw.pick((4, 8, 16, 32)),
            1e9 * draw.pick((40, 80, 96)),
            1e9 * draw.pick((10, 14, 18, 22)),
        ),
        fits,
    )
    params, n, device, activations = drawn
    room, sizes = device - activations, held(drawn)
    first = next(index for index, size in enumerate(sizes) if size <= room)
    values = {
        "params": billions(params),
        "N": str(n),
        "device": gigabytes(device),
        "activations": gigabytes(activations),
        "room": gigabytes(room),
        "first": WAYS[first][2],
        "first_size": gigabytes(sizes[first]),
        "whole": gigabytes(states(params)),
        "extra": gigabytes(data_traffic(params, n, 3).total_bytes),
        "volume": gigabytes(data_traffic(params, n).total_bytes),
    }
    options = []
    for index, (each, _, way) in enumerate(WAYS):
        values[each] = gigabytes(sizes[index])
        outcome = "{" + each + "} against {room}. "
        if index == first:
            options.append(right(each, way, outcome + "Nothing that sends less fits."))
        elif index < first:
            options.append(wrong(each, way, "does-not-fit", outcome + "It does not fit."))
        else:
            options.append(wrong(each, way, "sharded-too-far", outcome + "It fits, but {first} does too."))
    return variant(
        id="fitting",
        title="Too large for one rank",
        scenario="{params} parameters train with mixed-precision Adam, 16 bytes per parameter, on {N} ranks of {device} each. Activations and buffers take {activations} on every rank.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="M", meaning="memory of one rank", value="{device}"),
            Given(symbol="A", meaning="activations and buffers", value="{activations}"),
        ),
        values=values,
        parts=(
            figure(
                id="whole",
                prompt="How much do the model states take on each rank with data parallelism alone?",
                key=sizes[0] / 1e9,
                unit="GB",
                wrong=state_slips(params, n, 0),
                solution=("Nothing of them is split: 16 bytes for each of {params} parameters are {whole}.",),
            ),
            choice(
                id="first",
                prompt="Which way fits, and shards no more than it has to?",
                options=tuple(options),
                solution=("{room} are left for the model states. {first} brings them down to {first_size}.",),
            ),
            figure(
                id="held",
                prompt="How much do the model states take on each rank in that way?",
                key=sizes[first] / 1e9,
                unit="GB",
                wrong=state_slips(params, n, first),
                solution=("{first} on {N} ranks: {first_size}.",),
            ),
            choice(
                id="further",
                prompt="What would sharding on to ZeRO-3 cost, with one micro-batch per step?",
                options=(
                    right(
                        "half",
                        "Half as many bytes again: {extra} per rank and step in place of {volume}.",
                        "The weights are gathered for the forward and again for the backward pass.",
                    ),
                    wrong("nothing", "Nothing: it sends what data parallelism sends.", "stage3-is-free"),
                    wrong(
                        "n-fold",
                        "{N} times the bytes: every rank needs the weights of all others.",
                        "shards-cost-n-fold",
                    ),
                    wrong(
                        "idle",
                        "Idle time, while the ranks wait for their turn.",
                        "idle-for-all-reduce",
                        "No rank waits for its turn: all compute at the same time, each on its own samples.",
                    ),
                ),
            ),
        ),
    )


def _tensor(seed: int) -> Variant:
    draw = Draw(seed, "q1/tensor")
    hidden, layers = draw.pick(((4096, 32), (5120, 40), (6144, 40), (8192, 48), (8192, 80)))
    t = draw.pick((2, 4, 8))
    message = boundary_bytes(SEQUENCE, 1, hidden)
    layer, all_layers = layer_sent_bytes(SEQUENCE, 1, hidden, t), _tensor_bytes(hidden, layers, t)
    fast, slow = all_layers / NVLINK, all_layers / CARD
    values = {
        "h": str(hidden),
        "layers": str(layers),
        "t": str(t),
        "message": format_bytes(message),
        "factor": f"{2 * (t - 1) / t:.4g}",
        "layer": format_bytes(layer),
        "all_layers": gigabytes(all_layers, 4),
        "fast_link": format_bandwidth(NVLINK),
        "slow_link": format_bandwidth(CARD),
        "fast": ms(fast),
        "slow": ms(slow),
        "boundary": format_bytes(2 * message),
    }
    return variant(
        id="tensor",
        title="Splitting inside the layer",
        scenario="Tensor parallelism over {t} ranks: {layers} layers of hidden size {h}, one sequence of 2048 tokens per micro-batch, 2 bytes per activation. "
        "In each layer the ranks all-reduce the whole activation twice in the forward pass and twice in the backward pass.",
        given=(
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="L", meaning="layers", value="{layers}"),
            Given(symbol="A", meaning="one activation, 2048 · {h} · 2 bytes", value="{message}"),
        ),
        values=values,
        parts=(
            figure(
                id="layer",
                prompt="How much does one rank send per layer and micro-batch, over rings?",
                key=layer / 1e6,
                unit="MB",
                wrong=[
                    (layer / 2e6, "forward-only"),
                    (layer / 4e6, "one-all-reduce"),
                    (8 * message / 1e6, "full-2p"),
                    (4 * message / 1e6, "single-copy"),
                    (layer / t / 1e6, "slices-send-less"),
                ],
                solution=(
                    "An all-reduce sends 2(*t*−1)/*t* · *A* = {factor} · {message} per rank.",
                    "Four of them are {layer}.",
                ),
            ),
            figure(
                id="fast",
                prompt="How long do all layers' all-reduces take on links of {fast_link}? Leave the latency aside.",
                key=1e3 * fast,
                unit="ms",
                relative=0.015,
                wrong=[
                    (1e3 * layer / NVLINK, "one-layer"),
                    (1e3 * fast / 2, "forward-only"),
                    (1e3 * slow, "other-network", "That is over {slow_link}."),
                    (8e3 * fast, "bits-for-bytes"),
                ],
                solution=("{layers} layers send {all_layers}; at {fast_link} that takes {fast}.",),
            ),
            figure(
                id="slow",
                prompt="And across nodes, at {slow_link}?",
                key=1e3 * slow,
                unit="ms",
                relative=0.015,
                wrong=[
                    (1e3 * layer / CARD, "one-layer"),
                    (1e3 * slow / 2, "forward-only"),
                    (1e3 * fast, "other-network", "That is over {fast_link}."),
                    (8e3 * slow, "bits-for-bytes"),
                ],
                solution=("{all_layers} at {slow_link} take {slow}.",),
            ),
            choice(
                id="place",
                prompt="A job uses tensor and pipeline parallelism over several nodes. Which goes across the nodes?",
                options=(
                    wrong(
                        "tensor",
                        "Tensor parallelism, because it splits the work most finely.",
                        "finest-split-anywhere",
                    ),
                    right(
                        "pipeline",
                        "Pipeline parallelism: a stage passes {boundary} per micro-batch, there and back.",
                        "A tensor-parallel rank sends {all_layers}, and nothing can go on until each all-reduce is done.",
                    ),
                    wrong(
                        "either",
                        "Either: both send activations.",
                        "boundary-is-dear",
                        "A stage boundary passes {boundary}. The tensor-parallel layers send {all_layers}.",
                    ),
                ),
            ),
        ),
    )


def _pipeline(seed: int) -> Variant:
    draw = Draw(seed, "q1/pipeline")
    hidden, layers = draw.pick(((4096, 32), (5120, 40), (6144, 48), (8192, 64)))
    p = draw.pick((2, 4, 8))
    m = p * draw.pick((2, 3, 4))
    message = boundary_bytes(SEQUENCE, 1, hidden)
    sent, tensor = _pipeline_bytes(hidden, p, m), _tensor_bytes(hidden, layers, p, m)
    idle = bubble_of_total(p, m)
    ends = 1 if p == 2 else 2
    values = {
        "p": str(p),
        "m": str(m),
        "layers": str(layers),
        "stage_layers": str(layers // p),
        "h": str(hidden),
        "message": format_bytes(message),
        "sends": str(ends * m),
        "sent": format_bytes(sent),
        "tensor": gigabytes(tensor, 4),
        "ratio": times(tensor / sent),
        "idle": percent(idle),
        "slots": str(m + p - 1),
        "empty": str(p - 1),
    }
    return variant(
        id="pipeline",
        title="Splitting the stack of layers",
        scenario="{layers} layers are cut into {p} stages of {stage_layers}. A step has {m} micro-batches of one sequence; the activation between two stages has 2048 · {h} · 2 bytes = {message}.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
            Given(symbol="A", meaning="one activation", value="{message}"),
        ),
        values=values,
        parts=(
            figure(
                id="sent",
                prompt="How much does the busiest stage send in one step?",
                key=sent / 1e6,
                unit="MB",
                wrong=[
                    (message * m / 1e6, "one-way"),
                    (message * ends / 1e6, "one-micro-batch"),
                    (
                        2 * message * m * (p - 1) / 1e6,
                        "whole-cluster",
                        "That is the sum over all boundaries.",
                    ),
                    (message * m * layers / p / 1e6, "inside-the-stage"),
                ],
                solution=(
                    "For every micro-batch a stage passes an activation on and a gradient back (the first stage only the one, the last only the other).",
                    "{sends} messages of {message} are {sent}.",
                ),
            ),
            share(
                id="idle",
                prompt="For what share of the step is each rank idle, with equal stages and free transfers?",
                key=idle,
                wrong=[
                    ((p - 1) / m, "ideal-for-total"),
                    (p / (m + p), "stages-for-gaps"),
                    (m / (m + p - 1), "hidden-exposed", "That is the share in which a rank works."),
                    (1 / p, "turns-for-bubble"),
                ],
                solution=(
                    "The step lasts *m* + *p* − 1 = {slots} slots and a rank works in {m} of them: {empty}/{slots} = {idle}.",
                ),
            ),
            figure(
                id="ratio",
                prompt="Tensor parallelism over {p} ranks would send {tensor} per rank for the same micro-batches. How many times the pipeline's bytes is that?",
                key=tensor / sent,
                unit="×",
                relative=0.02,
                wrong=[
                    (sent / tensor, "inverted", "Turn it over: tensor over pipeline."),
                    (tensor / (message * m) if ends == 2 else tensor / (2 * message * m), "one-way"),
                ],
                solution=("{tensor} / {sent} = {ratio}.",),
            ),
            choice(
                id="trade",
                prompt="What does the pipeline trade for its small traffic?",
                options=(
                    right(
                        "idle",
                        "Idle time: {idle} of the step here.",
                        "It shrinks with more micro-batches, as long as the batch allows them.",
                    ),
                    wrong(
                        "copy",
                        "Memory: each stage keeps all layers.",
                        "model-replicated",
                        "A stage keeps {stage_layers} of {layers} layers.",
                    ),
                    wrong(
                        "compute",
                        "Compute: stages repeat each other's work.",
                        "batch-for-model",
                        "Each stage computes its own layers, once per micro-batch and pass.",
                    ),
                    wrong(
                        "nothing",
                        "Nothing: it is the best split everywhere.",
                        "every-split-pays-bytes",
                        "It pays with idle time instead of bytes: {idle} of the step.",
                    ),
                ),
            ),
        ),
    )


def _same_share(seed: int) -> Variant:
    draw = Draw(seed, "q1/same-share")
    n = draw.pick((4, 8))
    params = 1e9 * draw.pick((3, 5, 6, 8, 10, 12, 14))
    layers = draw.pick((32, 40, 48))
    each = states(params, n, 3)
    layer = 2 * params / layers
    gathers = data_traffic(params, n, zero_stage=3)
    values = {
        "N": str(n),
        "params": billions(params),
        "layers": str(layers),
        "share": gigabytes(each),
        "whole": gigabytes(states(params)),
        "layer": gigabytes(layer),
        "slice": gigabytes(layer / n),
        "gathered": gigabytes(gathers.all_gather_bytes, 4),
        "weights": gigabytes(2 * params),
    }
    return variant(
        id="same-share",
        title="The same share, in two ways",
        scenario="{params} parameters in {layers} equal layers, 16 bytes each with mixed-precision Adam. One team shards them by ZeRO-3 over {N} ranks, another "
        "by tensor parallelism over {N} ranks.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="L", meaning="layers", value="{layers}"),
            Given(symbol="N", meaning="ranks", value="{N}"),
        ),
        values=values,
        parts=(
            figure(
                id="share",
                prompt="How much of the model states does each rank of either team keep?",
                key=each / 1e9,
                unit="GB",
                wrong=state_slips(params, n, 3),
                solution=("Both keep 1/{N} of everything: {whole} / {N} = {share}.",),
            ),
            figure(
                id="working",
                prompt="How much of 16-bit weights does a ZeRO-3 rank hold in full while it computes one layer?",
                key=layer / 1e9,
                unit="GB",
                wrong=[
                    (
                        layer / n / 1e9,
                        "gathers-whole-layer",
                        "That is the tensor-parallel rank's slice. ZeRO-3 gathers the whole layer first.",
                    ),
                    (2 * params / 1e9, "gather-is-no-copy", "It gathers one layer at a time, not the model."),
                    (
                        states(params) / layers / 1e9,
                        "weights-only",
                        "That counts gradients and optimizer too. Only the 16-bit weights are gathered.",
                    ),
                ],
                solution=(
                    "One layer has {params} / {layers} parameters of 2 bytes: {layer}. The tensor-parallel rank computes with its {slice}.",
                ),
            ),
            figure(
                id="gathered",
                prompt="How much does a ZeRO-3 rank send to gather weights in one step of one micro-batch?",
                key=gathers.all_gather_bytes / 1e9,
                unit="GB",
                wrong=[
                    (gathers.all_gather_bytes / 2e9, "one-gather"),
                    (
                        gathers.total_bytes / 1e9,
                        "other-term",
                        "That counts the gradients' reduce-scatter too.",
                    ),
                    (4 * params / 1e9, "full-2p", "*N* ranks send (*N*−1)/*N* of it."),
                ],
                solution=(
                    "All weights, {weights}, are gathered for the forward and again for the backward pass: 2(*N*−1)/*N* · {weights} = {gathered}.",
                ),
            ),
            choice(
                id="differs",
                prompt="What is the main difference between the two?",
                options=(
                    right(
                        "moves",
                        "ZeRO-3 moves weights to the data; tensor parallelism moves activations between slices that stay.",
                        "So the bytes of one follow the model's size, those of the other the tokens.",
                    ),
                    wrong(
                        "memory",
                        "ZeRO-3 keeps less per rank.",
                        "all-sharded",
                        "Both keep {share} of model states.",
                    ),
                    wrong(
                        "batch",
                        "Both split the batch; only tensor parallelism splits the model.",
                        "batch-for-model",
                        "The tensor-parallel ranks all work on the same samples.",
                    ),
                    wrong(
                        "same",
                        "Only the name: both compute with 1/{N} of a layer.",
                        "gathers-whole-layer",
                    ),
                ),
            ),
        ),
    )


def _mesh(seed: int) -> Variant:
    draw = Draw(seed, "q1/mesh")
    t, p, d = draw.pick((4, 8)), draw.pick((2, 4, 8)), draw.pick((4, 6, 8, 16))
    params = 1e9 * draw.pick((13, 20, 30, 40, 70, 175))
    local = params / (t * p)
    held, plain = states(local, d, 1), states(local)
    gradients = data_traffic(local, d).total_bytes
    values = {
        "world": str(t * p * d),
        "t": str(t),
        "p": str(p),
        "d": str(d),
        "shards": str(t * p),
        "params": billions(params),
        "local": billions(local),
        "held": gigabytes(held),
        "plain": gigabytes(plain),
        "gradients": gigabytes(gradients),
    }
    return variant(
        id="mesh",
        title="Three axes at once",
        scenario="{world} ranks train {params} parameters, 16 bytes each with mixed-precision Adam, on a mesh of three axes. The data axis also carries ZeRO-1.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="W", meaning="world size", value="{world}"),
            Given(symbol="t", meaning="tensor-parallel ranks", value="{t}"),
            Given(symbol="p", meaning="pipeline stages", value="{p}"),
        ),
        values=values,
        parts=(
            whole(
                id="data",
                prompt="How many ranks has the data axis?",
                key=d,
                unit="ranks",
                wrong=[
                    (t * p * d // t, "axis-forgotten"),
                    (t * p * d // p, "axis-forgotten"),
                    (t * p * d - t * p, "axes-add-up"),
                    (t * p, "axis-forgotten", "That is how many ranks share one copy of the model."),
                ],
                solution=("The axes multiply: {world} / ({t} · {p}) = {d}.",),
            ),
            figure(
                id="held",
                prompt="How much do the model states take on one rank?",
                key=held / 1e9,
                unit="GB",
                wrong=[
                    (plain / 1e9, "nothing-sharded", "That leaves ZeRO-1 out."),
                    (states(local, d, 3) / 1e9, "all-sharded"),
                    (plain / 4 / 1e9, "limit-at-finite-n"),
                    (
                        states(params, d, 1) / 1e9,
                        "axis-forgotten",
                        "Tensor and pipeline axes cut the model into {shards} shards first.",
                    ),
                    (states(params / t, d, 1) / 1e9, "axis-forgotten"),
                ],
                solution=(
                    "Tensor and pipeline parallelism leave {params} / {shards} = {local} parameters on a rank: {plain}.",
                    "ZeRO-1 shares their optimizer state over {d} ranks: 4 bytes + 12/{d} bytes for each, {held}.",
                ),
            ),
            figure(
                id="gradients",
                prompt="How much does one rank send on the data axis per step, with one gradient exchange in 16 bits?",
                key=gradients / 1e9,
                unit="GB",
                wrong=[
                    (gradients / 2e9, "one-phase"),
                    (4 * local / 1e9, "full-2p"),
                    (data_traffic(params, d).total_bytes / 1e9, "axis-forgotten"),
                    (2 * gradients / 1e9, "gradient-width"),
                ],
                solution=(
                    "2(*d*−1)/*d* · 2 bytes · {local} = {gradients}: only its own shard's gradients. ZeRO-1 sends as much as an all-reduce.",
                ),
            ),
            choice(
                id="inner",
                prompt="Which axis belongs on the fastest links, inside a node?",
                options=(
                    right(
                        "tensor", "tensor", "Its all-reduces stand in every layer, and nothing hides them."
                    ),
                    wrong(
                        "pipeline",
                        "pipeline",
                        "boundary-is-dear",
                        "It sends one activation per micro-batch and boundary, the least of the three.",
                    ),
                    wrong("data", "data", "volume-for-urgency"),
                ),
            ),
        ),
    )
