"""C09: what stands between the formulas and a real run: accumulation, batch and learning rate, stragglers, data, tokens.

The source names the remedies; the chapter adds under which conditions they hold. Accumulation needs ``no_sync`` and
saves nothing under ZeRO-3, a learning rate changes only with the batch, ranks that are all alike wait for each other
too, and a mean of means is not the mean.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.batch import (
    accumulated_step_time_s,
    adam_sqrt_scaling,
    ddp_gradients,
    global_batch,
    scaled_learning_rate,
    shard_plan,
    token_loss_scale,
    token_weighting,
)
from shardlab.models.stragglers import (
    exponential_jitter_step,
    normal_jitter_step,
    rare_stall_step,
    slow_rank_step,
    straggler_from_collectives,
    straggler_report,
)
from shardlab.quiz.cluster import CHAPTER
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
from shardlab.quiz.parts import figure, ms, percent, ranking, share, times, whole
from shardlab.units import format_time

SEED = 9


def build(seed: int = SEED) -> Quiz:
    """The chapter's own cases first, then five fresh variants drawn from ``seed``."""
    return quiz_of(
        id="c09",
        title="Why is a real run slower, or worse, than its formula?",
        question="What do accumulation, unequal ranks, the order of the data and the lengths of the texts do to a run?",
        variants=(
            _chapter(),
            _skip(seed),
            _batch(seed),
            _waiting(seed),
            _deal(seed),
            _tokens(seed),
        ),
        values={},
        seed=seed,
    )


def _same_as_whole(synchronised: tuple[bool, ...]) -> bool:
    """Whether two ranks end with the gradient of all micro-batches together, by DDP's rule."""
    # Any numbers without a pattern; already divided by the number of micro-batches.
    own = [[1.0, 4.0, 2.0, 8.0], [5.0, 7.0, 1.0, 3.0]]
    mean = (sum(own[0]) + sum(own[1])) / 2
    return all(abs(held - mean) < 1e-9 for held in ddp_gradients(own, list(synchronised)))


def _chapter() -> Variant:
    n, g, clock, jitter = 8, 4, 0.1, 0.01
    sync = CHAPTER.ring_s(n)
    skipped, forgotten = [accumulated_step_time_s(clock, sync, g, every) for every in (False, True)]
    speedup = n * g * clock / skipped
    steps = {
        "aligned": rare_stall_step(clock, 0.1, 0.01, 512, aligned=True),
        "slow": slow_rank_step(clock, 1.1, 256),
        "eight": normal_jitter_step(clock, jitter, 8),
        "many": normal_jitter_step(clock, jitter, 1024),
        "tail": exponential_jitter_step(clock, jitter, 1024),
        "stalls": rare_stall_step(clock, 0.1, 0.01, 512),
    }
    values = {
        "N": str(n),
        "G": str(g),
        "c": format_time(clock),
        "T": ms(sync),
        "step": ms(skipped),
        "speedup": times(speedup),
        "forgotten": times(n * g * clock / forgotten),
    }
    for name in steps:
        values[name] = ms(steps[name].expected_step_s)
    return variant(
        id="chapter",
        title="Eight ranks, four micro-batches, one slow card",
        scenario="The cluster of chapter 03: {N} data-parallel ranks, {c} of compute for a local batch, 1 GB of gradients, 10 GB/s, nothing overlaps, so that an all-reduce takes {T}. "
        "Each rank now takes {G} such micro-batches for one optimizer step. The later questions stand by themselves.",
        values=values,
        parts=(
            figure(
                id="speedup",
                prompt="With `no_sync` in all but the last micro-batch: how many times the throughput of one rank do the {N} ranks reach?",
                key=speedup,
                unit="×",
                wrong=[
                    (
                        n * g * clock / forgotten,
                        "bytes-per-micro-batch",
                        "That is so without `no_sync`: then every micro-batch all-reduces.",
                    ),
                    (speedup / n, "efficiency-for-speedup"),
                    (n, "free-lunch"),
                    (skipped / (g * clock), "step-inflation"),
                ],
                solution=(
                    "A step takes {G} · {c} + {T} = {step}, and processes {N} · {G} micro-batches: {speedup}.",
                    "Without `no_sync` it stays at {forgotten}.",
                ),
            ),
            several(
                id="ways",
                prompt="Which programs step with the gradient of the whole batch? Micro-batches are of equal size.",
                options=(
                    judged(
                        "skip",
                        "`no_sync` around forward and backward of all micro-batches but the last",
                        _same_as_whole((False, False, False, True)),
                        "Each rank adds up its own, and the sums are averaged once.",
                    ),
                    judged(
                        "every",
                        "an all-reduce in the backward pass of every micro-batch",
                        _same_as_whole((True, True, True, True)),
                        "It is right, only slow: the mean of sums is the sum of means.",
                    ),
                    wrong("late", "the sync flag set between forward and backward", "late-flag"),
                    wrong(
                        "undivided",
                        "as the first, but with a loss that is not divided by the number of micro-batches",
                        "sum-for-mean",
                    ),
                ),
            ),
            ranking(
                id="steps",
                prompt="Everywhere a rank computes for {c}, or that on average, and communication is free. Put these in order of the mean length of a step.",
                first="shortest step",
                last="longest step",
                rows=[
                    (
                        steps["aligned"].expected_step_s,
                        "aligned",
                        "512 ranks that all collect garbage in the same 1 % of the steps, 100 ms each",
                        "{aligned}",
                    ),
                    (
                        steps["slow"].expected_step_s,
                        "slow",
                        "256 ranks, one of them always 10 % slower",
                        "{slow}",
                    ),
                    (
                        steps["many"].expected_step_s,
                        "many",
                        "1024 equal ranks, normal with a standard deviation of 10 ms",
                        "{many}",
                    ),
                    (
                        steps["eight"].expected_step_s,
                        "eight",
                        "8 equal ranks, normal with a standard deviation of 10 ms",
                        "{eight}",
                    ),
                    (
                        steps["tail"].expected_step_s,
                        "tail",
                        "1024 equal ranks, each with an exponential delay of 10 ms on top",
                        "{tail}",
                    ),
                    (
                        steps["stalls"].expected_step_s,
                        "stalls",
                        "512 ranks that each collect garbage in 1 % of the steps, 100 ms each, whenever it suits them",
                        "{stalls}",
                    ),
                ],
                start=("many", "stalls", "eight", "aligned", "tail", "slow"),
                traps=(
                    Trap(above="many", below="slow", misconception="equals-do-not-wait", why=""),
                    Trap(above="stalls", below="tail", misconception="rare-is-rare", why=""),
                ),
            ),
            choice(
                id="who",
                prompt="A job on 512 ranks runs at 70 % of its predicted speed. The profiler shows a short all-reduce on rank 17 and long ones everywhere else. Is the network to blame?",
                options=(
                    wrong("network", "Yes: nearly all all-reduces are long.", "network-blamed"),
                    wrong("others", "Yes: only rank 17 has a healthy link.", "longest-all-reduce"),
                    right(
                        "late",
                        "No: rank 17 arrives last and waits for nobody.",
                        "Look at its compute time, its temperature and clock, its data loader.",
                    ),
                    wrong(
                        "steps",
                        "That can't be told before the ranks' step times are compared.",
                        "step-times-tell",
                    ),
                ),
            ),
            open_question(
                id="fewer",
                prompt="You have to move a job from 8 GPUs to 2, and the loss curve should stay. What do you change, what stays, and what do you check?",
                answer="I take four times as many micro-batches per step, so that the global batch stays. Then learning rate, warm-up and schedule stay too, as long as they count optimizer steps, not micro-steps. "
                "Each loss is divided by the new number of micro-batches (with texts of unequal length, by the tokens of all ranks and micro-batches), and `no_sync` covers all but the last. "
                "The data have to go on where they were: the sampler deals for two ranks now. I check that the first losses agree with the old run; "
                "equal to the last bit they are not, because sums are formed in another order and random numbers are drawn on other ranks.",
                points=(
                    "Micro-batches per step times four: the global batch stays.",
                    "Learning rate and schedule stay, counted in optimizer steps.",
                    "The loss is divided by the new number of micro-batches, or by all tokens.",
                    "The data position is kept, and a few losses are compared with the old run.",
                ),
            ),
        ),
    )


def _skip(seed: int) -> Variant:
    draw = Draw(seed, "c09/skip")
    compute = draw.pick((0.2, 0.4, 0.5, 0.8, 1.2, 2.0))
    sync = compute * draw.pick((0.4, 0.5, 0.75, 1.0, 1.25))
    g, more, broken = draw.pick((2, 4, 8)), draw.pick((16, 32)), draw.below(2) == 1
    single = accumulated_step_time_s(compute, sync, 1)
    measured = accumulated_step_time_s(compute, sync, g, broken)
    should = accumulated_step_time_s(compute, sync, more)
    limit = single / compute
    values = {
        "c": format_time(compute),
        "T": format_time(sync),
        "G": str(g),
        "more": str(more),
        "single": f"{single * 1e3:.0f} ms",
        "all": f"{g * single * 1e3:.0f} ms",
        "skipped": f"{accumulated_step_time_s(compute, sync, g) * 1e3:.0f} ms",
        "measured": f"{measured * 1e3:.0f} ms",
        "should": decimal(should, 4) + " s",
        "limit": times(limit),
        "reached": times(more * single / should),
    }
    why = "Measured: {measured}. With an all-reduce in every micro-batch it would be {G} · {single} = {all}, with one per step {skipped}."
    return variant(
        id="skip",
        title="Is `no_sync` in force?",
        scenario="A DDP job accumulates gradients. Forward and backward of one micro-batch take {c} on a rank; nothing overlaps with the all-reduce. The table has the optimizer steps that were measured.",
        given=(
            Given(symbol="c", meaning="compute of one micro-batch", value="{c}"),
            Given(
                symbol="G", meaning="micro-batches per optimizer step in the second measurement", value="{G}"
            ),
        ),
        table=Table(
            caption="Measured",
            columns=("micro-batches per step", "step in ms"),
            rows=(("1", f"{single * 1e3:.0f}"), (str(g), f"{measured * 1e3:.0f}")),
        ),
        values=values,
        parts=(
            figure(
                id="sync",
                prompt="How long does one all-reduce take?",
                key=1e3 * sync,
                unit="ms",
                wrong=[
                    (1e3 * single, "whole-step"),
                    (
                        1e3 * (measured - compute),
                        "one-micro-batch",
                        "That takes off only one of {G} micro-batches.",
                    ),
                    (
                        1e3 * single / 2,
                        "wrong-whole",
                        "The step is compute and all-reduce, not two equal halves.",
                    ),
                ],
                solution=(
                    "The step with one micro-batch is compute and one all-reduce: {single} − {c} = {T}.",
                ),
            ),
            choice(
                id="verdict",
                prompt="Is the all-reduce skipped in all micro-batches but the last?",
                options=(
                    judged(
                        "yes",
                        "Yes: each further micro-batch adds its compute only.",
                        not broken,
                        why,
                        "skip-misread",
                    ),
                    judged(
                        "no",
                        "No: a step with {G} takes {G} times as long as a step with one.",
                        broken,
                        why,
                        "skip-misread",
                    ),
                    wrong(
                        "unknown",
                        "That can't be told without a profiler.",
                        "profiler-needed",
                        "Two step times are enough here, because an all-reduce takes {T} next to {c} of compute. With a hidden or very short all-reduce they would not be.",
                    ),
                ),
            ),
            figure(
                id="should",
                prompt="How long should a step with {more} micro-batches take, with the skip in force?",
                key=should,
                unit="s",
                digits=4,
                relative=0.002,
                wrong=[
                    (
                        more * single,
                        "bytes-per-micro-batch",
                        "That is with an all-reduce in every micro-batch.",
                    ),
                    (more * compute, "free-lunch", "One all-reduce is left."),
                    (single, "one-micro-batch", "Each micro-batch has to be computed."),
                ],
                solution=("{more} · {c} + {T} = {should}.",),
            ),
            figure(
                id="limit",
                prompt="By which factor can accumulation raise the throughput at most, against one micro-batch per step?",
                key=limit,
                unit="×",
                wrong=[
                    (1 / limit, "inverted", "Turn it over: with the all-reduce over without."),
                    (more, "free-lunch", "Compute grows with the micro-batches as well."),
                    (
                        more * single / should,
                        "not-the-limit",
                        "That is reached with {more} micro-batches. The question asks for ever more of them.",
                    ),
                ],
                solution=("({c} + {T}) / {c} = {limit}; {more} micro-batches reach {reached}.",),
            ),
            choice(
                id="sharded",
                prompt="Another job uses FSDP with full sharding. Accumulating over 16 micro-batches made it hardly faster. Why?",
                options=(
                    right(
                        "gathers",
                        "Each micro-batch gathers the weights and reduces the gradients, as before.",
                        "What may help: keep the weights between forward and backward, `no_sync` if whole gradients fit, or ZeRO-1 if that fits.",
                    ),
                    wrong(
                        "few", "16 are too few to share out the communication.", "accumulation-for-all-stages"
                    ),
                    wrong(
                        "sync",
                        "`no_sync` is missing. With it FSDP would send once per step, at no price.",
                        "accumulation-for-all-stages",
                        "With it the gradients wait, whole, in memory, and the weights are still gathered in every micro-batch.",
                    ),
                ),
            ),
        ),
    )


def _batch(seed: int) -> Variant:
    draw = Draw(seed, "c09/batch")

    def propose() -> Any:
        return [
            (draw.pick((2, 4, 8, 16)), draw.pick((2, 3, 4, 6)), draw.pick((4, 8, 16, 32, 64)))
            for _ in range(2)
        ]

    def fits(drawn: Any) -> bool:
        old, new = [global_batch(*each) for each in drawn]
        # Ranks grow by another factor than the batch, and micro-batches change, too.
        return (
            new in (2 * old, 3 * old, 4 * old)
            and drawn[1][1] != drawn[0][1]
            and drawn[1][2] > drawn[0][2]
            and drawn[1][2] * old != drawn[0][2] * new
        )

    before, after = draw.until(propose, fits)
    old, new = global_batch(*before), global_batch(*after)
    k, ranks = new / old, after[2] / before[2]
    sgd, adam = draw.pick((0.05, 0.1, 0.2)), 1e-4 * draw.pick((1, 2, 3, 6))
    beta = draw.pick((0.95, 0.98, 0.99))
    linear = scaled_learning_rate(sgd, old, new, "linear")
    scaled = adam_sqrt_scaling(adam, 0.9, beta, 1e-8, old, new)
    values = {
        "b": str(before[0]),
        "G": str(before[1]),
        "N": str(before[2]),
        "new_b": str(after[0]),
        "new_G": str(after[1]),
        "new_N": str(after[2]),
        "old": str(old),
        "new": str(new),
        "k": f"{k:.0f}",
        "sgd": decimal(sgd, 2),
        "linear": decimal(linear),
        "adam": f"{adam:.4f}",
        "root": decimal(scaled.lr),
        "beta": decimal(beta, 2),
        "moved": decimal(scaled.beta2),
    }
    return variant(
        id="batch",
        title="Another batch, another learning rate",
        scenario="A job goes from {N} data-parallel ranks with {G} micro-batches of {b} samples each to {new_N} ranks with {new_G} micro-batches of {new_b}.",
        given=(
            Given(symbol="ηₛ", meaning="learning rate, if the job uses SGD", value="{sgd}"),
            Given(symbol="ηₐ", meaning="learning rate, if it uses Adam", value="{adam}"),
            Given(symbol="β₂", meaning="Adam's decay rate of the second moment", value="{beta}"),
        ),
        values=values,
        parts=(
            whole(
                id="size",
                prompt="How many samples does an optimizer step take after the change?",
                key=new,
                unit="samples",
                wrong=[
                    (after[0] * after[2], "micro-batches-uncounted"),
                    (
                        after[0] * after[1],
                        "axis-forgotten",
                        "That is one rank's share. All ranks add theirs.",
                    ),
                    (old, "other-term", "That is the batch before the change."),
                ],
                solution=("{new_b} · {new_G} · {new_N} = {new}; before it was {b} · {G} · {N} = {old}.",),
            ),
            figure(
                id="linear",
                prompt="Which learning rate does the linear rule give for SGD (after a warm-up)?",
                key=linear,
                unit="learning rate",
                wrong=[
                    (sgd, "rate-kept"),
                    (sgd * ranks, "ranks-for-batch"),
                    (scaled_learning_rate(sgd, old, new, "sqrt"), "other-rule"),
                    (
                        sgd / k,
                        "inverted",
                        "A larger batch takes fewer steps for the same samples: each is longer.",
                    ),
                ],
                solution=(
                    "The batch grows {k} times: {k} · {sgd} = {linear}. It is a starting point, to be tested.",
                ),
            ),
            figure(
                id="root",
                prompt="Which learning rate does the square-root rule give for Adam?",
                key=scaled.lr,
                unit="learning rate",
                wrong=[
                    (adam, "rate-kept"),
                    (adam * k, "other-rule", "That is the linear rule, for SGD."),
                    (adam * scaled_learning_rate(1.0, 1.0, ranks, "sqrt"), "ranks-for-batch"),
                ],
                solution=("√{k} · {adam} = {root}.",),
            ),
            figure(
                id="beta",
                prompt="The same rule also moves Adam's decay rates: 1 − β grows with the batch, *k* times. What does β~2~ become?",
                key=scaled.beta2,
                unit="decay rate",
                relative=0.0,
                absolute=0.001,
                wrong=[
                    (beta, "decay-kept"),
                    (1 - (1 - beta) / k, "inverted", "1 − β is multiplied by *k*, not divided."),
                    (
                        1 - scaled_learning_rate(1 - beta, old, new, "sqrt"),
                        "other-rule",
                        "The learning rate takes the root of *k*, 1 − β takes *k* itself.",
                    ),
                ],
                solution=(
                    "1 − {k} · (1 − {beta}) = {moved}: the moments look back over as many samples as before, in fewer steps.",
                ),
            ),
        ),
    )


def _waiting(seed: int) -> Variant:
    draw = Draw(seed, "c09/waiting")
    ranks = draw.pick((4, 5, 6))
    base, transfer = draw.pick((80, 120, 160, 200)), draw.pick((10, 15, 25, 40))

    def propose() -> list[int]:
        each = [base + draw.below(13) for _ in range(ranks)]
        each[draw.below(ranks)] = base + base // 4 + draw.below(base // 4)
        return each

    compute = draw.until(propose, lambda each: sorted(each)[-2] > min(each) + 3)
    step = max(compute) + transfer
    inside = [step - each for each in compute]
    report = straggler_report([each / 1e3 for each in compute])
    slow, fast, ratios = (
        straggler_from_collectives([float(each) for each in inside]),
        min(compute),
        report.ratios,
    )
    second = sorted(compute)[-2]
    mean = sum(compute) / ranks
    values = {
        "step": str(step),
        "transfer": str(transfer),
        "slow": str(slow),
        "longest": str(report.fastest_rank),
        "compute": str(max(compute)),
        "mean": f"{mean:.1f}",
        "lost": percent(ratios.lost_fraction),
        "second": str(second),
        "healed": str(second + transfer),
    }
    return variant(
        id="waiting",
        title="Long all-reduces, short all-reduces",
        scenario="Every step of a data-parallel job takes {step} ms on every rank: compute, then one all-reduce, nothing overlaps. "
        "Once all ranks have arrived, the all-reduce takes {transfer} ms. A profiler shows how long each rank is inside it.",
        table=Table(
            caption="Time inside the all-reduce",
            columns=("rank", "ms"),
            rows=tuple([(str(rank), str(each)) for rank, each in enumerate(inside)]),
        ),
        values=values,
        parts=(
            whole(
                id="who",
                prompt="Which rank do the others wait for?",
                key=slow,
                unit="rank number",
                wrong=[
                    (
                        report.fastest_rank,
                        "longest-all-reduce",
                        "Rank {longest} is inside for the longest time because it arrived first.",
                    )
                ],
                solution=(
                    "The one with the shortest all-reduce, rank {slow}: it arrives last and does not wait.",
                ),
            ),
            figure(
                id="compute",
                prompt="How long does that rank compute in a step?",
                key=max(compute),
                unit="ms",
                wrong=[
                    (step, "whole-step", "The all-reduce itself takes {transfer} ms."),
                    (fast, "longest-all-reduce", "That is the compute time of rank {longest}."),
                    (mean, "mean-for-slowest", "That is the mean over the ranks."),
                ],
                solution=("It does not wait: {step} − {transfer} = {compute} ms.",),
            ),
            share(
                id="lost",
                prompt="Leave out the {transfer} ms that the all-reduce itself takes. For what share of the remaining time do the ranks wait, on average?",
                key=ratios.lost_fraction,
                wrong=[
                    (1 - fast / max(compute), "longest-all-reduce", "That is rank {longest} alone."),
                    (
                        ratios.max_over_min - 1,
                        "fastest-for-mean",
                    ),
                    (
                        ratios.max_over_mean - 1,
                        "wrong-whole",
                        "That is the wait in units of the mean compute time, not of the remaining time.",
                    ),
                    (
                        (max(compute) - mean) / step,
                        "wrong-whole",
                        "That is a share of the whole step, the all-reduce included.",
                    ),
                ],
                solution=(
                    "They compute for {mean} ms on average, of {compute} ms until the last one arrives: 1 − {mean} / {compute} = {lost}.",
                ),
            ),
            figure(
                id="healed",
                prompt="The slow card is replaced, and its rank then computes as fast as the fastest. How long is a step?",
                key=second + transfer,
                unit="ms",
                wrong=[
                    (fast + transfer, "mean-for-slowest", "The others are not all that fast."),
                    (
                        (sum(compute) - max(compute) + fast) / ranks + transfer,
                        "mean-for-slowest",
                        "Now the next slowest sets the pace, not the mean.",
                    ),
                    (step, "loss-stays"),
                ],
                solution=(
                    "The slowest of the others computes for {second} ms: {second} + {transfer} = {healed} ms. Evening out what is left would take more than a new card.",
                ),
            ),
        ),
    )


def _deal(seed: int) -> Variant:
    draw = Draw(seed, "c09/deal")
    n, w = draw.until(
        lambda: (50 * draw.pick((20, 31, 44, 67, 90)) + draw.below(50), draw.pick((3, 6, 7, 8, 12, 16))),
        lambda drawn: drawn[0] % drawn[1] > 1 and drawn[1] - drawn[0] % drawn[1] > 1,
    )
    padded, cut = shard_plan(n, w), shard_plan(n, w, drop_last=True)
    # A rank reads 1/w of an order of its own; a sample is missed by all with this chance.
    missed = (1 - 1 / w) ** w
    values = {
        "n": str(n),
        "w": str(w),
        "each": str(padded.per_rank),
        "used": str(padded.used),
        "twice": str(padded.duplicates),
        "dropped": str(cut.dropped),
        "cut": str(cut.per_rank),
        "rest": str(cut.used),
        "missed": percent(missed),
    }
    return variant(
        id="deal",
        title="Who reads what?",
        scenario="PyTorch's `DistributedSampler` shuffles {n} samples and deals them to {w} ranks, one by one, so that all get equally many.",
        given=(
            Given(symbol="n", meaning="samples", value="{n}"),
            Given(symbol="W", meaning="ranks", value="{w}"),
        ),
        values=values,
        parts=(
            whole(
                id="twice",
                prompt="How many samples are read twice in an epoch, as the sampler stands (`drop_last=False`)?",
                key=padded.duplicates,
                unit="samples",
                wrong=[
                    (cut.dropped, "padding-for-dropping"),
                    (0, "rest-forgotten"),
                    (w - 1, "worst-for-mean", "That many at the most. Here the last round lacks fewer."),
                ],
                solution=("{each} on each of {w} ranks are {used}, {twice} more than {n}.",),
            ),
            whole(
                id="dropped",
                prompt="And how many are not read with `drop_last=True`?",
                key=cut.dropped,
                unit="samples",
                wrong=[
                    (
                        padded.duplicates,
                        "padding-for-dropping",
                        "That many would be read twice without `drop_last`.",
                    ),
                    (0, "rest-forgotten", "Ranks then get only what goes round evenly."),
                ],
                solution=("{cut} on each of {w} ranks are {rest}, {dropped} fewer than {n}.",),
            ),
            share(
                id="missed",
                prompt="By mistake each rank shuffles with a seed of its own. What share of the samples is expected to be read by no rank in an epoch?",
                key=missed,
                points=1.0,
                wrong=[
                    (0.0, "orders-agree"),
                    (1 / w, "orders-agree", "That is the share that one rank reads."),
                    (1 - 1 / w, "one-rank-only", "That is what one rank misses. The others may read it."),
                    (1 - missed, "other-term", "That is the share that is read."),
                ],
                solution=(
                    "A rank misses a sample with a chance of 1 − 1/*W*, and all {w} of them with (1 − 1/*W*)^*W*^ = {missed}.",
                ),
            ),
            choice(
                id="epoch",
                prompt="All ranks share the seed, but nobody calls `set_epoch`. What happens?",
                options=(
                    right(
                        "repeat",
                        "Every epoch repeats the order of the first; nothing is lost.",
                        "The order is drawn from seed plus epoch, and the epoch stays 0.",
                    ),
                    wrong(
                        "lost",
                        "Samples are read twice or not at all.",
                        "orders-agree",
                        "All ranks still deal from one and the same order.",
                    ),
                    wrong(
                        "error",
                        "The second epoch raises an error.",
                        "framework-checks",
                        "No error is raised.",
                    ),
                ),
            ),
            choice(
                id="evaluate",
                prompt="You want the exact accuracy over the {n} samples, on all ranks. What do you do?",
                options=(
                    right(
                        "sums",
                        "Deal without repeating any sample; every rank counts hits and samples, and both sums are all-reduced at the end.",
                        "No collective runs per batch, so ranks may have different numbers of batches.",
                    ),
                    wrong("mean", "Take the mean of the ranks' accuracies.", "mean-of-means"),
                    wrong(
                        "padded",
                        "Keep the sampler, and all-reduce hits and samples.",
                        "repeats-counted",
                        "{twice} samples would be counted twice.",
                    ),
                    wrong(
                        "drop",
                        "Set `drop_last=True`, so that nothing is read twice.",
                        "repeats-counted",
                        "Then {dropped} samples are not counted at all.",
                    ),
                ),
            ),
        ),
    )


def _tokens(seed: int) -> Variant:
    draw = Draw(seed, "c09/tokens")

    def weights_of(sizes: list[list[int]]) -> Any:
        return token_weighting(sizes, "mean_of_means")

    def fits(sizes: list[list[int]]) -> bool:
        flat = sizes[0] + sizes[1]
        return weights_of(sizes).most > 1.5 and len([size for size in flat if size == min(flat)]) == 1

    sizes = draw.until(
        lambda: [[draw.pick((100, 200, 300, 500, 800, 1200, 1500)) for _ in range(2)] for _ in range(2)], fits
    )
    losses = [[draw.pick((1.4, 1.8, 2.2, 2.6, 3.0)) for _ in range(2)] for _ in range(2)]
    all_tokens = sum(sizes[0]) + sum(sizes[1])
    shortest = min(sizes[0] + sizes[1])
    scale = token_loss_scale(all_tokens, 2)
    # Tenths times whole numbers: no last bit decides anything here.
    total = sizes[0][0] * losses[0][0] + sizes[0][1] * losses[0][1]
    fed = total * scale
    most, least = weights_of(sizes).most, weights_of(sizes).least
    values = {
        "all": str(all_tokens),
        "mine": str(sum(sizes[0])),
        "shortest": str(shortest),
        "sum": decimal(total, 5),
        "fed": decimal(fed, 4),
        "most": times(most),
        "even": f"{all_tokens / 4:.4g}",
    }
    return variant(
        id="tokens",
        title="What does a token count?",
        scenario="Two DDP ranks take two micro-batches each for an optimizer step, and every token of the step should count the same. The table has the numbers of tokens with a loss, and their mean loss.",
        table=Table(
            caption="Four micro-batches",
            columns=("rank", "micro-batch", "tokens", "mean loss"),
            rows=tuple(
                [
                    (str(rank), str(each + 1), str(sizes[rank][each]), f"{losses[rank][each]:.1f}")
                    for rank in range(2)
                    for each in range(2)
                ]
            ),
        ),
        values=values,
        parts=(
            figure(
                id="weight",
                prompt="The program takes the mean loss of each micro-batch, divides it by 2 (its micro-batches), and DDP averages over the ranks. How many times its right weight does a token of the shortest micro-batch get?",
                key=most,
                unit="×",
                wrong=[
                    (1, "mean-of-means"),
                    (1 / most, "inverted", "Turn it over: tokens of short micro-batches count too much."),
                    (least, "other-term", "That is a token of the longest micro-batch."),
                    (
                        all_tokens / shortest,
                        "micro-batches-uncounted",
                        "There are four micro-batches: each gets a quarter of the weight.",
                    ),
                ],
                solution=(
                    "A micro-batch gets a quarter of all weight, as if it had {all} / 4 = {even} tokens. It has {shortest}: {even} / {shortest} = {most}.",
                ),
            ),
            figure(
                id="fed",
                prompt="Now the program is mended: each rank adds up the losses of its tokens, over both micro-batches, and multiplies by one number, so that after DDP's average every token counts the same. What is rank 0's loss then?",
                key=fed,
                unit="loss",
                digits=4,
                wrong=[
                    (fed / 2, "ranks-divide"),
                    (total / sum(sizes[0]), "rank-for-all", "That divides by rank 0's own {mine} tokens."),
                    (
                        (losses[0][0] + losses[0][1]) / 2,
                        "mean-of-means",
                        "That is the mean of its two means.",
                    ),
                    (total, "sum-for-mean", "That is the sum, without the number."),
                ],
                solution=(
                    "Sum of tokens times mean loss on rank 0: {sum}. Times 2 ranks over {all} tokens: {fed}.",
                    "DDP divides by the 2 ranks, so the sum over both ranks ends up divided by {all}.",
                ),
            ),
            choice(
                id="adam",
                prompt="Somebody leaves out the factor 2, and every gradient is half as long. The optimizer is Adam, without gradient clipping. What does the loss curve show?",
                options=(
                    right(
                        "little",
                        "Next to nothing: Adam divides by the gradient's own size.",
                        "With clipping, or with SGD, it would show. So compare gradients with one process, not curves.",
                    ),
                    wrong("half", "Training at half the speed.", "scale-under-adam"),
                    wrong(
                        "diverges",
                        "The ranks drift apart.",
                        "scale-under-adam",
                        "All ranks have the same gradient, only a shorter one.",
                    ),
                ),
            ),
        ),
    )
