"""Exam questions for the chapters that Q1 to Q7 leave out, and more on those that pay with marks in practice.

Each function draws its numbers from a seed and returns a :class:`shardlab.quiz.model.Variant`; keys and wrong values
come from ``shardlab.models``, as in the question banks. :mod:`shardlab.classroom.exam` makes a paper of them.
"""

from __future__ import annotations

from collections.abc import Callable

from shardlab.models.antipatterns import ANTI_PATTERNS
from shardlab.models.batch import (
    accumulated_step_time_s,
    accumulation_steps,
    scheduler_plan,
    token_average,
)
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.communication import boundary_bytes, data_traffic, throughput_efficiency
from shardlab.models.context import ring_work
from shardlab.models.expert import expert_capacity, layer_traffic
from shardlab.models.mesh import mesh
from shardlab.models.pipeline_formulas import p2p_sent_bytes
from shardlab.models.published import megascale_steps, sc21_steps
from shardlab.models.stragglers import slow_rank_step, without_slow_ranks_speedup
from shardlab.models.tensor import communication_compute_ratio, layer_sent_bytes, layer_time
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Table,
    Variant,
    choice,
    decimal,
    judged,
    open_question,
    right,
    several,
    variant,
    wrong,
)
from shardlab.quiz.parts import apart, billions, figure, gigabytes, percent, ranking, share, times, whole
from shardlab.transformer import model_flops, sc21_training_days
from shardlab.units import format_bandwidth, format_bytes

# ---- 05 tensor parallel ----


def tensor_bytes(seed: int) -> Variant:
    """What a layer sends, and how long that takes."""
    draw = Draw(seed, "exam/tensor-bytes")
    t, h, s = draw.pick((2, 4, 8)), draw.pick((4096, 5120, 6144, 8192)), draw.pick((2048, 4096, 8192))
    bandwidth = 1e9 * draw.pick((150, 200, 300, 450))
    step = layer_time(s, 1, h, t, bandwidth)
    sent = layer_sent_bytes(s, 1, h, t)
    return variant(
        id="tensor-bytes",
        title="One layer over {t} ranks",
        scenario="A transformer layer of hidden size {h} is cut over {t} tensor-parallel ranks. A micro-batch is one sequence of {s} tokens; activations take 2 bytes.",
        given=(
            Given(symbol="h", meaning="hidden size", value="{h}"),
            Given(symbol="s", meaning="tokens", value="{s}"),
            Given(symbol="B", meaning="bandwidth of a rank in each direction", value="{bandwidth}"),
        ),
        values={
            "t": str(t),
            "h": str(h),
            "s": str(s),
            "bandwidth": format_bandwidth(bandwidth),
            "buffer": format_bytes(2.0 * s * h),
            "sent": format_bytes(sent),
        },
        parts=(
            figure(
                id="sent",
                prompt="How much does one rank send for this layer, forward and backward, on a ring?",
                key=sent / 1e6,
                unit="MB",
                wrong=[
                    (sent / 2e6, "forward-only"),
                    (sent / 4e6, "one-all-reduce"),
                    (sent * t / (t - 1) / 1e6, "full-2p", "*t* ranks send (*t*−1)/*t* of it."),
                    (sent * t / 1e6, "whole-cluster"),
                ],
                solution=(
                    "Four all-reduces, two in each pass, over 2 · {s} · {h} bytes = {buffer} each.",
                    "A ring sends 2(*t*−1)/*t* of the buffer: together {sent}.",
                ),
            ),
            figure(
                id="time",
                prompt="How long do these all-reduces take at the full bandwidth, without latency?",
                key=step.communication_s * 1e3,
                unit="ms",
                wrong=[
                    (step.communication_s * 1e3 / 2, "forward-only"),
                    (step.communication_s * 8e3, "bits-for-bytes"),
                ],
                solution=("{sent} / {bandwidth}.",),
            ),
        ),
    )


def tensor_link(seed: int) -> Variant:
    """Inside a node and between nodes."""
    draw = Draw(seed, "exam/tensor-link")
    inside, network = 300e9, 25e9

    def ratios(drawn: tuple[int, int, int, float]) -> tuple[float, float]:
        h, s, t, flops = drawn
        return (
            communication_compute_ratio(h, s, t, flops, inside),
            communication_compute_ratio(h, s, t, flops, network),
        )

    drawn = draw.until(
        lambda: (
            draw.pick((3072, 4096, 5120, 8192)),
            draw.pick((2048, 4096, 8192)),
            draw.pick((4, 8)),
            draw.pick((200e12, 250e12)),
        ),
        # Clear on both sides, so that no rounding decides.
        lambda each: ratios(each)[0] < 0.8 and ratios(each)[1] > 1.3,
    )
    h, s, t, flops = drawn
    near, far = ratios(drawn)
    return variant(
        id="tensor-link",
        title="Which link carries a tensor-parallel layer",
        scenario="A GPT layer of hidden size {h} on sequences of {s} tokens is cut over {t} ranks of {flops} TFLOP/s each. "
        "Per token and rank it computes 72 *h* (*h* + *s*/6) / *t* FLOP and sends 16 *h* (*t*−1)/*t* bytes, both passes together.",
        given=(
            Given(symbol="B", meaning="inside a node, per rank and direction", value="{inside}"),
            Given(symbol="B′", meaning="between nodes, per rank and direction", value="{network}"),
        ),
        values={
            "h": str(h),
            "s": str(s),
            "t": str(t),
            "flops": decimal(flops / 1e12),
            "inside": format_bandwidth(inside),
            "network": format_bandwidth(network),
            "near": decimal(near),
            "far": decimal(far),
        },
        parts=(
            figure(
                id="ratio",
                prompt="Between nodes: how many times its compute does a layer's communication take?",
                key=far,
                unit="×",
                relative=0.02,
                wrong=[
                    (near, "other-network", "That is the ratio inside a node."),
                    (1 / far, "inverted", "Turn it over: communication over compute."),
                    (8 * far, "bits-for-bytes"),
                    (far / 2, "forward-only"),
                ],
                solution=(
                    "Bytes over *B*′, over FLOP per second: 2 *F* (*t*−1) / (9 *B*′ (*h* + *s*/6)) = {far}.",
                ),
            ),
            choice(
                id="where",
                prompt="Where does the layer compute at least as long as it communicates?",
                options=(
                    judged(
                        "inside",
                        "inside a node only",
                        near < 1 < far,
                        "The ratio is {near} inside and {far} between nodes.",
                    ),
                    wrong("both", "on both links", "finest-split-anywhere", "Between nodes it is {far}."),
                    wrong("neither", "on neither", "other-network", "Inside a node it is {near}."),
                    wrong(
                        "network",
                        "between nodes only",
                        "inverted",
                        "A slower link makes the ratio larger, not smaller.",
                    ),
                ),
            ),
        ),
    )


# ---- 07 context and expert parallel ----


def causal_ring(seed: int) -> Variant:
    """Who waits in ring attention."""
    draw = Draw(seed, "exam/causal-ring")
    c = draw.pick((4, 6, 8, 12, 16))
    tokens = draw.pick((1024, 2048, 4096))
    in_order = ring_work(c * tokens, c, "contiguous")
    dealt = ring_work(c * tokens, c, "zigzag")
    factor = in_order.critical_pairs / in_order.balanced_pairs
    even = max(dealt.per_rank) == min(dealt.per_rank)
    return variant(
        id="causal-ring",
        title="A causal mask on a ring of {c}",
        scenario="Ring attention splits a sequence over {c} ranks, {n} tokens each, with a causal mask. Rank *r* holds the *r*-th part of the text; sends are hidden.",
        given=(Given(symbol="c", meaning="context-parallel ranks", value="{c}"),),
        values={"c": str(c), "n": str(tokens), "factor": decimal(factor)},
        parts=(
            figure(
                id="factor",
                prompt="How many times as long does the attention take as it would if all ranks had the same work?",
                key=factor,
                unit="×",
                wrong=[
                    (2.0, "limit-at-finite-n", "That is the limit for ever more ranks."),
                    (1.0, "mean-for-slowest", "Every step of the ring waits for its busiest rank."),
                    (float(c), "whole-cluster", "No rank does the work of all."),
                    (
                        in_order.per_rank[0] / in_order.balanced_pairs,
                        "other-term",
                        "That is the rank with the least work.",
                    ),
                ],
                solution=(
                    "The last rank never meets a masked block: with blocks of *n* · *n* pairs it works *c* − 1/2 blocks, the mean is *c*/2.",
                    "2 − 1/*c* = {factor}.",
                ),
            ),
            choice(
                id="mend",
                prompt="What gives every rank the same work, in every step?",
                options=(
                    judged(
                        "zigzag",
                        "each rank takes one of 2*c* parts from the front and its mirror image from the back",
                        even,
                        "A part that is masked early comes with one that is masked late.",
                    ),
                    wrong(
                        "ranks",
                        "more ranks, with shorter parts",
                        "limit-at-finite-n",
                        "The factor rises towards 2 with more ranks.",
                    ),
                    wrong(
                        "link",
                        "a faster link",
                        "idle-for-transfer",
                        "The ranks wait for attention, not for keys.",
                    ),
                    wrong(
                        "batch",
                        "a larger micro-batch",
                        "batch-for-model",
                        "Each sequence is split in the same uneven way.",
                    ),
                ),
            ),
        ),
    )


def experts(seed: int) -> Variant:
    """Slots of an expert, and bytes of an all-to-all."""
    draw = Draw(seed, "exam/experts")
    n_experts, top_k = draw.pick((8, 16, 32, 64)), draw.pick((2, 4))
    tokens, hidden = draw.pick((4096, 8192)), draw.pick((2048, 4096, 5120))
    ranks, factor = draw.pick((4, 8)), draw.pick((1.25, 1.5, 2.0))
    slots = expert_capacity(tokens, n_experts, top_k, factor)
    forward = layer_traffic(tokens, hidden, n_experts, top_k, ranks)
    sent = forward.dispatch_bytes + forward.combine_bytes
    return variant(
        id="experts",
        title="{experts} experts on {ranks} ranks",
        scenario="A layer has {experts} routed experts, spread evenly over {ranks} ranks; each token goes to {k} of them. A rank has {tokens} tokens of hidden size {hidden}, 2 bytes each number.",
        given=(
            Given(symbol="E", meaning="experts", value="{experts}"),
            Given(symbol="k", meaning="experts for a token", value="{k}"),
            Given(symbol="f", meaning="capacity factor", value="{factor}"),
        ),
        values={
            "experts": str(n_experts),
            "ranks": str(ranks),
            "k": str(top_k),
            "tokens": str(tokens),
            "hidden": str(hidden),
            "factor": decimal(factor),
            "sent": format_bytes(sent),
        },
        parts=(
            whole(
                id="slots",
                prompt="How many slots for its tokens does this rank give each expert, with the capacity factor?",
                key=slots,
                unit="slots",
                wrong=[
                    (
                        expert_capacity(tokens, n_experts, 1, factor),
                        "one-way",
                        "A token takes {k} slots, one with each of its experts.",
                    ),
                    (
                        expert_capacity(tokens, n_experts, top_k, 1.0),
                        "other-term",
                        "That leaves the capacity factor out.",
                    ),
                    (
                        expert_capacity(tokens, ranks, top_k, factor),
                        "rank-for-cluster",
                        "That is for one rank's experts together.",
                    ),
                ],
                solution=("{factor} · {k} · {tokens} / {experts}, rounded up.",),
            ),
            figure(
                id="sent",
                prompt="Without a limit and evenly routed: how much does a rank send in the forward pass, to the experts and back?",
                key=sent / 1e6,
                unit="MB",
                wrong=[
                    (sent / 2e6, "one-way", "The results come back, too."),
                    (sent / top_k / 1e6, "one-all-reduce", "Each token goes to {k} experts."),
                    (
                        sent * ranks / (ranks - 1) / 1e6,
                        "full-2p",
                        "One part in {ranks} stays where it is.",
                    ),
                ],
                solution=(
                    "2 directions · {tokens} · {k} · {hidden} · 2 bytes, of which ({ranks}−1)/{ranks} leave the rank: {sent}.",
                ),
            ),
        ),
    )


# ---- 08 composing ----


def neighbours(seed: int) -> Variant:
    """Who talks to whom on a mesh."""
    draw = Draw(seed, "exam/neighbours")
    t, d, p = draw.pick((2, 4)), draw.pick((4, 8)), draw.pick((2, 4))
    grid = mesh((("tensor", t), ("data", d), ("pipeline", p)))
    rank = draw.until(lambda: draw.below(t * d * p), lambda each: grid.place(each)[1] < d - 1)
    group = grid.group(rank, ("data",))
    following = group[group.index(rank) + 1]
    leaves = {axis: grid.crosses(rank, (axis,)) for axis in grid.axes}
    words = {
        axis: (
            f"its group is {', '.join([str(each) for each in grid.group(rank, (axis,))])}, "
            + ("on more than one node" if leaves[axis] else "all on one node")
        )
        for axis in grid.axes
    }
    return variant(
        id="neighbours",
        title="Ranks on a mesh",
        scenario="{world} ranks are numbered with tensor parallelism fastest ({t} ranks), then data ({d}), then pipeline ({p}). A node has 8 GPUs, filled in the order of the numbers.",
        values={
            "world": str(grid.ranks),
            "t": str(t),
            "d": str(d),
            "p": str(p),
            "rank": str(rank),
            **{f"why_{axis}": text for axis, text in words.items()},
        },
        parts=(
            whole(
                id="next",
                prompt="Which rank comes after rank {rank} in its data-parallel group?",
                key=following,
                unit="(number of the rank)",
                wrong=[
                    (rank + 1, "axis-forgotten", "One further along is the next tensor-parallel rank."),
                    (rank + t * d, "axis-forgotten", "That is the next pipeline stage."),
                    (rank + d, "axis-forgotten", "The stride is the size of the axes below, not of its own."),
                ],
                solution=("Data ranks are {t} apart, the size of the axis below: {why_data}.",),
            ),
            several(
                id="leaves",
                prompt="Which of rank {rank}'s groups span more than one node?",
                options=tuple(
                    judged(axis, axis, leaves[axis], "{why_" + axis + "}", "axis-forgotten")
                    if leaves[axis]
                    else wrong(axis, axis, "axis-forgotten", "{why_" + axis + "}")
                    for axis in grid.axes
                ),
            ),
        ),
    )


def axes_bytes(seed: int) -> Variant:
    """What each axis sends."""
    draw = Draw(seed, "exam/axes-bytes")
    s = 4096

    def sent(drawn: tuple[int, int, int, int, int, int, float]) -> list[float]:
        h, layers, t, p, d, m, params = drawn
        return [
            m * layers / p * layer_sent_bytes(s, 1, h, t),
            max(p2p_sent_bytes("1f1b", p, m, boundary_bytes(s, 1, h, t))),
            data_traffic(params / (t * p), d).total_bytes,
        ]

    drawn = draw.until(
        lambda: (
            draw.pick((4096, 5120, 8192)),
            draw.pick((32, 48, 64)),
            draw.pick((4, 8)),
            draw.pick((2, 4)),
            draw.pick((8, 16)),
            draw.pick((8, 16, 32)),
            1e9 * draw.pick((7, 13, 33, 70)),
        ),
        lambda each: apart(sent(each), 1.3),
    )
    h, layers, t, p, d, m, params = drawn
    tensor, pipeline, data = sent(drawn)
    return variant(
        id="axes-bytes",
        title="Three axes, three kinds of traffic",
        scenario="{params} parameters in {layers} layers of hidden size {h} train with {t} tensor-parallel ranks, {p} pipeline stages (1F1B) and {d} data-parallel replicas. "
        "A step has {m} micro-batches of one sequence of {s} tokens in every pipeline; gradients and activations take 2 bytes.",
        values={
            "params": billions(params),
            "layers": str(layers),
            "h": str(h),
            "t": str(t),
            "p": str(p),
            "d": str(d),
            "m": str(m),
            "s": str(s),
            "tensor": format_bytes(tensor),
            "pipeline": format_bytes(pipeline),
            "data": format_bytes(data),
        },
        parts=(
            ranking(
                id="bytes",
                prompt="Put the axes in order of the bytes that one rank sends along them in a step.",
                first="fewest bytes",
                last="most bytes",
                rows=[
                    (tensor, "tensor", "tensor", "{tensor}"),
                    (pipeline, "pipeline", "pipeline", "{pipeline}"),
                    (data, "data", "data", "{data}"),
                ],
                start=draw,
            ),
            choice(
                id="urgent",
                prompt="Which of them does the next operation wait for at once, so that it belongs on the fastest links?",
                options=(
                    right(
                        "tensor", "tensor", "The next matrix product needs the sum, in every layer: {tensor}."
                    ),
                    wrong("data", "data", "volume-for-urgency"),
                    wrong(
                        "pipeline",
                        "pipeline",
                        "boundary-is-dear",
                        "A stage sends {pipeline}, while it works on the next micro-batch.",
                    ),
                ),
            ),
        ),
    )


# ---- 09 engineering ----


def slow_rank(seed: int) -> Variant:
    """One rank that is always slower."""
    draw = Draw(seed, "exam/slow-rank")
    n, base = draw.pick((8, 16, 32, 64)), draw.pick((80, 100, 120, 200)) / 1e3
    slowdown = draw.pick((1.1, 1.15, 1.25, 1.4))
    step = slow_rank_step(base, slowdown, n)
    gain = without_slow_ranks_speedup(slowdown, n)
    return variant(
        id="slow-rank",
        title="One slow rank of {n}",
        scenario="{n} ranks train data-parallel in weak scaling. A step takes {base} ms on a healthy rank; one rank always takes {slow} times as long. Communication is free.",
        values={
            "n": str(n),
            "others": str(n - 1),
            "base": decimal(base * 1e3),
            "slow": decimal(slowdown),
            "step": decimal(step.expected_step_s * 1e3),
            "gain": decimal(gain, 4),
        },
        parts=(
            figure(
                id="step",
                prompt="How long does a step of all ranks take?",
                key=step.expected_step_s * 1e3,
                unit="ms",
                digits=4,
                relative=0.002,
                wrong=[
                    (base * 1e3, "free-lunch", "The all-reduce waits for the slow rank."),
                    (
                        step.mean_s * 1e3,
                        "mean-for-slowest",
                        "Every rank waits for the slowest, in every step.",
                    ),
                ],
                solution=(
                    "{slow} · {base} ms = {step} ms: the slowest rank sets the pace, whatever *N* is.",
                ),
            ),
            figure(
                id="without",
                prompt="How many times the throughput is it to go on without the slow rank?",
                key=gain,
                unit="×",
                digits=4,
                relative=0.003,
                wrong=[
                    (slowdown, "free-lunch", "One rank of {n} is missing then."),
                    (1 / gain, "inverted", "Turn it over: without the slow rank over with it."),
                    (
                        (n - 1) / n,
                        "other-term",
                        "That is what the missing rank costs; the steps also get shorter.",
                    ),
                ],
                solution=("{slow} · {others}/{n} = {gain}.",),
            ),
        ),
    )


def token_weights(seed: int) -> Variant:
    """A mean of means."""
    draw = Draw(seed, "exam/token-weights")

    def propose() -> tuple[list[int], list[float]]:
        tokens = [draw.pick((100, 200, 400, 800, 1600)) for _ in range(4)]
        return tokens, [draw.pick((1.2, 1.6, 2.0, 2.4, 2.8, 3.2, 3.6)) for _ in range(4)]

    tokens, losses = draw.until(
        propose, lambda each: abs(token_average(each[0], each[1]).relative_error) > 0.08
    )
    average = token_average(tokens, losses)
    sums = [count * loss for count, loss in zip(tokens, losses, strict=True)]
    return variant(
        id="token-weights",
        title="Short and long micro-batches",
        scenario="One optimizer step is made of four micro-batches, two on each of two ranks. The table has the tokens that count in the loss, and each micro-batch's mean loss per token.",
        table=Table(
            caption="One optimizer step",
            columns=("micro-batch", "tokens", "mean loss"),
            rows=tuple(
                [
                    (str(number), str(tokens[number - 1]), decimal(losses[number - 1], 2))
                    for number in range(1, 5)
                ]
            ),
        ),
        values={
            "all": str(sum(tokens)),
            "sum": decimal(sum(sums), 4),
            "right": decimal(average.per_token, 4),
            "means": decimal(average.mean_of_means, 4),
        },
        parts=(
            figure(
                id="tokens",
                prompt="What is the loss per token of the whole step?",
                key=average.per_token,
                unit="(loss)",
                digits=4,
                relative=0.004,
                wrong=[
                    (
                        average.mean_of_means,
                        "wrong-whole",
                        "That is the mean of the means: a short micro-batch counts as much as a long one.",
                    )
                ],
                solution=("Sum of tokens times loss, over all tokens: {sum} / {all} = {right}.",),
            ),
            figure(
                id="means",
                prompt="Which loss does a program report that takes the mean of each micro-batch, and then the mean of those?",
                key=average.mean_of_means,
                unit="(loss)",
                digits=4,
                relative=0.004,
                wrong=[(average.per_token, "wrong-whole", "That weighs each micro-batch by its tokens.")],
                solution=("The plain mean of four numbers: {means}.",),
            ),
        ),
    )


def warm_up(seed: int) -> Variant:
    """Updates and steps."""
    draw = Draw(seed, "exam/warm-up")
    batches, epochs = draw.pick((400, 600, 800, 1200)), draw.pick((5, 10, 20))
    k, processes = draw.pick((4, 8)), draw.pick((2, 4))
    plan = scheduler_plan(batches, epochs, k, 0.1)
    fast = scheduler_plan(batches, epochs, k, 0.1, scheduler_steps_per_update=processes)
    return variant(
        id="warm-up",
        title="What the schedule counts",
        scenario="{epochs} epochs of {batches} micro-batches on every rank, with gradient accumulation over {k}. The schedule warms up over the first tenth of the updates.",
        values={
            "batches": str(batches),
            "epochs": str(epochs),
            "k": str(k),
            "processes": str(processes),
            "updates": str(plan.optimizer_steps),
            "warm": f"{plan.warmup_updates:g}",
        },
        parts=(
            whole(
                id="updates",
                prompt="How many optimizer updates are there?",
                key=plan.optimizer_steps,
                unit="updates",
                wrong=[
                    (
                        plan.micro_steps,
                        "steps-for-samples",
                        "Those are the micro-batches: an update takes {k}.",
                    ),
                    (batches // k, "epochs-forgotten", "That is one epoch."),
                ],
                solution=("{epochs} · {batches} / {k} = {updates}.",),
            ),
            figure(
                id="early",
                prompt="A scheduler built for that number of updates is stepped once by each of {processes} processes. After how many updates does the warm-up end?",
                key=fast.warmup_ends_after_updates,
                unit="updates",
                wrong=[
                    (
                        plan.warmup_updates,
                        "schedule-restarts",
                        "That is right if it steps once for an update.",
                    ),
                    (plan.warmup_updates * processes, "inverted", "It steps more often, so it ends sooner."),
                ],
                solution=("{warm} steps of the scheduler come {processes} to an update.",),
            ),
        ),
    )


# ---- 11 production ----


def hundred_steps(seed: int) -> Variant:
    """Efficiency and the bandwidth that was delivered."""
    draw = Draw(seed, "exam/hundred-steps")
    n = draw.pick((4, 8, 16, 32))
    alone, gradients = draw.pick((60, 80, 100, 150)) / 1e3, 1e9 * draw.pick((0.4, 0.8, 1.2, 2.0))
    delivered = 1e9 * draw.pick((2, 4, 5, 8, 10))
    sent = ring_allreduce_sent_bytes(gradients, n)
    # What a log shows: whole tenths of a millisecond.
    measured = round(alone + sent / delivered, 4)
    efficiency = throughput_efficiency(n / measured, n, 1 / alone)
    bandwidth = sent / (measured - alone)
    return variant(
        id="hundred-steps",
        title="A report after a hundred steps",
        scenario="One rank takes {alone} ms for a step. {n} ranks with the same batch each take {measured} ms, as a median of a hundred steps. The gradients are {gradients}; nothing overlaps, latency is small.",
        values={
            "n": str(n),
            "alone": decimal(alone * 1e3),
            "measured": decimal(measured * 1e3, 4),
            "gradients": format_bytes(gradients),
            "efficiency": percent(efficiency),
            "sent": gigabytes(sent),
        },
        parts=(
            share(
                id="efficiency",
                prompt="Which efficiency did the hundred steps show, each rank with a batch of its own (weak scaling)?",
                key=efficiency,
                wrong=[
                    (efficiency / n, "strong-for-weak"),
                    (1 - efficiency, "hidden-exposed", "That is the share that is lost."),
                ],
                solution=(
                    "{alone} / {measured} = {efficiency}: each rank does the same work in a longer step.",
                ),
            ),
            figure(
                id="bandwidth",
                prompt="Which bandwidth per rank and direction did the ring get?",
                key=bandwidth / 1e9,
                unit="GB/s",
                relative=0.02,
                wrong=[
                    (gradients / (measured - alone) / 1e9, "algorithm-bandwidth"),
                    (sent / measured / 1e9, "whole-step"),
                    (8 * bandwidth / 1e9, "bits-for-bytes"),
                    (bandwidth / 2e9, "one-phase"),
                ],
                solution=(
                    "A rank sends 2(*N*−1)/*N* of {gradients}, {sent}, in the {measured} − {alone} ms that are left.",
                ),
            ),
        ),
    )


def roll_back(seed: int) -> Variant:
    """Fewer ranks, the same run."""
    draw = Draw(seed, "exam/roll-back")
    ranks, micro, k = draw.pick((16, 32, 64)), draw.pick((1, 2, 4)), draw.pick((2, 3, 4))
    fewer = ranks // draw.pick((2, 4))
    compute, sync = draw.pick((150, 200, 300)) / 1e3, draw.pick((40, 60, 90)) / 1e3
    batch = ranks * micro * k
    more = accumulation_steps(batch, micro, fewer)
    step = accumulated_step_time_s(compute, sync, more)
    return variant(
        id="roll-back",
        title="Back to fewer ranks",
        scenario="A run on {ranks} data-parallel ranks takes {k} micro-batches of {micro} sequences on each rank for one update. It has to go on with {fewer} ranks, as the same run: nothing that the optimizer sees may change.",
        given=(
            Given(symbol="C", meaning="compute of one micro-batch", value="{compute} ms"),
            Given(symbol="T", meaning="one exchange of gradients, not overlapped", value="{sync} ms"),
        ),
        values={
            "ranks": str(ranks),
            "fewer": str(fewer),
            "micro": str(micro),
            "k": str(k),
            "more": str(more),
            "batch": str(batch),
            "compute": decimal(compute * 1e3),
            "sync": decimal(sync * 1e3),
            "step": decimal(step * 1e3, 4),
        },
        parts=(
            whole(
                id="micro",
                prompt="How many micro-batches of that size does each rank take for one update then?",
                key=more,
                unit="micro-batches",
                wrong=[
                    (k, "accumulation-is-free", "Then the global batch shrinks with the ranks."),
                    (ranks // fewer, "axis-forgotten", "There were {k} micro-batches before."),
                ],
                solution=(
                    "The global batch stays {batch} sequences: {batch} / ({fewer} · {micro}) = {more}.",
                ),
            ),
            figure(
                id="step",
                prompt="How long does an update take, with one exchange for each update and the same *T*?",
                key=step * 1e3,
                unit="ms",
                digits=4,
                wrong=[
                    (
                        accumulated_step_time_s(compute, sync, more, sync_every_micro_batch=True) * 1e3,
                        "bytes-per-micro-batch",
                        "The gradients are exchanged once, after the last micro-batch.",
                    ),
                    (accumulated_step_time_s(compute, sync, k) * 1e3, "accumulation-is-free"),
                ],
                solution=("{more} · {compute} ms + {sync} ms = {step} ms.",),
            ),
        ),
    )


# ---- 12 anti-patterns ----


def _named(seed: int, half: int) -> Variant:
    """A symptom whose pattern is to be named: of the source's eight (half 0) or of those from reports (half 1)."""
    draw = Draw(seed, f"exam/named-{half}")
    pattern = draw.pick(ANTI_PATTERNS[:8] if half == 0 else ANTI_PATTERNS[8:])
    values = {
        "symptom": pattern.symptom,
        "title": pattern.title,
        "tell": pattern.tell,
        "mend": pattern.mend,
        "harmless": pattern.harmless,
    }
    return variant(
        id=f"named-{half}",
        title="Name the mistake",
        scenario="What is seen: “{symptom}”",
        values=values,
        parts=(
            open_question(
                id="name",
                prompt="Which mistake fits, which test tells it from its neighbours, what mends it, and when does it cost little?",
                answer="{title}. The test: {tell} The mend: {mend} When it costs little: {harmless}",
                points=("{title}", "{tell}", "{mend}", "{harmless}"),
            ),
        ),
    )


def named_first(seed: int) -> Variant:
    """A symptom of one of the source's eight anti-patterns."""
    return _named(seed, 0)


def named_second(seed: int) -> Variant:
    """A symptom of one of the anti-patterns from public reports."""
    return _named(seed, 1)


def synchronised_too_often(seed: int) -> Variant:
    """Gradients exchanged after every micro-batch."""
    draw = Draw(seed, "exam/synchronised")
    k = draw.pick((4, 8, 16))
    compute, sync = draw.pick((50, 80, 100)) / 1e3, draw.pick((20, 40, 60, 120)) / 1e3
    good = accumulated_step_time_s(compute, sync, k)
    bad = accumulated_step_time_s(compute, sync, k, sync_every_micro_batch=True)
    return variant(
        id="synchronised",
        title="An exchange too many",
        scenario="Data parallelism with gradient accumulation over {k} micro-batches. One micro-batch computes for {compute} ms, one exchange of gradients takes {sync} ms and is not overlapped. By mistake, the gradients are exchanged after every micro-batch.",
        values={
            "k": str(k),
            "compute": decimal(compute * 1e3),
            "sync": decimal(sync * 1e3),
            "good": decimal(good * 1e3, 4),
            "bad": decimal(bad * 1e3, 4),
            "slower": times(bad / good),
        },
        parts=(
            figure(
                id="slower",
                prompt="How many times as long does a step take as with one exchange?",
                key=bad / good,
                unit="×",
                wrong=[
                    (
                        float(k),
                        "no-compute",
                        "That is how many times the bytes are sent; a step also computes.",
                    ),
                    (good / bad, "inverted", "Turn it over: the wrong program over the right one."),
                    (1.0, "accumulation-is-free", "Each exchange takes its time."),
                ],
                solution=("{bad} ms / {good} ms = {slower}.",),
            ),
            choice(
                id="loss",
                prompt="How does the loss curve differ from that of the right program?",
                options=(
                    right(
                        "same",
                        "Not at all, but for rounding.",
                        "The mean of sums is the sum of means: only time and bytes are wasted.",
                    ),
                    wrong(
                        "larger",
                        "The gradients are {k} times as large.",
                        "double-counting",
                        "What was averaged before stays the same on all ranks, so averaging it again changes nothing.",
                    ),
                    wrong(
                        "noisy",
                        "It is noisier: the batch is smaller.",
                        "one-micro-batch",
                        "The optimizer still steps once for {k} micro-batches.",
                    ),
                ),
            ),
        ),
    )


# ---- 13 capstone ----


def training_days(seed: int) -> Variant:
    """Days of a run, and what its throughput means."""
    draw = Draw(seed, "exam/training-days")
    params, tokens = 1e9 * draw.pick((7, 13, 30, 70, 175)), 1e12 * draw.pick((0.3, 0.5, 1.0, 2.0))
    ranks, achieved = draw.pick((128, 256, 512, 1024)), 1e12 * draw.pick((130, 140, 150, 160))
    peak = 312e12
    days = sc21_training_days(params, tokens, ranks, achieved)
    model_share = 6 / 8 * achieved / peak
    return variant(
        id="training-days",
        title="How long, and how well",
        scenario="A model of {params} parameters trains on {tokens} trillion tokens with {ranks} GPUs. Activations are recomputed in full, and each GPU runs {achieved} TFLOP/s, the repeated forward pass included. The peak is {peak} TFLOP/s.",
        values={
            "params": billions(params),
            "tokens": decimal(tokens / 1e12, 2),
            "ranks": str(ranks),
            "achieved": decimal(achieved / 1e12),
            "peak": decimal(peak / 1e12),
            "days": decimal(days),
            "hfu": percent(achieved / peak),
            "mfu": percent(model_share),
        },
        parts=(
            figure(
                id="days",
                prompt="How many days does it take?",
                key=days,
                unit="days",
                relative=0.02,
                wrong=[
                    (
                        days * 6 / 8,
                        "forward-only",
                        "With full recomputation it is 8 FLOP per parameter and token, not 6.",
                    ),
                    (days * 24, "days-for-hours", "The question asks for days."),
                    (days * 2 / 8, "forward-only"),
                    (days * ranks, "whole-cluster", "All GPUs work at the same time."),
                ],
                solution=("8 · parameters · tokens / (GPUs · FLOP per second) = {days} days.",),
            ),
            share(
                id="mfu",
                prompt="What is the model FLOP utilisation (MFU)?",
                key=model_share,
                wrong=[
                    (
                        achieved / peak,
                        "wrong-whole",
                        "That counts the repeated work: the hardware's utilisation (HFU).",
                    ),
                    (8 / 6 * achieved / peak, "inverted", "The model's share is smaller, not larger."),
                ],
                solution=("Of 8 FLOP, 6 belong to the model: 6/8 · {hfu} = {mfu}.",),
            ),
        ),
    )


def published(seed: int) -> Variant:
    """A step that was published."""
    draw = Draw(seed, "exam/published")
    row = draw.pick(tuple(sc21_steps()) + tuple(megascale_steps()))
    flops = model_flops(row.model, row.sequence, row.global_batch)
    gpus, peak = row.cluster.gpus, row.cluster.node.accelerator.peak_flops
    achieved = flops / row.step_s / gpus
    return variant(
        id="published",
        title="A run that others paid for",
        scenario="A published run on {gpus} GPUs takes {step} s for a step of {batch} sequences of {s} tokens. The model's forward and backward pass over that batch is {flops} · 10^15^ FLOP, without repeated work. The peak of one GPU is {peak} TFLOP/s.",
        values={
            "gpus": str(gpus),
            "step": decimal(row.step_s, 4),
            "batch": str(row.global_batch),
            "s": str(row.sequence),
            "flops": decimal(flops / 1e15, 4),
            "peak": decimal(peak / 1e12, 4),
            "achieved": decimal(achieved / 1e12),
            "mfu": percent(achieved / peak),
            "source": row.source,
        },
        parts=(
            figure(
                id="achieved",
                prompt="How many TFLOP/s of the model does one GPU do?",
                key=achieved / 1e12,
                unit="TFLOP/s",
                wrong=[
                    (gpus * achieved / 1e12, "rank-for-cluster", "That is all GPUs together."),
                    (achieved / 3e12, "forward-only"),
                ],
                solution=("FLOP / seconds / GPUs = {achieved} TFLOP/s. (Published: {source}.)",),
            ),
            share(
                id="mfu",
                prompt="What is its MFU?",
                key=achieved / peak,
                wrong=[
                    (
                        achieved / peak * 8 / 6,
                        "wrong-whole",
                        "That adds repeated work, which the MFU leaves out.",
                    )
                ],
                solution=("{achieved} / {peak} = {mfu}.",),
            ),
        ),
    )


def missed(seed: int) -> Variant:
    """What a miss teaches."""
    draw = Draw(seed, "exam/missed")
    row = draw.pick(tuple(megascale_steps()))
    predicted = round(row.step_s * draw.pick((0.7, 0.75, 0.8)), 2)
    short = row.step_s / predicted - 1
    return variant(
        id="missed",
        title="A prediction that missed",
        scenario="You predicted {predicted} s for a step that was then measured at {measured} s. Your constants were fitted to other runs.",
        values={
            "predicted": decimal(predicted, 4),
            "measured": decimal(row.step_s, 4),
            "short": percent(short),
        },
        parts=(
            share(
                id="short",
                prompt="How much longer than predicted does the step take, in per cent of the prediction?",
                key=short,
                wrong=[
                    (1 - predicted / row.step_s, "wrong-whole", "That is a share of the measurement."),
                    (row.step_s / predicted, "step-inflation", "That is the whole, not what is added."),
                ],
                solution=("{measured} / {predicted} − 1 = {short}.",),
            ),
            open_question(
                id="next",
                prompt="Say how you tell a miss (the model leaves something out) from an error (you put in something wrong), and what you may not do to make the number fit.",
                answer="Check the inputs first: units (bits or bytes, GB or GiB), batch per rank or global, peak dense or sparse, whether the measurement counts repeated work. "
                "Then hold the bracket against the measurement: outside it something is wrong or left out, inside it the estimate of what overlaps is. "
                "Then compare the parts that can be measured alone, such as one rank's step and one all-reduce. "
                "Do not fit a constant to the very measurement that it is to be tested on.",
                points=(
                    "Inputs and units are checked before the model is blamed.",
                    "The bracket tells whether hidden communication can explain it.",
                    "Parts are measured alone, and each is compared.",
                    "No constant is fitted to the run that it is tested on.",
                ),
            ),
        ),
    )


QUESTIONS: tuple[tuple[int, Callable[[int], Variant]], ...] = (
    (5, tensor_bytes),
    (5, tensor_link),
    (7, causal_ring),
    (7, experts),
    (8, neighbours),
    (8, axes_bytes),
    (9, slow_rank),
    (9, token_weights),
    (9, warm_up),
    (11, hundred_steps),
    (11, roll_back),
    (12, named_first),
    (12, named_second),
    (12, synchronised_too_often),
    (13, training_days),
    (13, published),
    (13, missed),
)
"""(chapter, how to build the question from a seed)."""
