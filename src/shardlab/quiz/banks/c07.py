"""C07, the quiz of chapter 07: one long sequence over several ranks, and experts over several ranks.

Who waits under a causal mask, what travels, when a hop hides, and what popular experts and a capacity limit cost. All
keys come from ``shardlab.models.context`` and ``shardlab.models.expert``.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.context import (
    all_gather_traffic,
    break_even_block_tokens,
    key_value_bytes,
    rank_tokens,
    ring_time,
    ring_traffic,
    ring_work,
    ulysses_traffic,
)
from shardlab.models.expert import (
    communication_compute_ratio,
    expert_capacity,
    expert_load,
    layer_traffic,
    routed_counts,
)
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
from shardlab.quiz.parts import apart, figure, megabytes, percent, ranking, share, times, whole
from shardlab.units import format_bandwidth, significant

SEED = 707


def build(seed: int = SEED) -> Quiz:
    """The chapter's long sequence and its experts first, then five fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c07",
        title="What when the sequence or the experts don't fit?",
        question="Who waits, what travels, and when does the exchange hide behind compute?",
        variants=(
            _chapter(),
            _deal(seed),
            _hop(seed),
            _ways(seed),
            _busiest(seed),
            _exchange(seed),
        ),
        values={},
        seed=seed,
    )


def _milliseconds(seconds: float) -> str:
    return significant(1e3 * seconds, 3) + " ms"


def _chapter() -> Variant:
    c, s, a, g, rate, link = 8, 65536, 32, 8, 437e12, 12.5e9
    in_order = ring_work(s, c, "contiguous")
    waits = 1 - in_order.per_rank[0] / in_order.critical_pairs
    idle = 1 - in_order.balanced_pairs / in_order.critical_pairs
    each = break_even_block_tokens(rate, link, a, g, True)
    base = communication_compute_ratio(4096, 16, rate, link)
    ratios = {
        "wide": communication_compute_ratio(8192, 16, rate, link) / base,
        "link": communication_compute_ratio(4096, 16, rate, 2 * link) / base,
        "ranks": communication_compute_ratio(4096, 32, rate, link) / base,
    }
    values = {
        "c": str(c),
        "s": str(s),
        "a": str(a),
        "g": str(g),
        "rate": significant(rate / 1e12),
        "B": format_bandwidth(link),
        "slowdown": decimal(in_order.slowdown, 4),
        "waits": percent(waits),
        "idle": percent(idle),
        "each": f"{each:.0f}",
        "hides": f"{c * each:.0f}",
        "blocks": significant(in_order.critical_pairs / (s // c) ** 2, 3),
        "by_wide": decimal(ratios["wide"], 2),
        "by_link": decimal(ratios["link"], 2),
        "by_ranks": decimal(ratios["ranks"], 3),
    }
    return variant(
        id="chapter",
        title="A long sequence, and 64 experts",
        scenario="Llama 3 8B reads a causal sequence of {s} tokens with ring attention over {c} ranks, in bf16. Its attention computes {rate} TFLOP/s on each. "
        "Another model has 64 gated experts, 4096 wide, on 16 ranks; a token goes to 4 of them.",
        given=(
            Given(symbol="c", meaning="context-parallel ranks", value="{c}"),
            Given(symbol="a", meaning="query heads", value="{a}"),
            Given(symbol="g", meaning="key and value heads", value="{g}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{B}"),
        ),
        values=values,
        parts=(
            share(
                id="waits",
                prompt="The tokens are dealt in order and sends are hidden. For what share of the attention's time does rank 0 have nothing to compute?",
                key=waits,
                wrong=[
                    (1 - 1 / c, "diagonal-forgotten"),
                    (idle, "mean-for-worst", "That is the mean of all ranks. Rank 0 has the least to do."),
                    (1 - waits, "hidden-exposed", "That is the share in which it computes."),
                    (0.5, "mask-forgotten", "Half of all pairs are masked, but not half on each rank."),
                ],
                solution=(
                    "Rank 0 meets half a block of its own and nothing else. The ring takes {blocks} blocks: the last rank has a full block in every step but one.",
                    "1 − 0.5/{blocks} = {waits}; all ranks together idle for {idle}, and the ring takes {slowdown} times a fair share.",
                ),
            ),
            figure(
                id="hides",
                prompt="Dealt in a zigzag: from what length of sequence does a hop hide behind the compute of a step, in the forward pass?",
                key=c * each,
                unit="tokens",
                relative=0.02,
                digits=6,
                wrong=[
                    (each, "one-rank-tokens"),
                    (
                        c * each / 2,
                        "mask-forgotten",
                        "Half of a block's pairs are masked: that much less hides a hop.",
                    ),
                    (c * each * a / g, "query-heads-travel"),
                    (c * each / 8, "bits-for-bytes"),
                    (2 * c * each, "keys-twice"),
                ],
                solution=(
                    "*n* = *e*·*F*′/*B*·*g*/*a* = 2 · {rate}·10^12^ / 12.5·10^9^ · {g}/{a} = {each} tokens on each rank, {c} times that in all: {hides}.",
                ),
            ),
            choice(
                id="way",
                prompt="A model with 40 query heads trains on packed documents, where a token sees its own document only, over 16 ranks. Which way works there without a change?",
                options=(
                    right(
                        "gather",
                        "All-gather the keys and values, then compute.",
                        "It takes any mask and any number of ranks, and few key heads are cheap to gather. Work may still be uneven.",
                    ),
                    wrong(
                        "ulysses",
                        "Ulysses: all-to-alls between tokens and heads.",
                        "heads-are-cut",
                        "16 ranks don't divide 40 heads.",
                    ),
                    wrong(
                        "zigzag", "A ring with a zigzag, which is even under any mask.", "mask-fits-blocks"
                    ),
                    wrong(
                        "alone",
                        "No way: let each rank attend to its own tokens only.",
                        "own-tokens-only",
                        "A document that lies on two ranks then gets a wrong result, and no error is raised.",
                    ),
                ),
            ),
            several(
                id="lowers",
                prompt="Now the experts. Which of these lower the ratio of all-to-all to the experts' compute?",
                options=(
                    judged(
                        "wide",
                        "experts twice as wide",
                        ratios["wide"] < 0.9,
                        "It falls to {by_wide} of what it was.",
                    ),
                    judged("link", "twice the bandwidth", ratios["link"] < 0.9, "It falls to {by_link}."),
                    wrong("k", "half as many experts for each token", "tokens-cancel"),
                    wrong("tokens", "twice the tokens", "tokens-cancel"),
                    wrong(
                        "ranks",
                        "twice the ranks, half the experts on each",
                        "slices-send-less",
                        "It rises to {by_ranks}: a larger part of the copies leaves its rank.",
                    ),
                ),
                solution=("*e*·*F*′·(*N*−1)/(3·*f*·*B*·*N*): neither *k* nor the tokens are in it.",),
            ),
            open_question(
                id="explain",
                prompt="A longer sequence makes a context-parallel ring cheaper; more tokens do not make expert parallelism cheaper. Why, and what does help there?",
                answer="On a ring a rank with *n* tokens computes about *n*^2^ pairs in a step and sends the keys and values of *n* tokens: compute grows faster than bytes, so from some length on every hop hides. "
                "An expert does the same work on every copy of a token that arrives: bytes and FLOP both grow with the tokens, and the ratio stays. What helps is wider experts, a faster link, fewer bytes for each copy "
                "(fp8, or one copy for all experts of a node), or other work beside the exchange. And the layer waits for the busiest rank, which no bandwidth mends.",
                points=(
                    "Ring: compute with the square of a rank's tokens, bytes with the tokens.",
                    "Experts: both with the tokens and with *k*.",
                    "Width of an expert, bandwidth, bytes of a copy, overlap with other work.",
                    "The busiest rank is a wait of its own.",
                ),
            ),
        ),
    )


def _deal(seed: int) -> Variant:
    draw = Draw(seed, "c07/deal")
    c, n = draw.pick((4, 5, 6, 8, 10, 12)), 1024 * draw.pick((1, 2, 4, 8))
    s = c * n
    in_order, dealt = ring_work(s, c, "contiguous"), ring_work(s, c, "zigzag")
    # Neither the first nor the last, whose share is no surprise; nor the middle one, which has just the mean.
    rank = draw.until(lambda: 1 + draw.below(c - 2), lambda each: 2 * each + 1 != c)
    half = n // 2
    partner = rank_tokens(s, c, rank, "zigzag")[1][0] // half
    relative = in_order.per_rank[rank] / in_order.balanced_pairs
    pairs = dealt.per_rank[rank]
    values = {
        "c": str(c),
        "n": str(n),
        "s": str(s),
        "rank": str(rank),
        "pieces": str(2 * c),
        "last": str(2 * c - 1),
        "partner": str(partner),
        "between": str(partner - rank - 1),
        "relative": times(relative),
        "pairs": significant(pairs / 1e6, 4) + " million",
        "before": str(rank),
        "seen": f"{rank + 0.5:g}",
        "mean": f"{c / 2:g}",
    }
    return variant(
        id="deal",
        title="Dealing {s} tokens to {c} ranks",
        scenario="A causal sequence of {s} tokens goes to {c} ranks, {n} tokens each. Ranks count from 0.",
        given=(Given(symbol="c", meaning="context-parallel ranks", value="{c}"),),
        values=values,
        parts=(
            figure(
                id="relative",
                prompt="Dealt in order: how many times the mean does rank {rank} compute in all steps together?",
                key=relative,
                unit="×",
                relative=0.015,
                wrong=[
                    (
                        (rank + 1) / c,
                        "mask-forgotten",
                        "The mean is *c*/2 blocks: half of all pairs are masked.",
                    ),
                    (
                        2 * rank / c,
                        "diagonal-forgotten",
                        "Its own block counts, too: half of it is not masked.",
                    ),
                    (2 * (rank + 1) / c, "diagonal-forgotten"),
                    (in_order.slowdown, "slowest-for-all", "That is what the ring waits for, over the mean."),
                    (1, "mask-forgotten", "Its tokens are as many as those of others, its pairs are not."),
                ],
                solution=(
                    "It meets {before} full blocks and half of its own: {seen}. The mean is {c}/2 = {mean}: {relative}.",
                ),
            ),
            whole(
                id="between",
                prompt="Dealt in a zigzag: the sequence is cut into {pieces} pieces, numbered from 0, and rank {rank} has piece {rank} and one more. How many pieces lie between its two?",
                key=partner - rank - 1,
                unit="pieces",
                wrong=[
                    (partner - rank, "off-by-one", "Pieces count from 0: the last one is {last}."),
                    (0, "neighbouring-pieces"),
                    (
                        c - 1,
                        "neighbouring-pieces",
                        "Then a rank with an early piece has an early second one as well.",
                    ),
                ],
                solution=(
                    "The other one is as far from the end: {last} − {rank} = {partner}. Between {rank} and {partner} lie {between}.",
                ),
            ),
            figure(
                id="pairs",
                prompt="How many million pairs of query and key does each rank then compute?",
                key=pairs / 1e6,
                unit="million pairs",
                wrong=[
                    (2 * pairs / 1e6, "mask-forgotten"),
                    (c * pairs / 1e6, "whole-cluster", "That is all ranks together."),
                    (pairs / c / 1e6, "one-round", "That is one step of {c}."),
                ],
                solution=("All together {s}·({s}+1)/2, and everyone the same share of 1/{c}: {pairs}.",),
            ),
            choice(
                id="no-mask",
                prompt="The mask is switched off, as in an encoder. Which deal is best?",
                options=(
                    right(
                        "any",
                        "Any: every query meets every key.",
                        "All blocks are full, so every rank has the same work in every step.",
                    ),
                    wrong("zigzag", "Still the zigzag.", "balance-without-need"),
                    wrong(
                        "order", "In order: the early ranks now have the most to do.", "balance-without-need"
                    ),
                ),
            ),
        ),
    )


def _hop(seed: int) -> Variant:
    draw = Draw(seed, "c07/hop")
    a, g, d = draw.pick(((32, 8, 128), (64, 8, 128), (40, 8, 128), (16, 16, 128), (24, 4, 128)))
    c = draw.pick((4, 8, 16))

    def clear(drawn: Any) -> bool:
        n, rate, link = drawn
        found = n / break_even_block_tokens(rate, link, a, g, True)
        return 0.2 < found < 5 and not 0.8 < found < 1.25

    n, rate, link = draw.until(
        lambda: (
            1024 * draw.pick((1, 2, 4, 8, 16)),
            1e12 * draw.pick((250, 300, 400, 500)),
            1e9 * draw.pick((12.5, 25, 50, 100, 200)),
        ),
        clear,
    )
    block = key_value_bytes(n, 1, g, d)
    send = block / link
    # One zigzag step: half of the n by n pairs, 4 a d FLOP each (the half pairs on the diagonal are left out).
    compute = 2.0 * n * n * a * d / rate
    run = ring_time(c * n, 1, a, d, c, rate, link, 0.0, g)
    least = link * break_even_block_tokens(rate, link, a, g, True) / n
    values = {
        "a": str(a),
        "g": str(g),
        "d": str(d),
        "c": str(c),
        "n": str(n),
        "rate": significant(rate / 1e12),
        "B": format_bandwidth(link),
        "block": megabytes(block),
        "send": _milliseconds(send),
        "compute": _milliseconds(compute),
        "total": _milliseconds(run.step_time_s),
        "longer": _milliseconds(max(send, compute)),
        "before": str(c - 1),
        "least": significant(least / 1e9, 3) + " GB/s",
    }
    return variant(
        id="hop",
        title="Does the hop hide?",
        scenario="One layer's attention runs forward on a zigzag ring of {c} ranks, {n} tokens on each, in bf16 (2 bytes a number). While a rank computes with one part of keys and values, the next one arrives. "
        "A step computes 2·*n*^2^·*a*·*d* FLOP.",
        given=(
            Given(symbol="a", meaning="query heads", value="{a}"),
            Given(symbol="g", meaning="key and value heads", value="{g}"),
            Given(symbol="d", meaning="width of a head", value="{d}"),
            Given(symbol="F′", meaning="attention on one rank, TFLOP/s", value="{rate}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{B}"),
        ),
        values=values,
        parts=(
            figure(
                id="send",
                prompt="How long does one hop take?",
                key=1e3 * send,
                unit="ms",
                wrong=[
                    (1e3 * send / 2, "keys-only"),
                    (1e3 * send * a / g, "query-heads-travel"),
                    (
                        1e3 * send * c,
                        "one-rank-tokens",
                        "A hop carries the keys and values of one rank's tokens.",
                    ),
                    (8e3 * send, "bits-for-bytes"),
                ],
                solution=("2 · {n} · {g} · {d} · 2 bytes = {block}, over {B}: {send}.",),
            ),
            figure(
                id="total",
                prompt="A step computes for {compute}. How long does the whole forward pass of the attention take?",
                key=1e3 * run.step_time_s,
                unit="ms",
                relative=0.015,
                wrong=[
                    (1e3 * c * (compute + send), "no-overlap"),
                    (1e3 * c * compute, "free-lunch", "Here a hop takes longer than a step's compute."),
                    (1e3 * c * send, "no-compute", "Those are hops alone, and one too many."),
                    (1e3 * c * max(compute, send), "own-chunk", "In the last step nothing is left to send."),
                    (1e3 * max(compute, send), "one-round", "That is one step."),
                ],
                solution=(
                    "{before} steps take the longer of {compute} and {send}, and the last one only computes: {before} · {longer} + {compute} = {total}.",
                ),
            ),
            choice(
                id="hides",
                prompt="What do longer parts do, with the same ranks?",
                options=(
                    right(
                        "hide",
                        "Compute grows with their square, the hop with their length: from some length on it hides.",
                        "That is why a ring suits long sequences.",
                    ),
                    wrong(
                        "both",
                        "Compute and hop grow alike, so nothing changes.",
                        "tokens-cancel",
                        "That is so for experts. Attention has a pair for each query *and* key.",
                    ),
                    wrong(
                        "worse",
                        "More keys travel, so hiding gets harder.",
                        "volume-for-urgency",
                        "More keys travel, and each of them is met by more queries.",
                    ),
                ),
            ),
            figure(
                id="least",
                prompt="At least what bandwidth hides the hop, at these lengths?",
                key=least / 1e9,
                unit="GB/s",
                wrong=[
                    (
                        least / 2e9,
                        "mask-forgotten",
                        "Half of the pairs are masked: there is half as much to hide behind.",
                    ),
                    (least * a / g / 1e9, "query-heads-travel"),
                    (8 * least / 1e9, "bits-for-bytes"),
                    (least * c / 1e9, "one-rank-tokens", "What counts is the part of one rank."),
                ],
                solution=("{block} in {compute}: {least}.",),
            ),
        ),
    )


def _ways(seed: int) -> Variant:
    draw = Draw(seed, "c07/ways")

    def traffic(drawn: Any) -> list[float]:
        s, a, g, d, c = drawn
        return [
            ring_traffic(s, 1, g, d, c).total_bytes,
            all_gather_traffic(s, 1, g, d, c).total_bytes,
            ulysses_traffic(s, 1, a, d, c, g).total_bytes,
            layer_sent_bytes(s, 1, a * d, c),
        ]

    drawn = draw.until(
        lambda: (
            1024 * draw.pick((16, 32, 64, 128)),
            draw.pick((32, 64, 96)),
            draw.pick((4, 8, 16, 32)),
            128,
            draw.pick((2, 4, 8, 16)),
        ),
        lambda each: apart(traffic(each), 1.1),
    )
    s, a, g, d, c = drawn
    ring, gathered, swapped, reduced = traffic(drawn)
    forward = ring_traffic(s, 1, g, d, c).forward_bytes
    doubled = traffic((s, a, g, d, 2 * c))
    falls = [doubled[index] < traffic(drawn)[index] for index in range(3)]
    values = {
        "s": str(s),
        "a": str(a),
        "g": str(g),
        "d": str(d),
        "c": str(c),
        "ring": megabytes(ring),
        "gathered": megabytes(gathered),
        "swapped": megabytes(swapped),
        "reduced": megabytes(reduced),
        "forward": megabytes(forward),
        "all": megabytes(key_value_bytes(s, 1, g, d)),
    }
    most = max([t for t in range(1, g + 1) if a % t == 0 and g % t == 0])
    values["most"] = str(most)
    return variant(
        id="ways",
        title="Three ways to share keys",
        scenario="Attention over {s} tokens is split over {c} ranks, one sequence, in bf16 (2 bytes a number); a ring sends the gradients of keys and values in fp32, the others in bf16.",
        given=(
            Given(symbol="a", meaning="query heads", value="{a}"),
            Given(symbol="g", meaning="key and value heads", value="{g}"),
            Given(symbol="d", meaning="width of a head", value="{d}"),
            Given(symbol="c", meaning="context-parallel ranks", value="{c}"),
        ),
        values=values,
        parts=(
            figure(
                id="forward",
                prompt="How much does a rank send in the ring's forward pass, for one layer?",
                key=forward / 1e6,
                unit="MB",
                wrong=[
                    (forward / 2e6, "keys-only"),
                    (forward * a / g / 1e6, "query-heads-travel"),
                    (
                        forward * c / (c - 1) / 1e6,
                        "own-chunk",
                        "A part makes *c*−1 hops: then it has met every rank.",
                    ),
                    (forward / (c - 1) / 1e6, "one-round", "That is one hop."),
                    (2 * forward / 1e6, "both-passes"),
                ],
                solution=(
                    "All keys and values: 2 · {s} · {g} · {d} · 2 bytes = {all}. A rank sends ({c}−1)/{c} of that: {forward}.",
                ),
            ),
            ranking(
                id="order",
                prompt="Put these in order of the bytes that a rank sends for one layer, both passes. Tensor parallelism stands beside the three: it cuts the whole layer, *a*·*d* wide, over as many ranks.",
                first="fewest bytes",
                last="most bytes",
                rows=[
                    (ring, "ring", "ring", "{ring}"),
                    (gathered, "gather", "all-gather", "{gathered}"),
                    (swapped, "ulysses", "Ulysses", "{swapped}"),
                    (reduced, "tensor", "tensor parallelism: four all-reduces", "{reduced}"),
                ],
                start=draw,
            ),
            whole(
                id="most",
                prompt="Over at most how many ranks can Ulysses go without a copy of any key head?",
                key=most,
                unit="ranks",
                wrong=[
                    (a, "copies-forbidden", "Query heads allow it, but there are only {g} key heads."),
                    (a // g, "other-term", "That is how many query heads share a key head."),
                    (c, "not-the-limit", "That is how many there are."),
                ],
                solution=("Each rank needs a whole key head of its own: {g} heads, {most} ranks.",),
            ),
            choice(
                id="doubled",
                prompt="Twice the ranks, the same sequence. Whose bytes per rank fall?",
                options=(
                    judged(
                        "ulysses",
                        "Only those of Ulysses.",
                        falls == [False, False, True],
                        "A rank exchanges its own tokens, and it has half as many. In a ring or an all-gather all keys still come by.",
                    ),
                    wrong(
                        "all",
                        "All: everyone has fewer tokens.",
                        "smaller-chunks",
                        "Parts get smaller, and more of them come by: together ({c}−1)/{c} of all keys, then a little more.",
                    ),
                    wrong(
                        "ring",
                        "Only those of the ring.",
                        "neighbour-only",
                        "A rank has one neighbour, but sends it every part that comes by.",
                    ),
                    wrong(
                        "none",
                        "Those of none of them.",
                        "volume-grows",
                        "Ulysses deals heads: what a rank sends shrinks with its tokens.",
                    ),
                ),
            ),
        ),
    )


def _busiest(seed: int) -> Variant:
    draw = Draw(seed, "c07/busiest")

    def look(drawn: Any) -> tuple[list[int], list[int]]:
        ranks, each, tokens, skew, start = drawn[:5]
        counts = routed_counts(tokens, ranks * each, 2, skew, seed=start)
        # A router does not number the experts by their popularity: deal them out in a drawn order.
        mixed = Draw(start, "c07/experts").shuffled(counts)
        return mixed, [sum(mixed[each * rank : each * rank + each]) for rank in range(ranks)]

    def clear(drawn: Any) -> bool:
        counts, loads = look(drawn)
        limited = expert_load(counts, expert_capacity(drawn[2], len(counts), 2, drawn[5]))
        by_expert, by_rank = expert_load(counts).imbalance, expert_load(loads).imbalance
        return (
            by_expert > 1.15 * by_rank
            and by_rank > 1.1
            and limited.dropped_fraction > 0.03
            and limited.empty_slots_fraction > limited.dropped_fraction + 0.03
        )

    drawn = draw.until(
        lambda: (
            draw.pick((2, 4)),
            draw.pick((2, 4)),
            draw.pick((256, 512, 1024)),
            draw.pick((0.5, 0.7, 0.9)),
            1 + draw.below(1000),
            draw.pick((1.25, 1.5)),
        ),
        clear,
        tries=200,
    )
    ranks, each, tokens, _, _, factor = drawn
    counts, loads = look(drawn)
    experts = ranks * each
    slots = expert_capacity(tokens, experts, 2, factor)
    limited = expert_load(counts, slots)
    by_expert, by_rank = expert_load(counts), expert_load(loads)
    top = max(loads)
    values = {
        "tokens": str(tokens),
        "experts": str(experts),
        "ranks": str(ranks),
        "each": str(each),
        "factor": f"{factor:g}",
        "slots": str(slots),
        "all_slots": str(slots * experts),
        "copies": str(2 * tokens),
        "busy": str(top),
        "mean": significant(by_rank.mean),
        "by_rank": times(by_rank.imbalance),
        "dropped_copies": str(limited.dropped),
        "dropped": percent(limited.dropped_fraction),
        "kept": str(limited.assignments - limited.dropped),
        "empty": percent(limited.empty_slots_fraction),
    }
    return variant(
        id="busiest",
        title="{experts} experts, {ranks} ranks",
        scenario="A router has sent {tokens} tokens to 2 of {experts} experts each. Every rank holds {each} experts, in order. The table counts the copies that arrived.",
        values=values,
        table=Table(
            caption="Copies that each expert got",
            columns=("expert", "rank", "copies"),
            rows=tuple([(str(index), str(index // each), str(size)) for index, size in enumerate(counts)]),
        ),
        parts=(
            figure(
                id="imbalance",
                prompt="Without a limit: how many times as long does the layer's compute take as it would with even ranks?",
                key=by_rank.imbalance,
                unit="×",
                wrong=[
                    (by_expert.imbalance, "experts-for-ranks"),
                    (1, "mean-for-slowest", "All ranks wait for the one with the most copies."),
                    (min(loads) / by_rank.mean, "other-term", "That is the rank with the least work."),
                    (
                        max(loads) / min(loads),
                        "one-rank-baseline",
                        "That compares the busiest with the idlest rank, not with the mean.",
                    ),
                ],
                solution=(
                    "The busiest rank has {busy} copies, the mean is {copies}/{ranks} = {mean}: {by_rank}.",
                ),
            ),
            share(
                id="dropped",
                prompt="A capacity factor of {factor} gives each expert {slots} slots. What share of the copies is dropped?",
                key=limited.dropped_fraction,
                points=0.3,
                wrong=[
                    (limited.empty_slots_fraction, "dropped-for-empty"),
                    (
                        limited.dropped / (slots * experts),
                        "wrong-whole",
                        "That is their share of all slots, not of all copies.",
                    ),
                    (limited.dropped / tokens, "wrong-whole", "A token has two copies: there are {copies}."),
                    (0, "limit-is-free"),
                ],
                solution=(
                    "What is above {slots} in the table: {dropped_copies} of {copies} copies, {dropped}.",
                ),
            ),
            share(
                id="empty",
                prompt="And what share of the slots travels empty?",
                key=limited.empty_slots_fraction,
                points=0.3,
                wrong=[
                    (limited.dropped_fraction, "dropped-for-empty"),
                    (1 - 1 / factor, "limit-is-free", "That holds if nothing is dropped."),
                    (
                        1 - limited.empty_slots_fraction,
                        "hidden-exposed",
                        "That is the share of the full ones.",
                    ),
                ],
                solution=(
                    "{experts} · {slots} = {all_slots} slots for the {kept} copies that stay: {empty} are empty.",
                ),
            ),
            choice(
                id="larger",
                prompt="What does a larger capacity factor do?",
                options=(
                    right(
                        "trade",
                        "It drops fewer copies and sends more empty slots.",
                        "Time and memory are certain either way; the routing stays as it is.",
                    ),
                    wrong(
                        "even",
                        "It makes the routing more even.",
                        "limit-is-free",
                        "The limit does not speak to the router. A balance loss does.",
                    ),
                    wrong(
                        "faster",
                        "It makes the layer faster, because nobody waits.",
                        "limit-is-free",
                        "Every slot is sent and computed, full or not.",
                    ),
                    wrong(
                        "nothing",
                        "Nothing: what counts is the number of tokens.",
                        "tokens-cancel",
                        "Buffers are as large as the slots, whatever is in them.",
                    ),
                ),
            ),
        ),
    )


def _exchange(seed: int) -> Variant:
    draw = Draw(seed, "c07/exchange")
    n, per = draw.pick((4, 8, 16, 32)), draw.pick((1, 2, 4))
    h, k = draw.pick((2048, 4096, 5120, 7168)), draw.pick((2, 4, 6, 8))
    tokens, factor = draw.pick((2048, 4096, 8192)), draw.pick((1.25, 1.5, 2.0))
    rate, link, f = draw.until(
        lambda: (
            1e12 * draw.pick((300, 400, 500, 600)),
            1e9 * draw.pick((25, 50, 100, 200)),
            draw.pick((1024, 1536, 2048, 4096, 8192, 14336)),
        ),
        lambda each: (
            0.05 < communication_compute_ratio(each[2], n, each[0], each[1]) < 8
            and abs(communication_compute_ratio(each[2], n, each[0], each[1]) - 0.5) > 0.05
        ),
    )
    k = min(k, n * per // 2)
    ratio = communication_compute_ratio(f, n, rate, link)
    width = f * ratio / 0.5
    padded = layer_traffic(tokens, h, n * per, k, n, factor).total_bytes
    plain = layer_traffic(tokens, h, n * per, k, n).total_bytes
    values = {
        "n": str(n),
        "experts": str(n * per),
        "h": str(h),
        "k": str(k),
        "f": str(f),
        "tokens": str(tokens),
        "factor": f"{factor:g}",
        "rate": significant(rate / 1e12),
        "B": format_bandwidth(link),
        "ratio": decimal(ratio),
        "width": f"{width:.0f}",
        "plain": megabytes(plain),
        "padded": megabytes(padded),
    }
    return variant(
        id="exchange",
        title="How wide must an expert be?",
        scenario="{experts} gated experts of width {f} lie on {n} ranks; a token goes to {k} of them. A rank has {tokens} tokens of {h} numbers, 2 bytes each, and computes {rate} TFLOP/s. Routing is even, and latency is small.",
        given=(
            Given(symbol="N", meaning="ranks that share the experts", value="{n}"),
            Given(symbol="f", meaning="width of an expert", value="{f}"),
            Given(symbol="h", meaning="hidden width", value="{h}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{B}"),
        ),
        values=values,
        parts=(
            figure(
                id="ratio",
                prompt="How many times the experts' compute do the two all-to-alls of the forward pass take?",
                key=ratio,
                unit="×",
                relative=0.015,
                wrong=[
                    (ratio / 2, "one-way", "The results come back, too."),
                    (1.5 * ratio, "gate-forgotten"),
                    (ratio * n / (n - 1), "own-chunk", "One copy in {n} stays where it is."),
                    (8 * ratio, "bits-for-bytes"),
                    (1 / ratio, "inverted", "Turn it over: exchange over compute."),
                    (ratio * k, "tokens-cancel", "Every copy is sent *and* computed: *k* cancels."),
                ],
                solution=(
                    "A copy moves 2·*h*·2 bytes, ({n}−1)/{n} of them over the link, and costs 6·*h*·*f* FLOP: 2·*F*′·({n}−1)/(3·{f}·*B*·{n}) = {ratio}.",
                ),
            ),
            figure(
                id="width",
                prompt="From what width of an expert on (in numbers) is the exchange at most half of its compute?",
                key=width,
                unit="numbers",
                relative=0.02,
                digits=len(f"{width:.0f}"),
                wrong=[
                    (width / 2, "other-term", "There the two are equal."),
                    (width / 4, "inverted", "There the compute is half of the exchange."),
                    (1.5 * width, "gate-forgotten"),
                    (8 * width, "bits-for-bytes"),
                ],
                solution=("The ratio falls with the width: {f} · {ratio} / 0.5 = {width}.",),
            ),
            figure(
                id="padded",
                prompt="With buffers padded to a capacity factor of {factor}: how much does a rank send for this layer, forward and backward?",
                key=padded / 1e6,
                unit="MB",
                wrong=[
                    (plain / 1e6, "limit-is-free", "Buffers travel with all their slots, full or not."),
                    (padded / 2e6, "forward-only"),
                    (
                        padded / 4e6,
                        "one-all-reduce",
                        "Copies go out and come back, in both passes: four all-to-alls.",
                    ),
                    (padded / k / 1e6, "one-copy"),
                    (padded * n / (n - 1) / 1e6, "own-chunk", "One slot in {n} stays on its rank."),
                ],
                solution=(
                    "Even and without padding: 4 · {k} · {tokens} · {h} · 2 bytes · ({n}−1)/{n} = {plain}; {factor} times that with padding: {padded}.",
                ),
            ),
            choice(
                id="mend",
                prompt="The exchange takes too long. What lowers its bytes without changing the model?",
                options=(
                    right(
                        "node",
                        "Send a token once to each node on which it has experts, and to the experts from there.",
                        "Between nodes a token then travels once in place of once for each expert.",
                    ),
                    wrong(
                        "tokens",
                        "Smaller micro-batches.",
                        "smaller-micro-batches",
                        "Each token still sends all its copies; there are only more exchanges.",
                    ),
                    wrong("capacity", "A larger capacity factor.", "limit-is-free", "That sends more slots."),
                    wrong(
                        "overlap",
                        "Overlapping the exchange with other work.",
                        "overlap-saves-bytes",
                        "That hides time. The bytes on the wire stay the same.",
                    ),
                ),
            ),
        ),
    )
