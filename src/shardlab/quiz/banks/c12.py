"""Chapter 12: what does a mistake look like, and which test tells it from its neighbours?

Waiting that no average shows, a pipeline that may be innocent, a meter that is always at 100 %, and ranks that run
out of data: each is a case to be decided by numbers.
"""

from __future__ import annotations

from shardlab.models.antipatterns import model_flops_utilisation, setting
from shardlab.models.batch import contiguous_counts, shard_plan, uneven_steps
from shardlab.models.collectives import ring_allreduce_time_s
from shardlab.models.diagnose import pipeline
from shardlab.models.stragglers import slow_rank_step, straggler_from_collectives, straggler_report
from shardlab.quiz.draw import Draw
from shardlab.quiz.model import (
    Given,
    Quiz,
    Table,
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
from shardlab.units import GB

SEED = 12


def build(seed: int = SEED) -> Quiz:
    """The chapter's slow rank first, then four fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c12",
        title="What does a mistake look like, and how do you tell it from its neighbours?",
        question="Which purse is empty (traffic, waiting, memory, or data and learning), and which number proves it?",
        variants=(_chapter(), _waits(seed), _bubble(seed), _meter(seed), _uneven(seed)),
        values={},
        seed=seed,
    )


def _chapter() -> Variant:
    n, base, slow = 64, 0.1, 1.5
    step = slow_rank_step(base, slow, n)
    collectives = [70, 70, 20, 70]
    found = straggler_from_collectives([float(each) for each in collectives])
    values = {
        "N": str(n),
        "others": str(n - 1),
        "base": decimal(base * 1e3),
        "slow": decimal(slow, 2),
        "step": decimal(step.expected_step_s * 1e3),
        "extra": decimal((slow - 1) * base * 1e3),
        "mean": decimal(step.mean_s * 1e3, 5),
        "rise": f"{100 * (step.mean_s / base - 1):.2f} %",
        "waiting": percent(step.lost_fraction),
        "found": str(found),
        "times": ", ".join([str(each) for each in collectives[:-1]]) + f" and {collectives[-1]} ms",
        "wait": str(max(collectives) - min(collectives)),
    }
    return variant(
        id="chapter",
        title="One of 64 ranks is slow",
        scenario="{N} ranks train together and compute for {base} ms a step. Then one of them takes {slow} times as long, in every step.",
        given=(
            Given(symbol="N", meaning="ranks", value="{N}"),
            Given(symbol="C", meaning="compute of a healthy rank", value="{base} ms"),
        ),
        values=values,
        parts=(
            share(
                id="mean",
                prompt="By how many per cent does the mean compute time over the ranks rise?",
                key=step.mean_s / base - 1,
                points=0.05,
                wrong=[
                    (slow - 1, "slow-rank-for-mean"),
                    (slow / n, "step-inflation", "Only what it takes beyond {base} ms is added to the mean."),
                    (step.lost_fraction, "other-share"),
                ],
                solution=(
                    "{extra} ms more on one rank of {N}: the mean goes from {base} to {mean} ms, {rise}. The step is {step} ms, half as long again.",
                ),
            ),
            share(
                id="waiting",
                prompt="Which share of all rank-seconds of a step, without the all-reduce, is spent waiting?",
                key=step.lost_fraction,
                points=0.3,
                wrong=[
                    (
                        slow - 1,
                        "wrong-whole",
                        "The others wait {extra} ms of a step of {step} ms, not of {base} ms.",
                    ),
                    (step.mean_s / base - 1, "other-share", "That is the rise of the mean."),
                ],
                solution=("{others} ranks wait {extra} ms of {step} ms, one waits for nobody: {waiting}.",),
            ),
            choice(
                id="which",
                prompt="On four ranks, numbered from 0, a profile shows all-reduces of {times}. Which node do you look at first?",
                options=(
                    wrong(
                        "longest",
                        "Those of the other three: their all-reduces are slow.",
                        "long-wait-is-slow",
                    ),
                    judged(
                        "shortest",
                        "That of rank {found}.",
                        collectives[found] == min(collectives),
                        "It arrives last and waits for nobody. The others wait {wait} ms for it.",
                    ),
                    wrong(
                        "network",
                        "No node: long all-reduces are the network's.",
                        "long-wait-is-slow",
                        "A slow network makes them long on all ranks. Here one has a short one.",
                    ),
                ),
            ),
            several(
                id="shows",
                prompt="Which of these give the slow rank away?",
                options=(
                    wrong("loss", "the loss, averaged over the ranks", "loss-has-a-clock"),
                    right(
                        "most",
                        "the longest compute time beside the mean, with the rank's number",
                        "{step} ms beside {mean} ms.",
                    ),
                    wrong("steps", "the step time, rank by rank", "step-time-accuses"),
                    wrong("meter", "the GPU utilisation, rank by rank", "busy-is-working"),
                    right(
                        "collectives",
                        "the time in the all-reduce, rank by rank",
                        "The slow one has the shortest.",
                    ),
                    wrong("single", "the loss of every rank by itself", "loss-has-a-clock"),
                ),
            ),
            open_question(
                id="moved",
                prompt="A job moved to another cluster with the same GPUs. Utilisation stays at 100 %, tokens per second fell to a tenth. What do you suspect, and what do you measure, in which order?",
                answer="Utilisation counts a kernel that waits for the network as work, so it says nothing here. "
                "Work out MFU from tokens per second: it fell to a tenth, too, with the same GPUs. The first suspect is the network. "
                "Time one rank's step alone: if that is as before, the GPUs and the data are cleared. "
                "Time one all-reduce of the gradients' size alone, and hold it against the bytes and the link's name. "
                "If it is far below, look for the wrong interface or a fall-back to TCP. If the link is as sold, take a trace of one step, rank by rank: one rank that never waits is a slow rank; "
                "waiting before the step begins is data.",
                points=(
                    "Utilisation counts waiting kernels; MFU or tokens per second count work.",
                    "One rank alone clears GPU and data.",
                    "One all-reduce alone against the bytes and the link's name.",
                    "Compute and wait of each rank tell a slow network from a slow rank.",
                ),
            ),
        ),
    )


def _waits(seed: int) -> Variant:
    draw = Draw(seed, "c12/waits")
    n = draw.pick((4, 5, 6))
    transfer = draw.pick((15, 20, 25, 30))
    step = draw.pick((200, 240, 300, 350))
    # Compute of each rank in ms: one slow rank, the others close together but all different.
    longest = step - transfer
    gaps = [draw.pick((40, 50, 60, 70)) + 3 * place for place in range(n - 1)]
    compute = [longest] + [longest - gap for gap in gaps]
    order = draw.shuffled(list(range(n)))
    compute = [compute[place] for place in order]
    inside = [step - each for each in compute]
    found = straggler_from_collectives([float(each) for each in inside])
    report = straggler_report([float(each) for each in compute])
    second = sorted(compute)[-2]
    mended = second + transfer
    most = inside.index(max(inside))
    values = {
        "n": str(n),
        "step": str(step),
        "found": str(found),
        "most": str(most),
        "shortest": str(transfer),
        "slow": str(longest),
        "second": str(second),
        "mended": str(mended),
        "gain": times(step / mended),
        "wait": str(longest - min(compute)),
    }
    values.update([(f"c{rank}", f"{compute[rank]} ms") for rank in range(n)])
    return variant(
        id="waits",
        title="Who waits for whom?",
        scenario="A profile of one step, {step} ms long on each of {n} ranks. A rank computes, then enters the all-reduce; nothing overlaps. The all-reduce ends on all ranks at the same moment.",
        table=Table(
            caption="Time that each rank spends in the all-reduce",
            columns=("rank", "in the all-reduce, ms"),
            rows=tuple([(str(rank), str(inside[rank])) for rank in range(n)]),
        ),
        values=values,
        parts=(
            choice(
                id="slow",
                prompt="Which rank do you look at?",
                options=[
                    right(
                        f"rank{rank}",
                        f"rank {rank}",
                        "It is in the all-reduce for only {shortest} ms: it arrives last.",
                    )
                    if rank == found
                    else wrong(f"rank{rank}", f"rank {rank}", "long-wait-is-slow")
                    for rank in range(n)
                ],
                solution=(
                    "Rank {most} waits {wait} ms longer than rank {found}, because it computes that much faster.",
                ),
            ),
            figure(
                id="compute",
                prompt="How long does the slow rank compute?",
                key=float(max(compute)),
                unit="ms",
                wrong=[
                    (float(min(compute)), "long-wait-is-slow"),
                    (float(step), "whole-step", "The all-reduce itself takes {shortest} ms of the step."),
                    (float(transfer), "other-term", "That is its time in the all-reduce."),
                ],
                solution=("{step} − {shortest} = {slow} ms.",),
            ),
            figure(
                id="mended",
                prompt="The node is replaced, and its rank computes as fast as the fastest other. How long is a step then?",
                key=float(mended),
                unit="ms",
                absolute=1.0,
                relative=0.0,
                wrong=[
                    (float(second), "free-lunch", "The all-reduce still takes its {shortest} ms."),
                    (
                        float(min(compute) + transfer),
                        "fastest-for-slowest",
                    ),
                    (float(step - transfer), "other-term", "That takes the all-reduce away, not the wait."),
                    (float(step), "gain-denied"),
                ],
                solution=(
                    "Now the second slowest sets the pace: {second} + {shortest} = {mended} ms, {gain} as fast.",
                ),
            ),
            share(
                id="lost",
                prompt="Before the repair: which share of the rank-seconds between the start of the step and the last rank's arrival is spent waiting?",
                key=report.ratios.lost_fraction,
                points=0.8,
                wrong=[
                    (
                        sum(inside) / n / step,
                        "whole-step",
                        "That counts the all-reduce itself as waiting.",
                    ),
                    (
                        (longest - min(compute)) / longest,
                        "slowest-for-all",
                        "Ranks wait for different times: take their mean.",
                    ),
                    (
                        report.ratios.max_over_mean - 1,
                        "wrong-whole",
                        "That is waiting over working. The question asks for a share of both.",
                    ),
                ],
                solution=("1 − mean compute over the longest, {slow} ms.",),
            ),
            ranking(
                id="arrivals",
                prompt="In which order do the ranks arrive at the all-reduce?",
                first="first",
                last="last",
                rows=[
                    (compute[rank], f"rank{rank}", f"rank {rank}", "{c" + str(rank) + "}")
                    for rank in range(n)
                ],
                start=draw,
                traps=(
                    Trap(
                        above=f"rank{found}", below=f"rank{most}", misconception="long-wait-is-slow", why=""
                    ),
                ),
                solution=("Each computes for the step less its time in the all-reduce.",),
            ),
        ),
    )


def _bubble(seed: int) -> Variant:
    draw = Draw(seed, "c12/bubble")
    p = draw.pick((4, 8, 16))
    few = p * draw.pick((1, 2))
    many = 2 * few
    reference = float(draw.pick((24000, 36000, 48000, 60000)))
    guilty = draw.pick((True, False))
    free = pipeline([(p, few, None), (p, many, None)], reference)
    ceilings = [float(each) for each in free.ceilings if each is not None]
    if guilty:
        reached = [int(0.95 * each + 0.5) for each in ceilings]
    else:
        reached = [int(draw.pick((0.3, 0.4, 0.5)) * ceilings[0] + 0.5)]
        reached.append(int(draw.pick((0.98, 0.99, 1.01)) * reached[0] + 0.5))
    said = pipeline([(p, few, reached[0]), (p, many, reached[1])], reference)
    before, after = [float(each) for each in said.bubbles if each is not None]
    expected, observed = (1 - after) / (1 - before), reached[1] / reached[0]
    values = {
        "p": str(p),
        "few": str(few),
        "many": str(many),
        "reference": str(int(reference)),
        "first": str(reached[0]),
        "second": str(reached[1]),
        "before": percent(before),
        "after": percent(after),
        "expected": times(expected),
        "observed": times(observed),
        "ceiling": str(int(ceilings[0] + 0.5)),
        "slots": str(few + p - 1),
    }
    return variant(
        id="bubble",
        title="Is it the bubble?",
        scenario="A model runs at {reference} tokens/s on {p} GPUs without a pipeline. With {p} equal stages and {few} micro-batches (1F1B) it runs at {first} tokens/s, with {many} at {second}. The bubble is under suspicion.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches, first and second run", value="{few} and {many}"),
        ),
        values=values,
        parts=(
            figure(
                id="ceiling",
                prompt="How many tokens/s would the bubble alone leave with {few} micro-batches?",
                key=ceilings[0],
                unit="tokens/s",
                digits=5,
                wrong=[
                    (reference * before, "hidden-exposed", "That is what the bubble takes."),
                    (reference * (1 - (p - 1) / few), "ideal-for-total")
                    if few > p
                    else (reference / (1 + p / few), "stages-for-gaps"),
                    (reference / p, "turns-for-bubble"),
                    (reference, "no-bubble"),
                ],
                solution=(
                    "Idle over total time: (*p*−1)/(*m*+*p*−1) = {before}. What is left is {few}/{slots} of {reference}: {ceiling}.",
                ),
            ),
            figure(
                id="expected",
                prompt="If the bubble alone decides: how many times as fast must the run with {many} micro-batches be?",
                key=expected,
                unit="×",
                wrong=[
                    (many / few, "bubble-is-everything"),
                    (before / after, "total-divided", "That compares the idle shares, not the working ones."),
                    (1 / expected, "inverted", "Turn it over."),
                    (observed, "measured-for-expected")
                    if abs(observed / expected - 1) > 0.05
                    else (1.0, "fewer-micro-batches"),
                ],
                solution=("Idle falls from {before} to {after}: (1 − {after})/(1 − {before}) = {expected}.",),
            ),
            choice(
                id="verdict",
                prompt="What do the two measurements say?",
                options=(
                    wrong(
                        "1f1b",
                        "GPipe would idle less than 1F1B.",
                        "1f1b-for-bubble",
                        "Both idle for the same time.",
                    ),
                    judged(
                        "bubble",
                        "The bubble explains them: still more micro-batches, or interleaving, will help.",
                        said.verdict.code == "bubble-explains",
                        "Expected {expected}, measured {observed}.",
                        "hypothesis-kept",
                    ),
                    wrong(
                        "more",
                        "Nothing yet: with so few micro-batches a bubble can't be judged.",
                        "nothing-refutes",
                    ),
                    judged(
                        "other",
                        "The bubble is not the cause: look at placement, work per call, and unequal stages.",
                        said.verdict.code == "bubble-is-not-the-cause",
                        "Expected {expected}, measured {observed}.",
                        "evidence-ignored",
                    ),
                ),
                solution=(
                    "Both runs reach nearly what the bubble leaves, and the gain came as predicted."
                    if guilty
                    else "The bubble shrank and nothing came of it: the cause is elsewhere, whatever the bubble's size.",
                ),
            ),
        ),
    )


def _meter(seed: int) -> Variant:
    draw = Draw(seed, "c12/meter")
    n = draw.pick((16, 32, 64, 128))
    tokens = draw.pick((4096, 8192, 16384))
    fast = GB * draw.pick((50, 100))
    slower = draw.pick((4, 8))
    run = setting(n, fast, "llama3-8b", tokens)
    peak = 989e12
    exchange = ring_allreduce_time_s(run.gradient_bytes, n, fast)
    steps = [run.compute_s + exchange, run.compute_s + slower * exchange]
    use = [model_flops_utilisation(run, each) for each in steps]
    values = {
        "n": str(n),
        "tokens": str(tokens),
        "params": billions(run.params),
        "gradients": gigabytes(run.gradient_bytes, 4),
        "compute": decimal(run.compute_s, 4),
        "peak": decimal(peak / 1e12),
        "fast": decimal(fast / GB),
        "slow": decimal(fast / GB / slower),
        "slower": str(slower),
        "exchange": decimal(exchange, 4),
        "first": decimal(steps[0]),
        "second": decimal(steps[1]),
        "before": percent(use[0]),
        "after": percent(use[1]),
        "ratio": times(steps[1] / steps[0]),
    }
    return variant(
        id="meter",
        title="The meter says 100 %",
        scenario="A model of {params} parameters trains on {n} GPUs, {tokens} tokens a rank and step. A rank computes for {compute} s, then the 16-bit gradients are all-reduced over a ring of {fast} GB/s; nothing overlaps, latency is small. "
        "Then the job moves to a cluster with the same GPUs and a network of {slow} GB/s.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="D", meaning="tokens of a rank in a step", value="{tokens}"),
            Given(symbol="C", meaning="compute of a rank", value="{compute} s"),
            Given(symbol="P", meaning="gradients, 2 bytes each", value="{gradients}"),
            Given(symbol="F", meaning="dense peak of a GPU", value="{peak} TFLOP/s"),
        ),
        values=values,
        parts=(
            figure(
                id="step",
                prompt="How long is a step on the new cluster?",
                key=steps[1],
                unit="s",
                relative=0.015,
                wrong=[
                    (slower * steps[0], "compute-slows-too"),
                    (slower * exchange, "no-compute"),
                    (steps[0], "other-network"),
                    (run.compute_s + slower * exchange / 2, "one-phase"),
                    (max(run.compute_s, slower * exchange), "full-overlap"),
                ],
                solution=(
                    "2(*N*−1)/*N* · *P* over {fast} GB/s took {exchange} s; it takes {slower} times that now, and {compute} s of compute: {second} s in place of {first} s.",
                ),
            ),
            share(
                id="before",
                prompt="What was the MFU on the old cluster?",
                key=use[0],
                points=0.7,
                wrong=[
                    (
                        model_flops_utilisation(run, run.compute_s),
                        "free-lunch",
                        "That leaves the all-reduce out of the step.",
                    ),
                    (use[0] / 3, "forward-only"),
                    (run.compute_s / steps[0], "time-for-work"),
                ],
                solution=("6Ψ·*D* over {first} s and {peak} TFLOP/s: {before}.",),
            ),
            share(
                id="after",
                prompt="And on the new one?",
                key=use[1],
                points=0.4,
                wrong=[
                    (use[0], "busy-is-working"),
                    (use[0] / slower, "compute-slows-too"),
                    (run.compute_s / steps[1], "time-for-work"),
                ],
                solution=("The same work in {ratio} the time: {after}.",),
            ),
            choice(
                id="shown",
                prompt="What does `nvidia-smi` show as utilisation on the new cluster?",
                options=(
                    wrong("mfu", "{after}, like the MFU.", "busy-is-working"),
                    wrong(
                        "share",
                        "The share of the step in which a rank computes.",
                        "busy-is-working",
                        "The all-reduce is a kernel, too.",
                    ),
                    wrong(
                        "none",
                        "Nearly nothing: the GPUs wait.",
                        "busy-is-working",
                        "They wait inside a kernel, and that counts as busy.",
                    ),
                    right(
                        "full",
                        "About 100 %, as before.",
                        "An NCCL kernel that waits for its neighbour is a kernel that runs.",
                    ),
                ),
            ),
            choice(
                id="count",
                prompt="Somebody accumulates four micro-batches before each update, and a step takes four times as long as with one. What do you count?",
                options=(
                    wrong(
                        "nothing",
                        "Nothing: four times the samples take four times as long.",
                        "exchange-grows-too",
                    ),
                    wrong(
                        "memory",
                        "The bytes of the gradients on a rank.",
                        "memory-grows",
                    ),
                    right(
                        "exchanges",
                        "The all-reduces of one update.",
                        "There should be one, after the last micro-batch: then four micro-batches take less than four times as long.",
                    ),
                    wrong(
                        "samples",
                        "The samples that each rank reads.",
                        "batch-for-traffic",
                    ),
                ),
            ),
        ),
    )


def _uneven(seed: int) -> Variant:
    draw = Draw(seed, "c12/uneven")

    def fits(drawn: tuple[int, int]) -> bool:
        counts = contiguous_counts(drawn[0], drawn[1])
        # Dealing the rest out evenly would not be the same, nor is what stands over what fills the last round up.
        return 0 < counts[-1] < counts[0] - 1 and 2 * (drawn[0] % drawn[1]) != drawn[1]

    samples, n = draw.until(lambda: (20 + draw.below(60), draw.pick((4, 5, 6, 7, 8))), fits)
    counts = contiguous_counts(samples, n)
    end = uneven_steps(counts)
    padded, dropped = [shard_plan(samples, n, drop_last=drop) for drop in (False, True)]
    values = {
        "samples": str(samples),
        "n": str(n),
        "slice": str(counts[0]),
        "rest": str(counts[-1]),
        "full": str(n - 1),
        "waiting": str(len(end.waiting_ranks)),
        "never": str(samples - n * end.safe_steps),
        "last": str(n - 1),
        "per": str(padded.per_rank),
        "twice": str(padded.duplicates),
        "fewer": str(dropped.per_rank),
        "left": str(dropped.dropped),
    }
    return variant(
        id="uneven",
        title="{samples} batches for {n} ranks",
        scenario="{samples} batches are dealt to {n} ranks in slices of equal length, rounded up; the last rank takes what is left. Each rank trains until its own batches are used up, and every step ends with an all-reduce.",
        given=(
            Given(symbol="n", meaning="batches of an epoch", value="{samples}"),
            Given(symbol="N", meaning="ranks", value="{n}"),
        ),
        values=values,
        parts=(
            whole(
                id="steps",
                prompt="How many steps do all ranks complete?",
                key=end.safe_steps,
                unit="steps",
                wrong=[
                    (counts[0], "longest-for-shortest"),
                    (samples // n, "dealt-evenly"),
                ],
                solution=(
                    "{full} ranks get {slice} batches, the last one {rest}: after {rest} steps it has left.",
                ),
            ),
            whole(
                id="waiting",
                prompt="How many ranks wait in the next all-reduce?",
                key=len(end.waiting_ranks),
                unit="ranks",
                wrong=[
                    (n, "all-ranks-wait", "The last one has ended its loop."),
                    (1, "roles-swapped"),
                ],
                solution=("All but rank {last}: {waiting}.",),
            ),
            choice(
                id="looks",
                prompt="What does it look like?",
                options=(
                    wrong(
                        "loss",
                        "A loss that is a little too high.",
                        "loss-has-a-clock",
                        "No further step ends, so there is no further loss.",
                    ),
                    wrong(
                        "slow",
                        "A slower end of the epoch, because fewer ranks share the work.",
                        "ranks-may-leave",
                    ),
                    right(
                        "hang",
                        "A hang: GPUs at 100 %, no message until the collective's time limit runs out.",
                        "{waiting} ranks wait for one that will never come.",
                    ),
                    wrong(
                        "error",
                        "An error at once, on rank {last}.",
                        "noticed-at-once",
                        "Its loop ended as it should.",
                    ),
                ),
            ),
            whole(
                id="twice",
                prompt="A sampler that pads every rank to the same number of batches is used. How many batches are read twice in an epoch?",
                key=padded.duplicates,
                unit="batches",
                wrong=[
                    (samples % n, "rest-for-padding"),
                    (n, "one-a-rank"),
                    (0, "padding-forgotten"),
                ],
                solution=("{n} · {per} − {samples} = {twice}.",),
            ),
            whole(
                id="left",
                prompt="With `drop_last`, how many are not read?",
                key=dropped.dropped,
                unit="batches",
                wrong=[
                    (padded.duplicates, "padding-for-rest"),
                    (samples - n * end.safe_steps, "slices-cut"),
                    (0, "padding-forgotten", "Then some ranks would have one batch more than others."),
                ],
                solution=(
                    "{samples} − {n} · {fewer} = {left}. In slices, {never} would not be read before the hang.",
                ),
            ),
        ),
    )
