"""Chapter 11: does it run as planned, and what if not?

What a hundred steps say about a job (efficiency of which kind, what the link delivered), what a launcher does, and
what survives a step back to fewer ranks.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.checkpoint import checkpoint_bytes
from shardlab.models.collectives import ring_allreduce_sent_bytes
from shardlab.models.diagnose import DataParallelDiagnosis, data_parallel
from shardlab.models.memory import model_states
from shardlab.models.mesh import mesh
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Trap,
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
from shardlab.quiz.parts import billions, figure, gigabytes, percent, ranking, share, times, whole
from shardlab.units import GB, TB, significant

SEED = 11

# A link whose delivered share lies below this, at the upper end of the bracket, is the first thing to repair.
LEAST_SHARE = 0.5


def build(seed: int = SEED) -> Quiz:
    """The chapter's sixteen ranks first, then four fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c11",
        title="Does it run as planned, and what if not?",
        question="What do a hundred steps say about a job and its link, and what survives a step back?",
        variants=(_chapter(), _kept(seed), _bracket(seed), _places(seed), _back(seed)),
        values={},
        seed=seed,
    )


def _sent_slips(other: tuple[Any, ...], sent: float, size: float, seconds: float) -> list[tuple[Any, ...]]:
    """What typical slips give for bytes per second of a ring, in GB/s; ``other`` is the other end of the bracket."""
    return [
        other,
        (size / seconds / GB, "algorithm-bandwidth"),
        (sent / 2 / seconds / GB, "one-phase"),
        (8 * sent / seconds / GB, "bits-for-bytes"),
        (2 * size / seconds / GB, "full-2p"),
    ]


def _chapter() -> Variant:
    n, size, base, step, link = 16, 1 * GB, 0.3, 0.5, 12.5 * GB
    said = data_parallel(base, step, n, scaling="weak", gradient_bytes=size, nominal_bandwidth=link)
    sent = ring_allreduce_sent_bytes(size, n)
    low, high = sent / step, sent / (step - base)
    values = {
        "N": str(n),
        "base": decimal(base * 1e3),
        "step": decimal(step * 1e3),
        "lost": decimal((step - base) * 1e3),
        "size": gigabytes(size),
        "sent": gigabytes(sent, 4),
        "bits": decimal(8 * link / GB),
        "link": decimal(link / GB) + " GB/s",
        "efficiency": percent(base / step),
        "low": decimal(low / GB) + " GB/s",
        "high": decimal(high / GB) + " GB/s",
        "low_share": percent(low / link),
        "high_share": percent(high / link),
        "fewer": str(n // 2),
    }
    # The upper end is a link that works, the lower end one that does not: the bracket alone decides nothing.
    open_case = low < LEAST_SHARE * link < high
    return variant(
        id="chapter",
        title="Sixteen ranks, a step of 500 ms",
        scenario="One rank takes {base} ms for a step, {N} ranks take {step} ms with the same batch per rank, as a median of a hundred steps. The gradients are {size}, the link is sold as {bits} Gb/s; latency is small, and nothing but the all-reduce lengthens the step.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="gradients", value="{size}"),
            Given(symbol="B", meaning="the link as sold, per direction", value="{bits} Gb/s = {link}"),
        ),
        values=values,
        parts=(
            share(
                id="efficiency",
                prompt="What is the efficiency in weak scaling?",
                key=said.weak_efficiency,
                wrong=[
                    (said.strong_efficiency, "strong-for-weak"),
                    (1 - said.weak_efficiency, "hidden-exposed", "That is the share that is lost."),
                    (1 / said.weak_efficiency, "step-inflation"),
                ],
                solution=("{base} / {step} = {efficiency}: as much work per rank, in a longer step.",),
            ),
            figure(
                id="most",
                prompt="If nothing overlaps: which bandwidth did the ring get, per rank and direction?",
                key=high / GB,
                unit="GB/s",
                relative=0.02,
                wrong=_sent_slips((low / GB, "whole-step"), sent, size, step - base),
                solution=(
                    "A rank sends 2(*N*−1)/*N*·*P* = {sent} in the {step} − {base} = {lost} ms that the step lost: {high}.",
                ),
            ),
            choice(
                id="blame",
                prompt="Is the link to blame for the lost {lost} ms?",
                options=(
                    wrong(
                        "yes",
                        "Yes: it delivered {low}, {low_share} of what was sold.",
                        "one-end",
                        "That is so if all of the communication overlaps. If none does, it delivered {high}.",
                    ),
                    wrong(
                        "no",
                        "No: {efficiency} is above one half, so the network is in order.",
                        "half-is-a-pass",
                    ),
                    judged(
                        "open",
                        "That is open: time one all-reduce alone, or trace a step.",
                        open_case,
                        "If nothing overlaps, the link delivered {high}, {high_share} of what was sold: a good link, and the remedy is overlap or a larger batch. "
                        "If all of it overlaps, it delivered {low}, {low_share}, and the link is to blame.",
                        "one-end",
                    ),
                    wrong(
                        "always",
                        "Yes: what is lost between one rank and {N} is always the network's.",
                        "low-efficiency-convicts",
                    ),
                ),
            ),
            several(
                id="back",
                prompt="You go back to {fewer} ranks, keep the global batch by accumulation, and load the last checkpoint. What can you expect to be equal to the last bit?",
                options=(
                    wrong("losses", "the losses of the next steps", "sums-in-any-order"),
                    right(
                        "weights",
                        "the weights",
                        "Shards are pieces of one array: they join and are cut anew.",
                    ),
                    wrong("masks", "the dropout masks of the next step", "streams-can-be-cut"),
                    right("moments", "Adam's moments", "They are cut like the weights, bit for bit."),
                    right(
                        "rate",
                        "the learning rate of the next step",
                        "The schedule counts updates, and an update has the same samples as before.",
                    ),
                ),
            ),
            open_question(
                id="first-loss",
                prompt="You resume on 4 ranks what ran on 8, and the first loss differs in the third digit. Is the checkpoint broken? What do you compare?",
                answer="With dropout that is no sign of it: a random stream belongs to a rank, so the masks are others, and the loss may differ by its noise. "
                "Without dropout, sums in another order explain the last digits of the loss, not the third: then something was lost, or the batch is another one. "
                "Compare the parameters and the optimizer's moments before the first step; they must be equal bit by bit. "
                "Then check global batch, data position and learning rate. Only a resume on the same 8 ranks can be compared loss by loss.",
                points=(
                    "Other masks with dropout: a difference within the noise is no fault.",
                    "Without dropout only the last digits may differ.",
                    "Parameters and moments are compared before the first step, exactly.",
                    "Global batch, data position and learning rate are checked.",
                ),
            ),
        ),
    )


def _kept(seed: int) -> Variant:
    draw = Draw(seed, "c11/kept")
    base_n, growth = draw.pick((4, 8, 16)), draw.pick((2, 4, 8))
    base = draw.pick((120, 160, 200, 250, 400)) / 1e3
    step = float(significant(base * draw.pick((1.15, 1.25, 1.35, 1.45, 1.6)), 3))
    n = base_n * growth
    said = data_parallel(base, step, n, base_n)
    values = {
        "k": str(base_n),
        "N": str(n),
        "growth": str(growth),
        "base": decimal(base * 1e3),
        "step": decimal(step * 1e3),
        "longer": times(step / base),
        "weak": percent(said.weak_efficiency),
        "strong": percent(said.strong_efficiency),
        "gain": times(said.weak_speedup),
        "speed": times(said.strong_speedup),
    }
    return variant(
        id="kept",
        title="Two steps, and nobody says which batch was kept",
        scenario="A log says: {base} ms a step on {k} ranks, {step} ms a step on {N} ranks, both as medians. It does not say whether each rank kept its batch or all ranks share the old one.",
        given=(
            Given(symbol="tₖ", meaning="step on {k} ranks", value="{base} ms"),
            Given(symbol="tₙ", meaning="step on {N} ranks", value="{step} ms"),
        ),
        values=values,
        parts=(
            share(
                id="weak",
                prompt="If each rank kept its batch: what is the efficiency against {k} ranks?",
                key=said.weak_efficiency,
                wrong=[
                    (said.strong_efficiency, "strong-for-weak"),
                    (1 / said.weak_efficiency, "step-inflation"),
                    (1 - said.weak_efficiency, "hidden-exposed", "That is the share that is lost."),
                ],
                solution=("tₖ/tₙ = {base}/{step} = {weak}.",),
            ),
            figure(
                id="gain",
                prompt="How many times the samples per second are that?",
                key=said.weak_speedup,
                unit="×",
                wrong=[
                    (float(growth), "free-lunch"),
                    (said.weak_efficiency, "efficiency-for-speedup"),
                    (step / base, "step-inflation"),
                    (said.weak_speedup * base_n, "one-rank-baseline"),
                ],
                solution=("{growth} times the samples in {longer} the time: {gain}.",),
            ),
            share(
                id="strong",
                prompt="If all ranks share the old global batch: what is the efficiency?",
                key=said.strong_efficiency,
                wrong=[
                    (said.weak_efficiency, "weak-for-strong"),
                    (said.strong_efficiency / base_n, "one-rank-baseline"),
                ],
                solution=(
                    "*k*/*N* · tₖ/tₙ = {k}/{N} · {base}/{step} = {strong}.",
                    "Then the step is the whole story: {speed} the speed of {k} ranks.",
                ),
            ),
            choice(
                id="slower",
                prompt="“With {N} ranks it got slower.” When is that true?",
                options=(
                    wrong(
                        "always",
                        "In both cases: {step} ms are more than {base} ms.",
                        "flat-step",
                        "With the batch per rank kept, the longer step has {growth} times the samples.",
                    ),
                    judged(
                        "strong",
                        "If the global batch was kept.",
                        said.strong_speedup < 1 < said.weak_speedup,
                        "Then the same samples take {longer} the time. With the batch per rank kept, {gain} the samples are done per second.",
                        "weak-for-strong",
                    ),
                    wrong(
                        "weak",
                        "If the batch per rank was kept.",
                        "weak-for-strong",
                        "Then a step has {growth} times the samples and takes only {longer} the time.",
                    ),
                    wrong("never", "In neither: more ranks can't be slower.", "free-lunch"),
                ),
            ),
        ),
    )


def _bracket(seed: int) -> Variant:
    draw = Draw(seed, "c11/bracket")
    n = draw.pick((4, 8, 16, 32))
    size = GB * draw.pick((2, 3, 4, 6, 8))
    bits = draw.pick((100, 200, 400))
    link = bits / 8 * GB
    reached, load = draw.pick((0.08, 0.12, 0.3, 0.85, 0.9, 0.94)), draw.pick((0.15, 0.25, 0.35, 0.45))
    sent = ring_allreduce_sent_bytes(size, n)
    # Four digits, as shown: what the reader reckons with.
    alone = float(significant(n * load * sent / (reached * link), 4))
    step = float(significant(alone / n + sent / (reached * link), 4))
    said: DataParallelDiagnosis = data_parallel(
        alone, step, n, scaling="strong", gradient_bytes=size, nominal_bandwidth=link
    )
    low, high = sent / step, sent / (step - said.compute_s)
    broken = high < LEAST_SHARE * link
    values = {
        "N": str(n),
        "alone": decimal(alone, 4),
        "step": decimal(step, 4),
        "compute": decimal(said.compute_s, 4),
        "size": gigabytes(size),
        "sent": gigabytes(sent, 4),
        "bits": str(bits),
        "link": decimal(link / GB) + " GB/s",
        "low": decimal(low / GB) + " GB/s",
        "high": decimal(high / GB) + " GB/s",
        "low_share": percent(low / link),
        "high_share": percent(high / link),
    }
    return variant(
        id="bracket",
        title="What did the link deliver?",
        scenario="One rank takes {alone} s for a step; {N} ranks, one in each node, share the same global batch and take {step} s. The gradients of {size} are all-reduced over a ring; latency is small. Nothing else lengthens the step, and nobody knows how much overlaps.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="t₁", meaning="step on one rank", value="{alone} s"),
            Given(symbol="tₙ", meaning="step on all ranks", value="{step} s"),
            Given(symbol="P", meaning="gradients", value="{size}"),
            Given(symbol="B", meaning="the link as sold, per direction", value="{link}"),
        ),
        values=values,
        parts=(
            figure(
                id="compute",
                prompt="How long does a rank compute in the step of {N} ranks?",
                key=said.compute_s,
                unit="s",
                wrong=[
                    (alone, "weak-for-strong"),
                    (alone - said.compute_s, "wrong-saving", "That is what splitting the batch saves."),
                    (
                        step - said.compute_s,
                        "whole-step",
                        "That is what the step lost, not what it computes.",
                    ),
                ],
                solution=("The global batch is shared: t₁/*N* = {compute} s.",),
            ),
            figure(
                id="least",
                prompt="Which bandwidth did the ring get at least, per rank and direction?",
                key=low / GB,
                unit="GB/s",
                wrong=_sent_slips((high / GB, "no-overlap"), sent, size, step),
                solution=(
                    "If everything overlaps, {sent} had the whole step: {low}, {low_share} of the link.",
                ),
            ),
            figure(
                id="most",
                prompt="And at most?",
                key=high / GB,
                unit="GB/s",
                wrong=_sent_slips((low / GB, "whole-step"), sent, size, step - said.compute_s),
                solution=(
                    "If nothing overlaps, they had what the step lost, {step} − {compute} s: {high}, {high_share} of the link.",
                ),
            ),
            choice(
                id="verdict",
                prompt="The link is sold as {bits} Gb/s. What follows?",
                options=(
                    wrong(
                        "latency",
                        "Collectives take too long to start: use larger buckets.",
                        "latency-blamed",
                        "The latency of the hops is small against {step} s.",
                    ),
                    judged(
                        "repair",
                        "Repair the transport first: even at most it delivered far less than was sold.",
                        broken,
                        "It delivered {low_share} to {high_share} of what was sold.",
                        "low-efficiency-convicts",
                    ),
                    judged(
                        "bytes",
                        "The transport works: only fewer bytes, a larger batch or a faster link make the step shorter.",
                        not broken,
                        "It delivered {low_share} to {high_share} of what was sold.",
                        "half-is-a-pass",
                    ),
                    wrong(
                        "ranks",
                        "Add ranks: each then computes less.",
                        "gain-for-ever",
                        "Compute is {compute} s of {step} s. More ranks shrink that part alone.",
                    ),
                ),
                solution=(
                    "Even at most it delivered too little: a wrong interface, a fall-back to TCP, a port that negotiated less."
                    if broken
                    else "Little is left to repair. A transport that works can still be too slow for so little compute.",
                ),
            ),
        ),
    )


def _places(seed: int) -> Variant:
    draw = Draw(seed, "c11/places")
    nodes, gpus = draw.pick((3, 4, 5, 6, 8)), draw.pick((4, 8))
    node, gpu = 1 + draw.below(nodes - 1), 1 + draw.below(gpus - 1)
    ranks = mesh((("gpu", gpus), ("node", nodes)), gpus)
    rank = next(number for number in range(ranks.ranks) if ranks.place(number) == (gpu, node))
    world = ranks.ranks
    values = {
        "nodes": str(nodes),
        "gpus": str(gpus),
        "node": str(node),
        "gpu": str(gpu),
        "rank": str(rank),
        "world": str(world),
        "two": str(2 * gpus),
    }
    rungs = [
        (1, "one", "the loss falls; the time of a step is noted", "1 rank"),
        (2, "pair", "the loss is that of one rank; bytes on the wire are as counted", "2 ranks of a node"),
        (gpus, "node", "a step lies in its bracket; the MFU of one node is noted", "{gpus} ranks, a node"),
        (
            2 * gpus,
            "nodes",
            "the link between nodes delivers what its name says; a resume is tested",
            "{two} ranks, two nodes",
        ),
        (
            world,
            "all",
            "the slowest rank is known; alarms are set",
            "{world} ranks, all nodes",
        ),
    ]
    return variant(
        id="places",
        title="Starting {nodes} nodes",
        scenario="A job runs on {nodes} nodes of {gpus} GPUs, one process for each GPU. On each node `torchrun` starts them.",
        given=(
            Given(symbol="n", meaning="nodes, numbered from 0", value="{nodes}"),
            Given(symbol="g", meaning="GPUs of a node, numbered from 0", value="{gpus}"),
        ),
        values=values,
        parts=(
            whole(
                id="rank",
                prompt="With ranks fixed (`--nnodes`, `--node-rank`, `--nproc-per-node`): which rank is GPU {gpu} of node {node}?",
                key=rank,
                unit="rank",
                wrong=[
                    (rank + 1, "counted-from-one"),
                    ((node - 1) * gpus + gpu, "counted-from-one"),
                    (gpu * nodes + node, "axes-swapped"),
                    (node + gpu, "axes-add-up", "A whole node of {gpus} comes before each next one."),
                ],
                solution=("*g* · node rank + local rank = {gpus} · {node} + {gpu} = {rank}.",),
            ),
            whole(
                id="restarted",
                prompt="With a meeting point (`--rdzv-backend c10d`) and `--max-restarts 1`, one process of the job dies. How many processes are started anew?",
                key=world,
                unit="processes",
                wrong=[
                    (1, "only-the-dead"),
                    (
                        gpus,
                        "only-the-dead",
                        "The other nodes' ranks wait in a collective with ranks that are gone.",
                    ),
                    (world - 1, "off-by-one", "The dead one is started again, too."),
                ],
                solution=(
                    "All {world}: the survivors' process group has lost a member, so all leave it and meet again. Training goes on from the last checkpoint.",
                ),
            ),
            several(
                id="launcher",
                prompt="What does torchrun do for the job?",
                options=(
                    wrong(
                        "device",
                        "gives each process a GPU of its own",
                        "launcher-does-it",
                        "It sets `LOCAL_RANK`. Without `set_device` all processes of a node use GPU 0.",
                    ),
                    right(
                        "place",
                        "tells every process its rank and the world size",
                        "As `RANK`, `LOCAL_RANK`, `WORLD_SIZE`.",
                    ),
                    wrong(
                        "data",
                        "deals out the data",
                        "launcher-does-it",
                        "A program without a sampler trains on the same batch on every rank.",
                    ),
                    right(
                        "meet",
                        "lets the nodes find each other",
                        "At node 0's address, or at a meeting point.",
                    ),
                    wrong("save", "saves a checkpoint before it restarts the processes", "launcher-does-it"),
                ),
            ),
            ranking(
                id="ladder",
                prompt="Before the whole job runs, it climbs a ladder. Put the checks in order.",
                first="on the fewest ranks",
                last="on the most ranks",
                rows=rungs,
                start=("nodes", "all", "pair", "one", "node"),
                traps=(
                    Trap(
                        above="nodes",
                        below="node",
                        misconception="rung-skipped",
                        why="What is wrong inside a node is found on one node, for the price of one.",
                    ),
                ),
            ),
        ),
    )


def kept_steps(last_step: int, every: int, last: int, old: int) -> list[int]:
    """Steps whose checkpoints are kept: the ``last`` ones, and those at multiples of ``old``."""
    saved = list(range(every, last_step + 1, every))
    return sorted(set([step for step in saved if step % old == 0] + saved[-last:]))


def _back(seed: int) -> Variant:
    draw = Draw(seed, "c11/back")
    memory = GB * draw.pick((40, 80))

    def fewest(params: float, room: float) -> int:
        ranks = 1
        while model_states(params, ranks, 3).total_bytes > room:
            ranks += 1
        return ranks

    def propose() -> tuple[float, float]:
        return 1e9 * draw.pick((7, 13, 20, 30, 34, 65, 70)), GB * draw.pick((8, 12, 16, 20, 24))

    def fits(drawn: tuple[float, float]) -> bool:
        ranks = fewest(drawn[0], memory - drawn[1])
        # A rank more or fewer is a clear matter, and forgetting the activations shows.
        full = model_states(drawn[0], ranks, 3).total_bytes / (memory - drawn[1])
        return ranks > 2 and full < 0.98 and fewest(drawn[0], memory) != ranks

    params, activations = draw.until(propose, fits)
    room = memory - activations
    ranks = fewest(params, room)
    held = model_states(params, ranks, 3).total_bytes
    every, last, old = 250, draw.pick((2, 3, 4)), draw.pick((1000, 2000))
    step = old * draw.pick((4, 5, 6, 8))
    kept = kept_steps(step, every, last, old)
    one = checkpoint_bytes(params)
    values = {
        "params": billions(params),
        "memory": gigabytes(memory),
        "activations": gigabytes(activations),
        "room": gigabytes(room),
        "ranks": str(ranks),
        "states": gigabytes(model_states(params, 1, 0).total_bytes),
        "held": gigabytes(held),
        "every": str(every),
        "last": str(last),
        "old": str(old),
        "step": str(step),
        "number": str(len(kept)),
        "others": str(step // old),
        "one": decimal(one / TB) + " TB",
        "all": decimal(len(kept) * one / TB) + " TB",
    }
    return variant(
        id="back",
        title="How far back can you go?",
        scenario="A model of {params} parameters trains under ZeRO-3 on GPUs of {memory}, with 16 bytes of model states per parameter. Activations and buffers take {activations} on every rank. "
        "A checkpoint has 14 bytes per parameter and is written every {every} steps; the last {last} are kept, and those of every {old}th step.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="M", meaning="memory of a GPU", value="{memory}"),
            Given(symbol="A", meaning="activations and buffers of a rank", value="{activations}"),
        ),
        values=values,
        parts=(
            whole(
                id="fewest",
                prompt="Something is wrong, and you step back. On how many ranks does the model still fit, at least?",
                key=ranks,
                unit="ranks",
                wrong=[
                    (fewest(params, memory), "activations-sharded"),
                    (fewest(params / 8, room), "weights-only"),
                    (ranks - 1, "does-not-fit"),
                    (ranks + 1, "tie-is-too-much", "One fewer is enough."),
                ],
                solution=("16Ψ = {states} over {room} that are left beside the activations: {ranks} ranks.",),
            ),
            figure(
                id="held",
                prompt="How large are the model states of a rank then?",
                key=held / GB,
                unit="GB",
                wrong=[
                    (16 * params / GB, "nothing-sharded"),
                    (held / 8 / GB, "weights-only"),
                    (model_states(params, ranks, 2).total_bytes / GB, "other-stage"),
                ],
                solution=("{states} / {ranks} = {held}.",),
            ),
            whole(
                id="kept",
                prompt="Step {step} has just been saved. How many checkpoints are kept?",
                key=len(kept),
                unit="checkpoints",
                wrong=[
                    (last, "last-ones-only"),
                    (
                        last + step // old,
                        "double-counting",
                        "Step {step} is one of the last {last} and a multiple of {old}: it counts once.",
                    ),
                    (step // every, "nothing-removed"),
                    (step // old, "old-ones-only"),
                ],
                solution=(
                    "{others} at multiples of {old}, and {last} last ones of which step {step} is one already: {number}.",
                ),
            ),
            figure(
                id="storage",
                prompt="How much storage do they take?",
                key=len(kept) * one / TB,
                unit="TB",
                wrong=[
                    (one / TB, "one-checkpoint"),
                    (len(kept) * 2 * params / TB, "weights-only"),
                    (len(kept) * 16 * params / TB, "gradients-are-state"),
                    (len(kept) * one * ranks / TB, "copy-per-rank"),
                ],
                solution=("{number} · 14Ψ = {number} · {one} = {all}.",),
            ),
            choice(
                id="exploded",
                prompt="The loss explodes at step {step}; its gradient norm has risen for more than {every} steps. Where do you go on?",
                options=(
                    wrong(
                        "last",
                        "At the last checkpoint: it costs the fewest steps.",
                        "last-ones-only",
                        "It was written during the rise and holds the damage.",
                    ),
                    wrong(
                        "same",
                        "At an older checkpoint from before the rise, with everything as it was.",
                        "same-data-again",
                    ),
                    right(
                        "old",
                        "At an older checkpoint from before the rise, with the data position moved past the batches that were met there.",
                        "That is what the old ones are kept for. The same weights on the same batches would do the same again.",
                    ),
                    wrong(
                        "weights",
                        "At step {step}, with the weights alone and new moments.",
                        "moments-recover",
                        "The weights hold the damage, and moments from nothing make the next steps wilder.",
                    ),
                ),
            ),
        ),
    )
