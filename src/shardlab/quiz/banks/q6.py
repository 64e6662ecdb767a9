"""Q6: how large is a pipeline's bubble, and what makes it smaller?

The source gives (p-1)/(m+p-1), idle over total time; the Megatron papers quote (p-1)/m, idle over ideal time. It
counts 1F1B among the remedies. 1F1B idles exactly as long as GPipe: what it lowers is the number of micro-batches
whose activations a stage holds. Interleaving and the zero-bubble schedules do idle less.
"""

from __future__ import annotations

import math
from typing import Any

from shardlab.models.pipeline import simulate
from shardlab.models.pipeline_formulas import (
    bubble_of_ideal,
    bubble_of_total,
    micro_batches_for_bubble,
    p2p_sent_bytes,
    published_bubble_s,
    published_in_flight_peak,
)
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
from shardlab.quiz.parts import figure, gigabytes, ms, percent, ranking, share, times, whole
from shardlab.units import format_time

SEED = 6


def build(seed: int = SEED) -> Quiz:
    """The source's eight stages and eight micro-batches first, then five fresh variants drawn from ``seed``."""
    return quiz_of(
        id="q6",
        title="How large is a pipeline's bubble, and what makes it smaller?",
        question="Which of the two ratios is meant, and which remedies really lower the idle time?",
        variants=(
            _chapter(),
            _ratios(seed),
            _needed(seed),
            _schedules(seed),
            _unequal(seed),
            _zero_bubble(seed),
        ),
        values={},
        seed=seed,
    )


def _idle(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle over total time, equal stages: the schedule is run. A backward pass takes twice a forward pass."""
    return simulate(schedule, stages, micro_batches, 1, 1, 1, chunks=chunks).bubble_of_total


def _total_slips(stages: int, micro_batches: int) -> list[tuple[Any, ...]]:
    """What typical slips give for idle over total time."""
    p, m = stages, micro_batches
    return [
        ((p - 1) / m, "ideal-for-total"),
        (p / (m + p), "stages-for-gaps"),
        (m / (m + p - 1), "hidden-exposed", "That is the share in which a rank works."),
        (1 / p, "turns-for-bubble"),
        ((p - 1) / p, "turns-for-bubble", "That is the idle share with one micro-batch in flight."),
        ((p - 1) / (m + p), "stages-for-gaps"),
    ]


def _ideal_slips(stages: int, micro_batches: int) -> list[tuple[Any, ...]]:
    """What typical slips give for idle over ideal time."""
    p, m = stages, micro_batches
    return [
        ((p - 1) / (m + p - 1), "total-for-ideal"),
        (p / m, "stages-for-gaps"),
        (m / (p - 1), "inverted", "Turn it over: idle over working time."),
    ]


def _chapter() -> Variant:
    p, m, many, target, chunks = 8, 8, 32, 0.1, 2
    base = _idle("1f1b", p, m)
    idle = {
        "gpipe": _idle("gpipe", p, m),
        "interleaved": _idle("interleaved-1f1b", p, m, chunks),
        "zero": _idle("zb-h1", p, m),
        "many": _idle("1f1b", p, many),
        "fewer": _idle("1f1b", p // 2, m),
    }
    needed = micro_batches_for_bubble(p, target)
    held = published_in_flight_peak("1f1b", p, many)[0]
    values = {
        "p": str(p),
        "m": str(m),
        "many": str(many),
        "slots": str(m + p - 1),
        "empty": str(p - 1),
        "total": percent(base),
        "ideal": percent(bubble_of_ideal(p, m)),
        "target": percent(target),
        "needed": str(needed),
        "held": f"{held:.0f}",
        "half": str(p // 2),
        "gpipe_idle": percent(idle["gpipe"]),
        "interleaved_idle": percent(idle["interleaved"]),
        "zero_idle": percent(idle["zero"]),
        "many_idle": percent(idle["many"]),
        "fewer_idle": percent(idle["fewer"]),
    }

    def helps(name: str) -> bool:
        return idle[name] < 0.95 * base

    return variant(
        id="chapter",
        title="Eight stages, eight micro-batches",
        scenario="A model is cut into {p} equal stages. A step has {m} micro-batches, and transfers between stages take no time.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
        ),
        values=values,
        parts=(
            share(
                id="total",
                prompt="For what share of the total time is each stage idle, under GPipe?",
                key=bubble_of_total(p, m),
                wrong=_total_slips(p, m),
                solution=(
                    "From first to last a step has *m* + *p* − 1 = {slots} slots; each stage works in {m} of them.",
                    "(*p*−1)/(*m*+*p*−1) = {empty}/{slots} = {total}. Every stage idles that long, only at other moments.",
                ),
            ),
            share(
                id="ideal",
                prompt="The Megatron papers give idle over ideal time: idle time in units of the working time. What is it here?",
                key=bubble_of_ideal(p, m),
                wrong=_ideal_slips(p, m),
                solution=(
                    "(*p*−1)/*m* = {empty}/{m} = {ideal}. It is the same idle time, over a smaller whole.",
                ),
            ),
            whole(
                id="needed",
                prompt="How many micro-batches bring the idle share of the total time down to {target}?",
                key=needed,
                unit="micro-batches",
                wrong=[
                    (needed + 1, "tie-is-too-much"),
                    (needed - 1, "off-by-one", "{needed} reach {target} exactly; one fewer stays above it."),
                    (micro_batches_for_bubble(p, target, ratio="ideal"), "ideal-for-total"),
                    (10 * p, "stages-for-gaps"),
                    (4 * p, "rule-of-four"),
                ],
                solution=(
                    "(*p*−1)/(*m*+*p*−1) ≤ {target} means *m* ≥ 9(*p*−1) = {needed}: many more than there are stages.",
                ),
            ),
            several(
                id="remedies",
                prompt="Which changes, each on its own, lower the idle share of {total}?",
                options=(
                    judged(
                        "many",
                        "{many} micro-batches in place of {m}",
                        helps("many"),
                        "It falls to {many_idle}.",
                    ),
                    judged(
                        "1f1b",
                        "1F1B in place of GPipe",
                        base < 0.95 * idle["gpipe"],
                        "Both idle for {gpipe_idle}. 1F1B holds fewer micro-batches in memory, which may allow more of them.",
                        "1f1b-for-bubble",
                    ),
                    judged(
                        "interleaved",
                        "interleaving, with two model chunks on every rank",
                        helps("interleaved"),
                        "It falls to {interleaved_idle}, for twice the messages.",
                    ),
                    judged(
                        "zero",
                        "a zero-bubble schedule (ZB-H1), which fills gaps with weight gradients",
                        helps("zero"),
                        "It falls to {zero_idle}.",
                    ),
                    judged(
                        "fewer",
                        "{half} stages in place of {p}, with as many micro-batches",
                        helps("fewer"),
                        "It falls to {fewer_idle}.",
                    ),
                    wrong("links", "faster links between the stages", "idle-for-transfer"),
                    wrong(
                        "recompute", "recomputing the activations in the backward pass", "memory-for-bubble"
                    ),
                ),
            ),
            ranking(
                id="schedules",
                prompt="Put these in order of the idle share of the total time. A backward pass takes twice as long as a forward pass.",
                first="least idle time",
                last="most idle time",
                rows=[
                    (idle["many"], "many", "1F1B, {many} micro-batches", "{many_idle}"),
                    (idle["zero"], "zero", "ZB-H1, {m} micro-batches", "{zero_idle}"),
                    (
                        idle["interleaved"],
                        "interleaved",
                        "interleaved 1F1B with two chunks per rank, {m} micro-batches",
                        "{interleaved_idle}",
                    ),
                    (base, "base", "1F1B, {m} micro-batches", "{total}"),
                ],
                start=("interleaved", "base", "many", "zero"),
                traps=(Trap(above="base", below="many", misconception="fewer-micro-batches", why=""),),
            ),
            whole(
                id="held",
                prompt="With {many} micro-batches: of how many does the first stage hold activations at once under 1F1B, at most?",
                key=int(held),
                unit="micro-batches",
                wrong=[
                    (many, "all-in-flight"),
                    (1, "one-in-flight"),
                    (
                        p - 1,
                        "stages-for-gaps",
                        "The first stage starts one more before the first gradient comes back.",
                    ),
                ],
                solution=(
                    "1F1B starts a backward pass as soon as it can: stage *r* holds *p* − *r* micro-batches, the first {held}. GPipe holds all {many}.",
                ),
            ),
            open_question(
                id="explain",
                prompt="“Against the bubble, take more micro-batches, 1F1B or interleaving, fewer stages, and balance the stages.” What is right in this list, what is not, and what does each cost?",
                answer="More micro-batches help: {many} in place of {m} bring {total} of the total time down to {many_idle}, at the price of a larger batch or smaller micro-batches. "
                "Interleaving helps ({interleaved_idle} with two chunks), for twice the messages between stages. Fewer stages help, if the model still fits. Equal stages help, because every stage "
                "waits for the slowest. 1F1B does not: it idles exactly as long as GPipe. It holds at most *p* micro-batches in place of *m*, so it makes many micro-batches affordable. "
                "Zero-bubble schedules do fill the gaps, with weight gradients.",
                points=(
                    "1F1B has the same bubble as GPipe; it saves memory.",
                    "More micro-batches help, and make the batch larger or the micro-batches smaller.",
                    "Interleaving with *v* chunks divides the idle time by *v* and multiplies the messages by *v*.",
                    "Which ratio is meant: idle over total, or idle over ideal.",
                ),
            ),
        ),
    )


def _ratios(seed: int) -> Variant:
    draw = Draw(seed, "q6/ratios")
    p, m = draw.until(
        lambda: (draw.pick((3, 4, 5, 6, 10, 12, 16)), draw.pick((6, 8, 12, 16, 20, 24, 32, 48))),
        lambda drawn: 0.5 * drawn[0] < drawn[1] < 8 * drawn[0],
    )
    forward = draw.pick((10e-3, 15e-3, 20e-3, 25e-3, 40e-3))
    run = simulate("1f1b", p, m, forward, forward, forward)
    idle = published_bubble_s("1f1b", p, forward, forward, forward)
    values = {
        "p": str(p),
        "m": str(m),
        "F": format_time(forward),
        "B": format_time(2 * forward),
        "slot": ms(3 * forward),
        "slots": str(m + p - 1),
        "empty": str(p - 1),
        "step": ms(run.makespan_s),
        "work": ms(3 * forward * m),
        "idle": ms(idle),
        "total": percent(run.bubble_of_total),
        "ideal": percent(run.bubble_of_ideal),
    }
    return variant(
        id="ratios",
        title="One idle time, two ratios",
        scenario="{p} equal stages work on {m} micro-batches under 1F1B. On each stage a micro-batch takes {F} forward and {B} backward; transfers take no time.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
            Given(symbol="F", meaning="forward pass of a micro-batch on a stage", value="{F}"),
            Given(symbol="B", meaning="backward pass of a micro-batch on a stage", value="{B}"),
        ),
        values=values,
        parts=(
            figure(
                id="step",
                prompt="How long does the step take?",
                key=1e3 * run.makespan_s,
                unit="ms",
                wrong=[
                    (1e3 * (run.makespan_s - idle), "no-bubble"),
                    (1e3 * 3 * forward * (m + p), "stages-for-gaps"),
                    (1e3 * 3 * forward * m * p, "turns-for-bubble", "That lets one stage work at a time."),
                    (1e3 * idle, "other-term", "That is the idle time alone."),
                    (1e3 * forward * (m + p - 1), "forward-only"),
                ],
                solution=("*m* + *p* − 1 = {slots} slots of {F} + {B} = {slot}: {step}.",),
            ),
            share(
                id="total",
                prompt="What is the idle time over the total time?",
                key=run.bubble_of_total,
                wrong=_total_slips(p, m),
                solution=("A stage works for {m} slots and idles for {empty}: {idle} of {step}, {total}.",),
            ),
            share(
                id="ideal",
                prompt="What is it over the ideal time, in which no stage waits?",
                key=run.bubble_of_ideal,
                wrong=_ideal_slips(p, m),
                solution=("{idle} over {work} of work: {ideal}.",),
            ),
            choice(
                id="compare",
                prompt="One report says “bubble {total}”, another “bubble {ideal}”. Whose pipeline is better?",
                options=(
                    wrong("first", "The first report's: its bubble is smaller.", "ratio-unnamed"),
                    wrong(
                        "second",
                        "The second report's: more of its time is ideal.",
                        "ratio-unnamed",
                        "Both describe {idle} of idle time in a step of {step}.",
                    ),
                    right(
                        "same",
                        "It may be the same pipeline: the one gives idle over total time, the other idle over ideal time.",
                        "{idle} over {step}, and {idle} over {work}.",
                    ),
                    wrong(
                        "neither",
                        "Both are wrong: the two should add up to 100 %.",
                        "ratio-unnamed",
                        "Idle and working share of the total add up to 100 %. These are two ratios with the same numerator.",
                    ),
                ),
            ),
        ),
    )


def _needed(seed: int) -> Variant:
    draw = Draw(seed, "q6/needed")
    p = draw.pick((4, 6, 8, 12, 16))
    target = draw.pick((0.05, 0.08, 0.15, 0.2))
    chunks = draw.pick((2, 4))
    data = draw.pick((4, 8, 16, 32))
    total, ideal = [micro_batches_for_bubble(p, target, ratio=ratio) for ratio in ("total", "ideal")]
    woven = micro_batches_for_bubble(p, target, chunks)
    values = {
        "p": str(p),
        "v": str(chunks),
        "d": str(data),
        "target": f"{100 * target:.0f} %",
        "total": str(total),
        "total_idle": percent(bubble_of_total(p, total)),
        "ideal": str(ideal),
        "woven": str(woven),
        "woven_idle": percent(bubble_of_total(p, woven, chunks)),
        "batch": str(data * total),
    }
    return variant(
        id="needed",
        title="How many micro-batches?",
        scenario="A pipeline of {p} equal stages should idle for at most {target}. Transfers take no time.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="x", meaning="idle share allowed", value="{target}"),
        ),
        values=values,
        parts=(
            whole(
                id="total",
                prompt="If {target} of the total time is meant: what is the smallest number of micro-batches, under 1F1B?",
                key=total,
                unit="micro-batches",
                wrong=[
                    (ideal, "ideal-for-total"),
                    (4 * p, "rule-of-four"),
                    (micro_batches_for_bubble(p + 1, target), "stages-for-gaps"),
                    (total - 1, "off-by-one", "That stays just above {target}."),
                    (total + 1, "tie-is-too-much", "One fewer is enough: {total_idle}."),
                ],
                solution=(
                    "(*p*−1)/(*m*+*p*−1) ≤ *x* means *m* ≥ (*p*−1)(1−*x*)/*x*: {total}, which idle for {total_idle}.",
                ),
            ),
            whole(
                id="ideal",
                prompt="And if {target} of the ideal time is meant?",
                key=ideal,
                unit="micro-batches",
                wrong=[
                    (total, "total-for-ideal"),
                    (micro_batches_for_bubble(p + 1, target, ratio="ideal"), "stages-for-gaps"),
                    (ideal - 1, "off-by-one", "That stays just above {target}."),
                ],
                solution=("(*p*−1)/*m* ≤ *x* means *m* ≥ (*p*−1)/*x*: {ideal}.",),
            ),
            whole(
                id="woven",
                prompt="With {v} chunks per rank, interleaved: how many micro-batches for {target} of the total time? They have to be a multiple of {p}.",
                key=woven,
                unit="micro-batches",
                wrong=[
                    (total, "interleaving-ignored"),
                    (chunks * total, "inverted", "Interleaving divides the idle time, so fewer are enough."),
                    (micro_batches_for_bubble(p, target, chunks, "ideal"), "ideal-for-total"),
                    (woven - p if woven > p else math.inf, "off-by-one", "That many still idle for longer."),
                ],
                solution=(
                    "(*p*−1)/(*v*·*m*+*p*−1) ≤ *x*, rounded up to a multiple of {p}: {woven}, which idle for {woven_idle}.",
                ),
            ),
            choice(
                id="price",
                prompt="The {total} micro-batches of one sequence run on {d} data-parallel copies of the pipeline. What follows for training?",
                options=(
                    right(
                        "batch",
                        "A step has {batch} sequences: learning rate and number of steps have to suit that batch.",
                        "Micro-batches, micro-batch size and data-parallel ranks multiply.",
                    ),
                    wrong("none", "Nothing: micro-batches change only the schedule.", "accumulation-is-free"),
                    wrong(
                        "memory",
                        "Under 1F1B every stage holds {total} micro-batches of activations.",
                        "all-in-flight",
                    ),
                    wrong(
                        "less",
                        "The copies share the micro-batches, so a step still has {total} sequences.",
                        "copies-share-batch",
                    ),
                ),
            ),
        ),
    )


def _schedules(seed: int) -> Variant:
    draw = Draw(seed, "q6/schedules")
    p = draw.pick((4, 6, 8))
    m = p * draw.pick((2, 3, 4))
    chunks = draw.pick((2, 3, 4))
    each = 1e9 * draw.pick((0.5, 0.8, 1, 1.5, 2))
    gpipe, one = [published_in_flight_peak(name, p, m)[0] * each for name in ("gpipe", "1f1b")]
    woven = published_in_flight_peak("interleaved-1f1b", p, m, chunks)[0] * each
    idle, less = bubble_of_total(p, m), bubble_of_total(p, m, chunks)
    plain, many = [
        max(p2p_sent_bytes(name, p, m, 1.0, per_rank))
        for name, per_rank in (("1f1b", 1), ("interleaved-1f1b", chunks))
    ]
    values = {
        "p": str(p),
        "m": str(m),
        "v": str(chunks),
        "each": gigabytes(each),
        "gpipe": gigabytes(gpipe),
        "one": gigabytes(one),
        "woven": gigabytes(woven),
        "idle": percent(idle),
        "less": percent(less),
        "messages": times(many / plain),
    }
    return variant(
        id="schedules",
        title="What a schedule changes",
        scenario="{p} equal stages, {m} micro-batches. The activations of one micro-batch take {each} on a stage; transfers take no time. "
        "Three schedules are at hand: GPipe (all forward passes, then all backward passes), 1F1B, and interleaved 1F1B with {v} chunks per rank.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
            Given(symbol="v", meaning="chunks per rank, interleaved", value="{v}"),
            Given(symbol="A", meaning="activations of one micro-batch on a stage", value="{each}"),
        ),
        values=values,
        parts=(
            figure(
                id="gpipe",
                prompt="How much do activations take on the first stage under GPipe, at the peak?",
                key=gpipe / 1e9,
                unit="GB",
                wrong=[
                    (one / 1e9, "1f1b-memory-for-gpipe"),
                    (each / 1e9, "one-in-flight"),
                    (gpipe * p / 1e9, "whole-cluster", "That is all stages together."),
                ],
                solution=("No backward pass starts before the last forward pass: {m} · {each} = {gpipe}.",),
            ),
            figure(
                id="one",
                prompt="And under 1F1B?",
                key=one / 1e9,
                unit="GB",
                wrong=[
                    (gpipe / 1e9, "all-in-flight"),
                    (each / 1e9, "one-in-flight"),
                    (
                        (p - 1) * each / 1e9,
                        "stages-for-gaps",
                        "The first stage starts *p* of them before the first gradient comes back.",
                    ),
                ],
                solution=("The first stage has *p* = {p} micro-batches in flight: {p} · {each} = {one}.",),
            ),
            share(
                id="less",
                prompt="1F1B idles for {idle} of the total time. For what share does interleaved 1F1B idle?",
                key=less,
                wrong=[
                    (idle, "interleaving-ignored"),
                    (
                        idle / chunks,
                        "total-divided",
                        "The idle time is divided by *v*, and the total time shrinks with it.",
                    ),
                    (bubble_of_ideal(p, m, chunks), "ideal-for-total"),
                    (bubble_of_total(p * chunks, m), "chunks-as-stages"),
                ],
                solution=("(*p*−1)/(*v*·*m*+*p*−1) = {less}.",),
            ),
            choice(
                id="price",
                prompt="What does interleaving cost?",
                options=(
                    judged(
                        "messages",
                        "More messages, {messages} as many from an inner stage, and some more memory for activations.",
                        many > plain and woven > one,
                        "A micro-batch goes round the ranks {v} times. The first stage holds {woven} in place of {one}.",
                    ),
                    wrong("compute", "{v} times the compute.", "chunks-repeat-work"),
                    wrong("nothing", "Nothing: the idle time just falls.", "interleaving-is-free"),
                    wrong(
                        "weights",
                        "{v} times the memory for weights.",
                        "chunks-repeat-work",
                        "A rank holds as many layers as before, in {v} pieces from different places of the model.",
                    ),
                ),
            ),
            choice(
                id="1f1b",
                prompt="A colleague goes from GPipe to 1F1B to lower the idle share of {idle}. What happens?",
                options=(
                    wrong("falls", "It falls, because backward passes start sooner.", "1f1b-for-bubble"),
                    judged(
                        "same",
                        "It stays, and the first stage needs {one} for activations in place of {gpipe}.",
                        abs(_idle("gpipe", p, m) - _idle("1f1b", p, m)) < 1e-9,
                        "The freed memory may allow more micro-batches, and those do lower it.",
                    ),
                    wrong("rises", "It rises, because passes alternate.", "alternation-costs"),
                ),
            ),
        ),
    )


def _unequal(seed: int) -> Variant:
    draw = Draw(seed, "q6/unequal")
    p = draw.pick((4, 5, 6, 8))
    m = p * draw.pick((2, 3, 4, 5))
    normal = draw.pick((20e-3, 30e-3, 40e-3))
    slow = normal * draw.pick((1.25, 1.5, 1.75, 2))
    place = draw.below(p)
    # Forward and backward pass of one micro-batch, a third and two thirds; no zero-bubble split.
    seconds = [(slow if stage == place else normal) / 3 for stage in range(p)]
    run = simulate("gpipe", p, m, seconds, seconds, seconds)
    mean = (slow + (p - 1) * normal) / p
    even = simulate("gpipe", p, m, mean / 3, mean / 3, mean / 3)
    quick = simulate("gpipe", p, m, normal / 3, normal / 3, normal / 3)
    values = {
        "p": str(p),
        "m": str(m),
        "others": str(p - 1),
        "number": str(place + 1),
        "normal": format_time(normal),
        "slow": format_time(slow),
        "through": ms(slow + (p - 1) * normal),
        "later": str(m - 1),
        "step": ms(run.makespan_s),
        "idle": percent(run.bubble_of_total),
        "mean": ms(mean),
        "even_step": ms(even.makespan_s),
        "gain": times(run.makespan_s / even.makespan_s),
        "even_idle": percent(even.bubble_of_total),
    }
    return variant(
        id="unequal",
        title="One stage is slower",
        scenario="{p} stages, {m} micro-batches, GPipe; transfers take no time. A micro-batch takes {normal} (forward and backward together) on every stage but one: "
        "stage {number} takes {slow}, because it holds more layers. The backward pass takes twice as long as the forward pass everywhere.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
            Given(symbol="S", meaning="a micro-batch on {others} of the stages", value="{normal}"),
            Given(symbol="L", meaning="a micro-batch on the slow stage", value="{slow}"),
        ),
        values=values,
        parts=(
            figure(
                id="step",
                prompt="How long does the step take?",
                key=1e3 * run.makespan_s,
                unit="ms",
                wrong=[
                    (1e3 * quick.makespan_s, "slow-stage-ignored"),
                    (1e3 * even.makespan_s, "mean-for-slowest"),
                    (1e3 * (m + p - 1) * slow, "all-stages-slow"),
                    (1e3 * m * slow, "no-bubble"),
                    (1e3 * (quick.makespan_s + slow - normal), "slow-once"),
                ],
                solution=(
                    "The first micro-batch passes all stages: {through}.",
                    "After it the slow stage lets one out every {slow}, {later} more: {step} in all.",
                ),
            ),
            share(
                id="idle",
                prompt="For what share of the total time are the stages idle, on average?",
                key=run.bubble_of_total,
                points=1.0,
                wrong=[
                    (bubble_of_total(p, m), "slow-stage-ignored", "That is the formula for equal stages."),
                    (1 - run.bubble_of_total, "hidden-exposed", "That is the share in which they work."),
                    (
                        1 - m * slow / run.makespan_s,
                        "slowest-for-all",
                        "That is the idle share of the slow stage. The others idle for longer.",
                    ),
                    (
                        1 - m * normal / run.makespan_s,
                        "slowest-for-all",
                        "That is the idle share of the other stages.",
                    ),
                    (run.bubble_of_ideal, "ideal-for-total"),
                ],
                solution=(
                    "All stages together work for {m} · {through}, out of {p} · {step}: they idle for {idle}.",
                ),
            ),
            figure(
                id="even",
                prompt="The layers are cut anew, so that all stages take equally long with the same work in all. How many times as fast is the step?",
                key=run.makespan_s / even.makespan_s,
                unit="×",
                wrong=[
                    (run.makespan_s / quick.makespan_s, "work-vanishes"),
                    (
                        slow / normal,
                        "slow-once",
                        "That is how slow the stage was. The rest of the work moves to the others.",
                    ),
                    (even.makespan_s / run.makespan_s, "inverted", "Turn it over: old over new."),
                    (
                        slow / mean,
                        "all-stages-slow",
                        "That compares the slots. The first micro-batch's way through the stages stays as long.",
                    ),
                ],
                solution=(
                    "Each stage then takes {mean}, and the step {even_step}: {step} / {even_step} = {gain}. It idles for {even_idle}.",
                ),
            ),
            choice(
                id="more",
                prompt="Instead, you add many more micro-batches. What does the idle share tend to?",
                options=(
                    wrong(
                        "zero",
                        "To 0, as with equal stages.",
                        "slow-stage-ignored",
                        "In every slot the others wait for the slow stage, however many slots there are.",
                    ),
                    right(
                        "gap",
                        "To the share by which the mean stage is faster than the slowest.",
                        "With ever more micro-batches a slot lasts {slow}, and the stages work for {mean} of it on average.",
                    ),
                    wrong(
                        "same",
                        "It stays as it is.",
                        "fewer-micro-batches",
                        "Filling and emptying the pipeline weighs less and less. The waiting for the slow stage stays.",
                    ),
                    wrong(
                        "rises",
                        "To 100 %: every micro-batch waits for the slow stage.",
                        "slowest-for-all",
                        "The stages do work in every slot, for {mean} of {slow} on average.",
                    ),
                ),
            ),
        ),
    )


def _zero_bubble(seed: int) -> Variant:
    draw = Draw(seed, "q6/zero-bubble")
    p = draw.pick((4, 8))
    m = p * draw.pick((2, 3, 4))
    forward, back, weight = [
        1e-3 * each for each in draw.pick(((10, 10, 6), (12, 12, 8), (18, 18, 9), (20, 20, 15), (30, 29, 20)))
    ]
    times_of_one = (forward, back, weight)
    one, zero = [published_bubble_s(name, p, forward, back, weight) for name in ("1f1b", "zb-h1")]
    work = m * (forward + back + weight)
    run = simulate("zb-h1", p, m, *times_of_one)
    peak, held = [published_in_flight_peak(name, p, m)[0] for name in ("zb-h2", "1f1b")]
    values = {
        "p": str(p),
        "m": str(m),
        "empty": str(p - 1),
        "F": format_time(forward),
        "B": format_time(back),
        "W": format_time(weight),
        "one": ms(one),
        "zero": ms(zero),
        "slot": ms(forward + back + weight),
        "filled": ms(forward + back - weight),
        "step": ms(run.makespan_s),
        "work": ms(work),
        "idle": percent(run.bubble_of_total),
        "peak": f"{peak:.0f}",
        "held": f"{held:.0f}",
    }
    return variant(
        id="zero-bubble",
        title="Fill the gaps with weight gradients",
        scenario="A backward pass has two halves: the gradient of the input (B), which the stage before waits for, and the gradient of the weights (W), which nobody waits for. "
        "1F1B does them in one go. ZB-H1 puts W off and does it where a stage would idle. {p} equal stages, {m} micro-batches; transfers take no time.",
        given=(
            Given(symbol="p", meaning="stages", value="{p}"),
            Given(symbol="m", meaning="micro-batches", value="{m}"),
            Given(symbol="F", meaning="forward pass of a micro-batch on a stage", value="{F}"),
            Given(symbol="B", meaning="its input gradient", value="{B}"),
            Given(symbol="W", meaning="its weight gradient", value="{W}"),
        ),
        values=values,
        parts=(
            figure(
                id="one",
                prompt="How long does a stage idle in a step under 1F1B?",
                key=1e3 * one,
                unit="ms",
                wrong=[
                    (1e3 * zero, "other-schedule"),
                    (1e3 * p * (forward + back + weight), "stages-for-gaps"),
                    (1e3 * (p - 1) * (forward + back), "weights-forgotten"),
                    (1e3 * (p - 1) * forward, "forward-only"),
                ],
                solution=("(*p*−1)(F + B + W) = {empty} · {slot} = {one}.",),
            ),
            figure(
                id="zero",
                prompt="And under ZB-H1, whose idle time is (*p*−1)(F + B − W)?",
                key=1e3 * zero,
                unit="ms",
                wrong=[
                    (1e3 * one, "other-schedule", "That is 1F1B."),
                    (1e3 * (p - 1) * (forward + back), "weights-forgotten", "W is taken off, not left out."),
                    (1e3 * p * (forward + back - weight), "stages-for-gaps"),
                    (0.0, "zero-by-name"),
                ],
                solution=("{empty} · {filled} = {zero}.",),
            ),
            share(
                id="idle",
                prompt="What share of the total time is that?",
                key=run.bubble_of_total,
                wrong=[
                    (zero / work, "ideal-for-total"),
                    (bubble_of_total(p, m), "other-schedule", "That is 1F1B."),
                    (1 - run.bubble_of_total, "hidden-exposed", "That is the share in which a stage works."),
                    (one / (work + one), "other-schedule"),
                ],
                solution=("A stage works for {work} and idles for {zero}: {zero} of {step} are {idle}.",),
            ),
            choice(
                id="free",
                prompt="ZB-H2 idles even less. What does it need for that?",
                options=(
                    right(
                        "memory",
                        "Memory: up to {peak} micro-batches in flight on a stage, where 1F1B has at most {held}.",
                        "It starts more forward passes before the first backward pass.",
                    ),
                    wrong("compute", "More compute: weight gradients are computed twice.", "weights-twice"),
                    wrong(
                        "bytes",
                        "More bytes between the stages.",
                        "interleaving-is-free",
                        "It sends the same activations and gradients, in another order. Interleaving is what sends more.",
                    ),
                    wrong(
                        "nothing",
                        "Nothing: work is only put in another order.",
                        "zero-by-name",
                        "Work that is put off keeps its activations in memory.",
                    ),
                ),
            ),
        ),
    )
