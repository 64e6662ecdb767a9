"""Q2: why does the volume of a ring all-reduce hardly depend on the number of ranks?

The source calls the first phase "scatter-reduce"; MPI, NCCL and this book say reduce-scatter. A rank sends
2(N-1)/N P, so 2P is a ceiling that is approached from below, not a bound that no rank can get under; and more ranks
lower the compute of one rank only where the global batch is fixed.
"""

from __future__ import annotations

from typing import Any

from shardlab.models import collectives
from shardlab.models.collectives import ring_allreduce_sent_bytes, ring_reduce_scatter_cost
from shardlab.quiz.cluster import CHAPTER, gigabytes_per_s, ring_factor
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
from shardlab.quiz.parts import figure, gigabytes, ms, percent, ranking, share, whole
from shardlab.units import format_bandwidth, format_bytes, format_time, significant

SEED = 2


def build(seed: int = SEED) -> Quiz:
    """The source's question at the chapter's numbers first, then five fresh variants drawn from ``seed``."""
    return quiz_of(
        id="q2",
        title="Why does a ring's volume hardly depend on the number of ranks?",
        question="A ring all-reduce has two phases. What does each rank send in them, and what changes with more ranks?",
        variants=(_chapter(), _rounds(seed), _growth(seed), _measured(seed), _tree(seed), _counted(seed)),
        values={},
        seed=seed,
    )


def _phase_bytes(n_bytes: float, n_ranks: int) -> float:
    """Bytes that a rank sends in one phase: the all-gather's are as many as the reduce-scatter's."""
    return ring_reduce_scatter_cost(n_bytes, n_ranks).sent_bytes


def _sent_slips(n_bytes: float, n_ranks: int) -> list[tuple[Any, ...]]:
    """What typical slips give for the bytes a rank sends in both phases, in GB."""
    sent = ring_allreduce_sent_bytes(n_bytes, n_ranks)
    return [
        (2 * n_bytes / 1e9, "full-2p"),
        (_phase_bytes(n_bytes, n_ranks) / 1e9, "one-phase"),
        (n_bytes / 1e9, "single-copy"),
        (2 * n_bytes / n_ranks / 1e9, "one-round"),
        (n_ranks * sent / 1e9, "whole-cluster"),
    ]


def _chapter() -> Variant:
    n, size = 8, CHAPTER.n_bytes
    phase, sent = _phase_bytes(size, n), CHAPTER.sent_bytes(n)
    few, many, far = 2, 64, 4096
    lines = [
        (
            CHAPTER.sent_bytes(ranks),
            f"ranks-{ranks}",
            f"{ranks} ranks",
            gigabytes(CHAPTER.sent_bytes(ranks), 4),
        )
        for ranks in (few, 4, n, many)
    ]
    growth = CHAPTER.sent_bytes(2 * n) / sent - 1
    values = {
        "N": str(n),
        "P": format_bytes(size),
        "chunk": format_bytes(size / n),
        "rounds": str(n - 1),
        "all_rounds": str(2 * (n - 1)),
        "phase": format_bytes(phase),
        "sent": format_bytes(sent),
        "ceiling": format_bytes(2 * size),
        "few": str(few),
        "few_sent": format_bytes(CHAPTER.sent_bytes(few)),
        "far": str(far),
        "far_sent": gigabytes(CHAPTER.sent_bytes(far), 5),
        "double": str(2 * n),
        "growth": percent(growth),
        "total": format_bytes(n * sent),
        "double_total": format_bytes(2 * n * CHAPTER.sent_bytes(2 * n)),
        "C": format_time(CHAPTER.compute_s),
        "latency": format_time(CHAPTER.latency_term_s(n)),
        "double_latency": format_time(CHAPTER.latency_term_s(2 * n)),
    }
    return variant(
        id="chapter",
        title="Eight ranks and one gigabyte",
        scenario="{N} ranks all-reduce their gradients over a ring: first a reduce-scatter, then an all-gather. "
        "A rank cuts its gradients into {N} chunks and sends to one neighbour only.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="gradients of one rank", value="{P}"),
        ),
        values=values,
        parts=(
            figure(
                id="phase",
                prompt="How much does each rank send in the reduce-scatter?",
                key=phase / 1e9,
                unit="GB",
                wrong=[
                    (sent / 1e9, "both-phases"),
                    (size / 1e9, "own-chunk"),
                    (size / n / 1e9, "one-round"),
                    (n * phase / 1e9, "whole-cluster"),
                ],
                solution=(
                    "In each of *N*−1 = {rounds} rounds a rank sends one chunk of *P*/*N* = {chunk}.",
                    "{rounds} · {chunk} = {phase}, which is (*N*−1)/*N* · *P*.",
                ),
            ),
            figure(
                id="total",
                prompt="And in the whole all-reduce?",
                key=sent / 1e9,
                unit="GB",
                wrong=_sent_slips(size, n),
                solution=(
                    "The all-gather also takes {rounds} rounds of one chunk each, so as many bytes again.",
                    "Together 2(*N*−1)/*N* · *P* = {sent}.",
                ),
            ),
            choice(
                id="after",
                prompt="What does a rank hold when the reduce-scatter has ended and the all-gather has not begun?",
                options=(
                    wrong("everything", "The sum of all gradients, complete.", "gather-forgotten"),
                    right(
                        "chunk",
                        "One finished chunk of {chunk}: the sum over all ranks. Its other chunks are not finished.",
                        "Each rank finishes another chunk. The all-gather hands the {N} finished chunks around.",
                    ),
                    wrong("pile", "Its own gradients, and beside them those of all other ranks.", "no-sum"),
                    wrong(
                        "root", "Nothing new, unless it is rank 0: that rank has the sum.", "ring-has-root"
                    ),
                ),
            ),
            ranking(
                id="volumes",
                prompt="Put these rings in order of the bytes that one rank sends for gradients of {P}.",
                first="fewest bytes",
                last="most bytes",
                rows=lines,
                start=(f"ranks-{many}", "ranks-4", f"ranks-{few}", f"ranks-{n}"),
                traps=(
                    Trap(above=f"ranks-{many}", below=f"ranks-{few}", misconception="smaller-chunks", why=""),
                ),
            ),
            choice(
                id="why",
                prompt="Which sentence says why the volume hardly changes with the number of ranks?",
                options=(
                    wrong(
                        "neighbour",
                        "Each rank talks to one neighbour only, however many there are.",
                        "neighbour-only",
                    ),
                    right(
                        "cancel",
                        "A chunk is *P*/*N* and there are 2(*N*−1) rounds: the product tends to 2*P*.",
                        "{all_rounds} · {chunk} = {sent} for {N} ranks, and {far_sent} for {far}.",
                    ),
                    wrong("chunks", "The chunks become smaller, so each rank sends less.", "smaller-chunks"),
                    wrong(
                        "added",
                        "Added-up gradients are smaller than the gradients themselves.",
                        "sum-shrinks",
                    ),
                ),
            ),
            several(
                id="statements",
                prompt="Which statements hold for the ring?",
                options=(
                    judged(
                        "floor",
                        "No ring all-reduce can do with less than 2*P* = {ceiling} per rank.",
                        CHAPTER.sent_bytes(few) >= 2 * size,
                        "{few} ranks send {few_sent} each.",
                        "ceiling-as-floor",
                    ),
                    judged(
                        "ceiling",
                        "Even {far} ranks send less than 2*P* = {ceiling} each.",
                        CHAPTER.sent_bytes(far) < 2 * size,
                        "They send {far_sent} each.",
                    ),
                    judged(
                        "all-links",
                        "From {N} to {double} ranks all links together carry about as many bytes as before.",
                        2 * n * CHAPTER.sent_bytes(2 * n) < 1.1 * n * sent,
                        "{total} become {double_total}: the bytes of one rank stay, and there are twice the ranks.",
                        "rank-for-cluster",
                    ),
                    judged(
                        "compute",
                        "More ranks lower the compute of each rank only if the global batch is fixed (strong scaling).",
                        CHAPTER.step(2 * n).compute_time_s == CHAPTER.compute_s
                        and CHAPTER.step(2 * n, "strong").compute_time_s < CHAPTER.compute_s,
                        "With the batch per rank fixed (weak scaling) each rank goes on computing for {C}.",
                    ),
                    judged(
                        "hops",
                        "The time that the hops cost grows almost in proportion to the number of ranks.",
                        CHAPTER.latency_term_s(2 * n) > 1.9 * CHAPTER.latency_term_s(n),
                        "From {latency} to {double_latency} with {double} ranks: there are 2(*N*−1) hops in a row.",
                    ),
                ),
            ),
            open_question(
                id="explain",
                prompt="In two or three sentences: why does adding ranks hardly change what each rank sends, and what does it change?",
                answer="The gradients are cut into *N* chunks of *P*/*N*. A reduce-scatter and an all-gather of *N*−1 rounds each move one chunk "
                "a round, so a rank sends 2(*N*−1)/*N* · *P*: {sent} for {N} ranks, and less than {ceiling} for any number. From {N} to {double} ranks that is "
                "{growth} more. What changes is the number of hops, and, if the global batch is fixed, the compute of each rank.",
                points=(
                    "Two phases, reduce-scatter and all-gather, of *N*−1 rounds each.",
                    "Chunks of *P*/*N*: the number of rounds grows as the chunks shrink.",
                    "2*P* is a ceiling, approached from below.",
                    "What does change: hops grow with *N*; compute per rank falls in strong scaling only.",
                ),
            ),
        ),
    )


def _rounds(seed: int) -> Variant:
    draw = Draw(seed, "q2/rounds")
    n = draw.pick((4, 5, 6, 10, 12, 16, 20, 24))
    chunk = draw.pick((5e6, 8e6, 12e6, 15e6, 20e6, 25e6, 40e6))
    size = n * chunk
    sent, more = ring_allreduce_sent_bytes(size, n), ring_allreduce_sent_bytes(size, 2 * n)
    values = {
        "N": str(n),
        "P": format_bytes(size),
        "chunk": format_bytes(chunk),
        "phase_rounds": str(n - 1),
        "rounds": str(2 * (n - 1)),
        "sent": format_bytes(sent),
        "double": str(2 * n),
        "double_chunk": format_bytes(chunk / 2),
        "double_rounds": str(2 * (2 * n - 1)),
        "more": format_bytes(more),
        "growth": percent(more / sent - 1),
    }
    return variant(
        id="rounds",
        title="Count the rounds",
        scenario="{N} ranks all-reduce {P} of gradients over a ring.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="gradients of one rank", value="{P}"),
        ),
        values=values,
        parts=(
            figure(
                id="chunk",
                prompt="How large is one chunk?",
                key=chunk / 1e6,
                unit="MB",
                wrong=[
                    (size / (n - 1) / 1e6, "chunks-and-rounds"),
                    (size / (2 * (n - 1)) / 1e6, "chunks-and-rounds"),
                    (
                        size / 1e6,
                        "single-copy",
                        "That is the whole buffer. It is cut into one chunk per rank.",
                    ),
                ],
                solution=("There is one chunk for each rank to finish: *P*/*N* = {P} / {N} = {chunk}.",),
            ),
            whole(
                id="rounds",
                prompt="How many rounds follow each other until every rank has the sum?",
                key=2 * (n - 1),
                unit="rounds",
                wrong=[
                    (n - 1, "one-phase", "That is the reduce-scatter. The all-gather takes as many again."),
                    (
                        2 * n,
                        "own-chunk",
                        "A chunk that starts at one rank has *N*−1 others to visit, in each phase.",
                    ),
                    (n, "chunks-and-rounds"),
                ],
                solution=(
                    "In the reduce-scatter a chunk visits the {phase_rounds} other ranks and is then finished.",
                    "In the all-gather it visits them once more: 2(*N*−1) = {rounds}.",
                ),
            ),
            figure(
                id="sent",
                prompt="How much does each rank send in all of them?",
                key=sent / 1e9,
                unit="GB",
                wrong=_sent_slips(size, n),
                solution=("{rounds} rounds of {chunk} are {sent}.",),
            ),
            choice(
                id="double",
                prompt="The same gradients on {double} ranks: what changes for one rank?",
                options=(
                    wrong(
                        "half",
                        "Chunks of half the size, so it sends about half as much.",
                        "smaller-chunks",
                        "There are {double_rounds} rounds in place of {rounds}: it sends {more}.",
                    ),
                    right(
                        "same",
                        "Chunks of half the size in about twice as many rounds, so it sends {growth} more.",
                        "{double_rounds} rounds of {double_chunk} are {more}, after {sent}.",
                    ),
                    wrong(
                        "twice",
                        "About twice as many rounds, so it sends about twice as much.",
                        "volume-grows",
                        "The chunks have shrunk to {double_chunk}: it sends {more}.",
                    ),
                    wrong(
                        "fewer",
                        "It sends the same chunks to fewer neighbours.",
                        "neighbour-only",
                        "It has one neighbour to send to in both. The chunks shrink to {double_chunk}.",
                    ),
                ),
            ),
        ),
    )


def _near_ceiling(target: float) -> int:
    """The fewest ranks whose ring sends at least ``target`` of the ceiling 2P."""
    n = 2
    # 19/20 may come out a bit below 0.95.
    while ring_allreduce_sent_bytes(0.5, n) < target * (1 - 1e-12):
        n += 1
    return n


def _growth(seed: int) -> Variant:
    draw = Draw(seed, "q2/growth")
    few, many = draw.pick(((2, 8), (2, 16), (3, 12), (4, 16), (4, 64), (5, 40), (6, 48), (8, 128)))
    target = draw.pick((0.8, 0.9, 0.95, 0.96, 0.975, 0.98, 0.99))
    size = draw.pick((0.4e9, 0.5e9, 0.8e9, 1.2e9, 2e9, 4e9))
    before, after = ring_allreduce_sent_bytes(size, few), ring_allreduce_sent_bytes(size, many)
    growth = after / before - 1
    near = _near_ceiling(target)
    values = {
        "few": str(few),
        "many": str(many),
        "P": format_bytes(size),
        "ceiling": format_bytes(2 * size),
        "before": gigabytes(before, 4),
        "after": gigabytes(after, 4),
        "ratio": decimal(after / before),
        "growth": percent(growth),
        "target": f"{100 * target:.4g} %",
        "near": str(near),
        "last": str(near - 1),
        "last_share": f"{100 * ring_allreduce_sent_bytes(0.5, near - 1):.2f} %",
        "ranks_ratio": f"{many / few:.4g}",
    }
    return variant(
        id="growth",
        title="How near to the ceiling?",
        scenario="A job moves from {few} to {many} ranks. It all-reduces {P} of gradients over a ring, as before.",
        given=(Given(symbol="P", meaning="gradients of one rank", value="{P}"),),
        values=values,
        parts=(
            share(
                id="growth",
                prompt="By how many per cent does the volume of one rank grow?",
                key=growth,
                wrong=[
                    (many / few - 1, "volume-grows"),
                    (1 - before / after, "wrong-whole", "That is the growth as a share of the new volume."),
                    (
                        after / before,
                        "wrong-whole",
                        "That is the new volume over the old. The growth is what exceeds 100 %.",
                    ),
                    (
                        (after - before) / (2 * size),
                        "wrong-whole",
                        "That is a share of 2*P*, not of the old volume.",
                    ),
                    (0.0, "full-2p", "Below the ceiling of 2*P* there is still some way to go."),
                ],
                solution=(
                    "{few} ranks send {before} each, {many} ranks {after}.",
                    "{after} / {before} = {ratio}, so it grows by {growth}.",
                ),
            ),
            whole(
                id="near",
                prompt="What is the smallest number of ranks whose volume is at least {target} of the ceiling 2*P*?",
                key=near,
                unit="ranks",
                wrong=[
                    (
                        near - 1,
                        "chunks-and-rounds",
                        "{last} ranks reach {last_share}: a ring has *N* chunks and *N*−1 rounds.",
                    ),
                    (2, "single-copy", "That reaches the share of *P*. The ceiling is 2*P* = {ceiling}."),
                    (2 * near, "one-phase"),
                ],
                solution=(
                    "A rank sends (*N*−1)/*N* of 2*P*. That is at least {target} from *N* = 1/(1 − {target}) on.",
                    "{near} ranks reach it; {last} come to {last_share}.",
                ),
            ),
            choice(
                id="strong",
                prompt="The global batch stays as it was (strong scaling). What has each of the {many} ranks less of than each of the {few} had?",
                options=(
                    right("compute", "Compute only: 1/{ranks_ratio} of it.", "The bytes grow by {growth}."),
                    wrong("both", "Compute and bytes: 1/{ranks_ratio} of both.", "smaller-chunks"),
                    wrong(
                        "bytes",
                        "Bytes only: the chunks are smaller.",
                        "smaller-chunks",
                        "The bytes grow from {before} to {after}. The compute is what shrinks.",
                    ),
                    wrong(
                        "none",
                        "Nothing: every rank keeps its batch.",
                        "weak-for-strong",
                        "That is weak scaling. Here the ranks share one batch, so each computes less.",
                    ),
                ),
            ),
        ),
    )


def _measured(seed: int) -> Variant:
    draw = Draw(seed, "q2/measured")
    n, more = draw.pick(((4, 16), (8, 32), (8, 64), (3, 12), (4, 32)))
    size = draw.pick((0.5e9, 1e9, 2e9, 4e9))
    link = draw.pick((12.5e9, 25e9, 50e9))
    used = draw.pick((0.7, 0.75, 0.8, 0.85, 0.9))
    # As the reader sees it: tenths of a millisecond.
    elapsed = float(f"{ring_allreduce_sent_bytes(size, n) / (used * link):.4f}")
    bus = collectives.busbw("all-reduce", size, elapsed, n)
    algorithm = collectives.algbw(size, elapsed)
    values = {
        "N": str(n),
        "more": str(more),
        "P": format_bytes(size),
        "elapsed": ms(elapsed),
        "link": format_bandwidth(link),
        "factor": ring_factor(n),
        "more_factor": ring_factor(more),
        "sent": format_bytes(ring_allreduce_sent_bytes(size, n)),
        "bus": gigabytes_per_s(bus),
        "algorithm": gigabytes_per_s(algorithm),
        "later": gigabytes_per_s(bus / ring_allreduce_sent_bytes(1, more)),
        "used": percent(bus / link),
    }
    return variant(
        id="measured",
        title="Read nccl-tests",
        scenario="An all-reduce of {P} on {N} ranks takes {elapsed}. Each rank has a link of {link}, each way. The latency does not matter at this size.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="buffer of one rank", value="{P}"),
            Given(symbol="T", meaning="time of the all-reduce", value="{elapsed}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{link}"),
        ),
        values=values,
        parts=(
            figure(
                id="bus",
                prompt="At what rate does each link carry bytes (the “busbw” of nccl-tests)?",
                key=bus / 1e9,
                unit="GB/s",
                wrong=[
                    (algorithm / 1e9, "algorithm-bandwidth"),
                    (2 * algorithm / 1e9, "full-2p"),
                    (bus / 2e9, "one-phase"),
                    (n * bus / 1e9, "whole-cluster"),
                    (8 * bus / 1e9, "bits-for-bytes"),
                ],
                solution=(
                    "A rank sends 2(*N*−1)/*N* · *P* = {factor} · {P} = {sent}.",
                    "{sent} in {elapsed} are {bus}. The buffer over the time, {algorithm}, is the “algbw”.",
                ),
            ),
            share(
                id="used",
                prompt="What share of its link does a rank use?",
                key=bus / link,
                wrong=[
                    (algorithm / link, "algorithm-bandwidth"),
                    (2 * algorithm / link, "full-2p"),
                    (1 - bus / link, "hidden-exposed", "That is the share that stays unused."),
                ],
                solution=("{bus} of {link} are {used}.",),
                points=1.0,
            ),
            choice(
                id="compare",
                prompt="On {more} ranks “algbw” falls from {algorithm} to {later}, and “busbw” stays at {bus}. What has happened?",
                options=(
                    wrong(
                        "slower",
                        "The links have become slower.",
                        "algorithm-bandwidth",
                        "They carry {bus} as before. Each rank has more to send for the same buffer.",
                    ),
                    right(
                        "factor",
                        "The links do as well as before. A rank has {more_factor}·*P* to send in place of {factor}·*P*.",
                        "“busbw” is made to be compared across numbers of ranks and with the link.",
                    ),
                    wrong(
                        "latency",
                        "The hops of the longer ring cost too much.",
                        "latency-blamed",
                        "Then “busbw” would fall as well.",
                    ),
                    wrong(
                        "shared",
                        "More ranks share one link, so each gets less of it.",
                        "whole-cluster",
                        "Each rank has its own link, and it carries {bus} as before.",
                    ),
                ),
            ),
        ),
    )


def _tree(seed: int) -> Variant:
    draw = Draw(seed, "q2/tree")
    n, rounds = draw.pick(((16, 4), (32, 5), (64, 6), (128, 7)))
    size = draw.pick((0.1e9, 0.2e9, 0.4e9, 0.5e9, 0.8e9))
    bandwidth = draw.pick((10e9, 12.5e9, 20e9, 25e9))
    latency = draw.pick((5e-6, 10e-6, 20e-6))

    def seconds(name: str, n_bytes: float) -> float:
        return collectives.collective_time_s("all-reduce", name, n_bytes, n, bandwidth, latency)

    ring, tree = seconds("ring", size), seconds("binomial tree", size)
    even = collectives.crossover_bytes("all-reduce", "ring", "binomial tree", n, bandwidth, latency)
    assert even is not None, "a tree has fewer hops and more bytes than a ring"
    small = 1e3 * draw.pick((4, 8, 16))
    values = {
        "N": str(n),
        "lg": str(rounds),
        "hops": str(2 * (n - 1)),
        "tree_hops": str(2 * rounds),
        "P": format_bytes(size),
        "B": format_bandwidth(bandwidth),
        "alpha": format_time(latency),
        "sent": gigabytes(ring_allreduce_sent_bytes(size, n), 4),
        "ring": ms(ring),
        "tree": ms(tree),
        "even": format_bytes(even, 3),
        "small": format_bytes(small),
        "small_ring": format_time(seconds("ring", small), 3),
        "small_tree": format_time(seconds("binomial tree", small), 3),
    }
    return variant(
        id="tree",
        title="A ring or a tree?",
        scenario="A binomial tree adds up the gradients in lg *N* = {lg} rounds and broadcasts the sum in {lg} more. In every round whole gradients of {P} "
        "pass a link; nothing is cut into chunks. Compare it with the ring on {N} ranks.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="gradients of one rank", value="{P}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{B}"),
            Given(symbol="α", meaning="latency of one hop", value="{alpha}"),
        ),
        values=values,
        parts=(
            figure(
                id="ring",
                prompt="How long does the ring take?",
                key=1e3 * ring,
                unit="ms",
                wrong=[
                    (1e3 * ring / 2, "one-phase"),
                    (1e3 * 2 * size / bandwidth, "full-2p"),
                    (1e3 * tree, "other-network", "That is the tree."),
                    (1e3 * size / bandwidth, "single-copy"),
                ],
                solution=("{sent} at {B} and {hops} hops of {alpha}: {ring}.",),
            ),
            figure(
                id="tree",
                prompt="And the tree?",
                key=1e3 * tree,
                unit="ms",
                wrong=[
                    (1e3 * tree / 2, "one-phase", "That adds up. The broadcast takes as long again."),
                    (1e3 * ring, "other-network", "That is the ring."),
                    (1e3 * (2 * (n - 1)) * (size / bandwidth + latency), "tree-as-chain"),
                    (1e3 * 2 * rounds * (size / n / bandwidth + latency), "tree-in-chunks"),
                ],
                solution=("{tree_hops} rounds of {P} at {B}, with a hop of {alpha} each: {tree}.",),
            ),
            figure(
                id="even",
                prompt="At which buffer size do the two take equally long?",
                key=even / 1e6,
                unit="MB",
                relative=0.03,
                wrong=[
                    (
                        latency * bandwidth / 1e6,
                        "one-round",
                        "That is the size whose transfer takes as long as one hop.",
                    ),
                    (
                        2 * (n - 1) * latency * bandwidth / 1e6,
                        "one-round",
                        "That sets all hops of the ring against one transfer.",
                    ),
                    (8 * even / 1e6, "bits-for-bytes"),
                    (even * n / 1e6, "tree-in-chunks"),
                ],
                solution=(
                    "The tree saves {hops} − {tree_hops} hops of {alpha}.",
                    "The ring saves (2·{lg} − 2(*N*−1)/*N*) · *P*/*B*. The two are equal at *P* = {even}.",
                ),
            ),
            choice(
                id="small",
                prompt="Which is faster for a buffer of {small}, and why?",
                options=(
                    judged(
                        "tree",
                        "The tree: it has {tree_hops} hops in a row in place of {hops}, and the bytes hardly count.",
                        seconds("binomial tree", small) < seconds("ring", small),
                        "{small_tree} against {small_ring}.",
                    ),
                    wrong(
                        "ring",
                        "The ring: it sends fewer bytes per rank.",
                        "bandwidth-blamed",
                        "It does, but {small} take next to no time. {small_ring} against {small_tree}.",
                    ),
                    wrong(
                        "same",
                        "Both alike: both have a reduce and a gather phase.",
                        "no-latency",
                        "The number of hops differs: {hops} against {tree_hops}.",
                    ),
                ),
            ),
        ),
    )


def _counted(seed: int) -> Variant:
    draw = Draw(seed, "q2/counted")
    n = draw.pick((3, 4, 5, 8))
    size = draw.pick((8e6, 12e6, 16e6, 24e6, 40e6))
    phase, both = _phase_bytes(size, n), ring_allreduce_sent_bytes(size, n)
    values = {
        "N": str(n),
        "P": format_bytes(size),
        "factor": significant(phase / size),
        "phase": format_bytes(phase),
        "both": format_bytes(both),
        "sum": format_bytes(both + phase),
    }
    return variant(
        id="counted",
        title="Count on the wire",
        scenario="You count the bytes that one rank really sends, on {N} ranks with gradients of {P}. A call to the library's reduce-scatter sends {both}, "
        "a call to its all-gather {phase}.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="P", meaning="gradients of one rank", value="{P}"),
        ),
        values=values,
        parts=(
            figure(
                id="textbook",
                prompt="What should a reduce-scatter over a ring send per rank?",
                key=phase / 1e6,
                unit="MB",
                wrong=[
                    (both / 1e6, "both-phases"),
                    (size / 1e6, "own-chunk"),
                    (size / n / 1e6, "one-round"),
                ],
                solution=("(*N*−1)/*N* · *P* = {factor} · {P} = {phase}, as much as the all-gather.",),
            ),
            choice(
                id="inside",
                prompt="What does the library most likely do inside its reduce-scatter?",
                options=(
                    right(
                        "allreduce",
                        "A whole all-reduce, of which it keeps one chunk.",
                        "{both} is what an all-reduce sends. gloo does just that.",
                    ),
                    wrong(
                        "headers",
                        "It adds headers to every packet.",
                        "headers-blamed",
                        "{both} is exactly twice the textbook's {phase}.",
                    ),
                    wrong(
                        "root",
                        "It sends everything to rank 0, which hands out the chunks.",
                        "ring-has-root",
                        "Then rank 0 would send much and all others *P* = {P}. Every rank sends {both}.",
                    ),
                    wrong(
                        "twice",
                        "It counts bytes sent and bytes received.",
                        "double-counting",
                        "Then the all-gather's count would be doubled as well.",
                    ),
                ),
            ),
            figure(
                id="step",
                prompt="A step calls both, one after the other. How much does a rank send?",
                key=(both + phase) / 1e6,
                unit="MB",
                wrong=[
                    (both / 1e6, "name-for-wire"),
                    (2 * both / 1e6, "double-counting", "Only the reduce-scatter sends twice its share."),
                    (phase / 1e6, "one-phase", "That is the all-gather alone."),
                ],
                solution=("{both} + {phase} = {sum}, half as much again as one all-reduce.",),
            ),
        ),
    )
