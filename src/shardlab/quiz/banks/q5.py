"""Q5: what do the ZeRO stages shard, what do they cost, and when is stage 3 not the best?

The source says that sharding further always sends more. Without accumulation stages 1 and 2 send as much as plain
data parallelism, 2(N-1)/N Ψ elements; only stage 3 adds half of that. Its multiples of 4, 8 and N hold for model
states, and those of stages 1 and 2 are limits for ever more ranks.
"""

from __future__ import annotations

from typing import Any

from shardlab.models.communication import data_traffic
from shardlab.models.memory import recipe_named
from shardlab.quiz.cluster import gigabytes_per_s
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
from shardlab.quiz.parts import apart, billions, figure, gigabytes, ms, percent, ranking, share, times, whole
from shardlab.quiz.states import state_slips, states
from shardlab.units import format_bandwidth, format_time, significant

SEED = 5
# How much longer a step with ZeRO-3 may be.
MOST = 0.1


def build(seed: int = SEED) -> Quiz:
    """The source's question at the ZeRO paper's 7.5 billion parameters first, then five fresh variants."""
    return quiz_of(
        id="q5",
        title="What do ZeRO-1, 2 and 3 shard, and why is ZeRO-3 not always best?",
        question="What does each stage save at a finite number of ranks, and what does it send?",
        variants=(
            _chapter(),
            _multiples(seed),
            _stage(seed),
            _accumulation(seed),
            _time(seed),
            _recipe(seed),
        ),
        values={},
        seed=seed,
    )


def _saving(ranks: int, stage: int, recipe: str = "mixed-adam-16") -> float:
    """How many times less than plain data parallelism a stage keeps on one rank."""
    return states(1.0, 1, 0, recipe) / states(1.0, ranks, stage, recipe)


def _volume(params: float, ranks: int, stage: int, micro_batches: int = 1, kept: bool = False) -> float:
    """Bytes that one rank sends per optimizer step, 2 bytes per element."""
    return data_traffic(params, ranks, stage, micro_batches, reshard_after_forward=not kept).total_bytes


def _chapter() -> Variant:
    n, params, gathered = 64, 7.5e9, 4
    sizes = [states(params, n, stage) for stage in range(4)]
    volumes = [_volume(params, n, stage) for stage in range(4)]
    many = [_volume(params, n, stage, gathered) for stage in range(4)]
    kept = _volume(params, n, 3, gathered, kept=True)
    values = {
        "N": str(n),
        "params": billions(params),
        "G": str(gathered),
        "whole": gigabytes(sizes[0]),
        "size1": gigabytes(sizes[1]),
        "size2": gigabytes(sizes[2]),
        "size3": gigabytes(sizes[3]),
        "saving2": times(_saving(n, 2)),
        "saving2_at_8": times(_saving(8, 2)),
        "volume": gigabytes(volumes[0]),
        "volume3": gigabytes(volumes[3]),
        "many1": gigabytes(many[1]),
        "many2": gigabytes(many[2]),
        "many3": gigabytes(many[3]),
        "kept": gigabytes(kept),
    }
    more = [stage for stage in (1, 2, 3) if volumes[stage] > 1.001 * volumes[0]]
    return variant(
        id="chapter",
        title="Seven and a half billion parameters",
        scenario="{params} parameters train on {N} data-parallel ranks with mixed-precision Adam: 2 bytes of weights, 2 of gradients and 12 of optimizer state per parameter. "
        "The sizes are those of the ZeRO paper.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="data-parallel ranks", value="{N}"),
        ),
        values=values,
        parts=(
            several(
                id="sharded",
                prompt="What does ZeRO-2 shard?",
                options=(
                    right(
                        "optimizer",
                        "Adam's moments and the fp32 copy of the weights",
                        "That is what ZeRO-1 shards already.",
                    ),
                    right(
                        "gradients",
                        "gradients",
                        "Each rank keeps the gradients of the parameters that it updates.",
                    ),
                    wrong("weights", "16-bit weights", "stage2-shards-weights"),
                    wrong("activations", "activations", "activations-sharded"),
                    wrong("batch", "the batch, more finely than data parallelism does", "zero-splits-batch"),
                ),
            ),
            figure(
                id="stage1",
                prompt="How much do the model states take on one rank with ZeRO-1?",
                key=sizes[1] / 1e9,
                unit="GB",
                wrong=state_slips(params, n, 1),
                solution=(
                    "Weights and gradients stay whole, the optimizer state is shared out: 4Ψ + 12Ψ/*N* = {size1}.",
                    "ZeRO-2 keeps 2Ψ + 14Ψ/*N* = {size2}, ZeRO-3 16Ψ/*N* = {size3}.",
                ),
            ),
            figure(
                id="saving",
                prompt="How many times less memory for model states than plain data parallelism does ZeRO-2 need at {N} ranks?",
                key=_saving(n, 2),
                unit="×",
                wrong=[
                    (
                        8,
                        "limit-at-finite-n",
                        "8× is the limit for ever more ranks. At {N} it is {saving2}, and at 8 ranks {saving2_at_8}.",
                    ),
                    (_saving(n, 1), "other-stage"),
                    (n, "all-sharded"),
                    (1 / _saving(n, 2), "inverted", "Turn it over: without sharding over with sharding."),
                ],
                solution=(
                    "{whole} / {size2} = {saving2}. The limits are 4× for ZeRO-1 and 8× for ZeRO-2; ZeRO-3 saves *N* times.",
                ),
            ),
            choice(
                id="volume",
                prompt="With one micro-batch per step, which stages send more than plain data parallelism does?",
                options=(
                    wrong("all", "All, each more than the one before.", "sharding-costs-bytes"),
                    wrong(
                        "two",
                        "ZeRO-2 and ZeRO-3.",
                        "sharding-costs-bytes",
                        "ZeRO-2 reduce-scatters the gradients and all-gathers the weights: {volume}, like an all-reduce.",
                    ),
                    judged(
                        "three",
                        "ZeRO-3 only, half as much again.",
                        more == [3],
                        "It gathers the weights twice and reduce-scatters the gradients: {volume3} in place of {volume}.",
                    ),
                    wrong("none", "No stage does.", "stage3-is-free"),
                    wrong(
                        "fewer",
                        "No stage does: they all send less, because they send shards.",
                        "sharding-saves-bytes",
                    ),
                ),
            ),
            ranking(
                id="accumulated",
                prompt="Now {G} micro-batches make one step. Put these in order of the bytes that a rank sends per step.",
                first="fewest bytes",
                last="most bytes",
                rows=[
                    (many[1], "stage1", "ZeRO-1", "{many1}"),
                    (many[2], "stage2", "ZeRO-2", "{many2}"),
                    (kept, "kept", "ZeRO-3, weights kept between forward and backward", "{kept}"),
                    (many[3], "stage3", "ZeRO-3", "{many3}"),
                ],
                start=("stage2", "stage3", "stage1", "kept"),
                traps=(
                    Trap(above="stage2", below="stage1", misconception="accumulation-for-all-stages", why=""),
                ),
            ),
            choice(
                id="not-best",
                prompt="When is ZeRO-3 not the best choice?",
                options=(
                    right(
                        "fits",
                        "When the job fits with a lower stage: then it sends half as much again, and gathers weights in every micro-batch, for memory that nobody needs.",
                        "On slow links, or with little compute per rank, that time shows.",
                    ),
                    wrong(
                        "many",
                        "When there are many ranks, because each then sends more.",
                        "volume-grows",
                        "A rank sends 3(*N*−1)/*N*·Ψ elements: it levels off at 3Ψ.",
                    ),
                    wrong("large", "When the model is large.", "large-model-small-stage"),
                    wrong("never", "Never: it needs the least memory.", "memory-is-all"),
                ),
            ),
            open_question(
                id="explain",
                prompt="“The more ZeRO shards, the more it sends.” Correct this for a colleague, and say how you would choose a stage.",
                answer="With one micro-batch per step ZeRO-1 and ZeRO-2 send exactly what plain data parallelism sends: a reduce-scatter and an all-gather are an all-reduce. "
                "Only ZeRO-3 sends more, half as much again ({volume3} in place of {volume}), because it gathers the weights for both passes. With {G} micro-batches ZeRO-2 "
                "reduce-scatters {G} times and ZeRO-3 gathers every time, while ZeRO-1 can wait. So I would take the lowest stage that fits beside "
                "the activations, and look at bandwidth and micro-batches before I go on to stage 3.",
                points=(
                    "ZeRO-1 and ZeRO-2: the volume of plain data parallelism.",
                    "ZeRO-3: 3 in place of 2, that is half as much again.",
                    "Accumulation changes that: ZeRO-2 and ZeRO-3 pay per micro-batch.",
                    "The lowest stage that fits; 4× and 8× are limits, and for model states only.",
                ),
            ),
        ),
    )


def _multiples(seed: int) -> Variant:
    draw = Draw(seed, "q5/multiples")
    n = draw.pick((2, 4, 8, 16, 32))
    target = draw.pick((3, 3.2, 3.5, 3.6, 3.75))
    # 16/(4 + 12/N) reaches the target from here on.
    even = 2
    while _saving(even, 1) < target * (1 - 1e-12):
        even += 1
    values = {
        "N": str(n),
        "first": times(_saving(n, 1)),
        "second": times(_saving(n, 2)),
        "first_bytes": significant(states(1.0, n, 1)),
        "second_bytes": significant(states(1.0, n, 2)),
        "target": f"{target:.4g}×",
        "even": str(even),
        "last": str(even - 1),
        "last_saving": times(_saving(even - 1, 1)),
    }
    return variant(
        id="multiples",
        title="Four, eight, N times less?",
        scenario="Data sheets say that ZeRO-1 saves 4 times, ZeRO-2 8 times and ZeRO-3 *N* times the memory of model states. Take 2 + 2 + 12 bytes per parameter and {N} ranks.",
        given=(Given(symbol="N", meaning="data-parallel ranks", value="{N}"),),
        values=values,
        parts=(
            figure(
                id="first",
                prompt="What does ZeRO-1 really save?",
                key=_saving(n, 1),
                unit="×",
                wrong=[
                    (4, "limit-at-finite-n"),
                    (_saving(n, 2), "other-stage"),
                    (n, "all-sharded"),
                    (1 / _saving(n, 1), "inverted", "Turn it over: 16 over what is left."),
                ],
                solution=("16 bytes become 4 + 12/{N} = {first_bytes}: {first}.",),
            ),
            figure(
                id="second",
                prompt="And ZeRO-2?",
                key=_saving(n, 2),
                unit="×",
                wrong=[
                    (8, "limit-at-finite-n"),
                    (_saving(n, 1), "other-stage"),
                    (n, "all-sharded"),
                    (1 / _saving(n, 2), "inverted", "Turn it over: 16 over what is left."),
                ],
                solution=("16 bytes become 2 + 14/{N} = {second_bytes}: {second}.",),
            ),
            whole(
                id="even",
                prompt="From how many ranks on does ZeRO-1 save at least {target}?",
                key=even,
                unit="ranks",
                wrong=[
                    (even - 1, "tie-is-a-gain", "{last} ranks save {last_saving}."),
                    (4, "limit-at-finite-n", "4 is what the saving tends to, not a number of ranks."),
                ],
                solution=(
                    "16/(4 + 12/*N*) ≥ {target} holds from {even} ranks on; {last} save {last_saving}.",
                ),
            ),
            choice(
                id="of-what",
                prompt="What do these multiples leave out?",
                options=(
                    right(
                        "rest",
                        "Activations, buffers and gathered weights: they come on top and are not sharded by ZeRO.",
                        "With long sequences they can take more than the model states.",
                    ),
                    wrong(
                        "optimizer",
                        "The optimizer state.",
                        "weights-only",
                        "It is 12 of the 16 bytes, and the first to be sharded.",
                    ),
                    wrong(
                        "gradients",
                        "The gradients.",
                        "weights-only",
                        "They are 2 of the 16 bytes; ZeRO-2 shards them.",
                    ),
                    wrong(
                        "nothing",
                        "Nothing: a job needs 4, 8 or *N* times less memory.",
                        "activations-sharded",
                    ),
                ),
            ),
        ),
    )


def _stage(seed: int) -> Variant:
    draw = Draw(seed, "q5/stage")

    def sizes_of(drawn: Any) -> list[float]:
        return [states(drawn[0], drawn[1], stage) for stage in range(4)]

    def fits(drawn: Any) -> bool:
        room, sizes = drawn[2] - drawn[3], sizes_of(drawn)
        return (
            sizes[1] > room >= sizes[3]
            and all(abs(size / room - 1) > 0.06 for size in sizes)
            and apart(sizes)
        )

    drawn = draw.until(
        lambda: (
            1e9 * draw.pick((5, 6, 8, 10, 13, 15, 20, 24, 30)),
            draw.pick((8, 16, 32, 64)),
            1e9 * draw.pick((40, 80, 96, 141)),
            1e9 * draw.pick((8, 12, 20, 24, 30)),
        ),
        fits,
    )
    params, n, device, rest = drawn
    room, sizes = device - rest, sizes_of(drawn)
    first = next(stage for stage in range(4) if sizes[stage] <= room)
    largest = room / states(1.0, n, first)
    values = {
        "params": billions(params),
        "N": str(n),
        "device": gigabytes(device),
        "rest": gigabytes(rest),
        "room": gigabytes(room),
        "first": f"ZeRO-{first}",
        "per": significant(states(1.0, n, first)),
        "largest": billions(float(decimal(largest, 3))),
    }
    options = []
    for stage in range(4):
        values[f"size{stage}"] = gigabytes(sizes[stage])
        name = "plain data parallelism" if stage == 0 else f"ZeRO-{stage}"
        outcome = f"{{size{stage}}} against {{room}}. "
        if stage == first:
            options.append(right(f"stage{stage}", name, outcome + "No lower stage fits."))
        elif stage < first:
            options.append(wrong(f"stage{stage}", name, "does-not-fit", outcome + "It does not fit."))
        else:
            options.append(
                wrong(f"stage{stage}", name, "sharded-too-far", outcome + "It fits, but so does {first}.")
            )
    return variant(
        id="stage",
        title="The lowest stage that fits",
        scenario="{params} parameters, 2 + 2 + 12 bytes each, on {N} ranks of {device}. Activations, buffers and the library's own memory take {rest} on each rank.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="data-parallel ranks", value="{N}"),
            Given(symbol="M", meaning="memory of one rank", value="{device}"),
            Given(symbol="A", meaning="everything but model states", value="{rest}"),
        ),
        values=values,
        parts=(
            figure(
                id="second",
                prompt="How much do the model states take on one rank with ZeRO-2?",
                key=sizes[2] / 1e9,
                unit="GB",
                wrong=state_slips(params, n, 2),
                solution=("2Ψ + 14Ψ/*N* = {size2}.",),
            ),
            choice(
                id="first",
                prompt="Which is the lowest stage that fits?",
                options=tuple(options),
                solution=(
                    "{room} are left for model states: {size1} with ZeRO-1, {size2} with ZeRO-2, {size3} with ZeRO-3.",
                ),
            ),
            figure(
                id="largest",
                prompt="How many parameters would just fit with that stage, in billions?",
                key=largest / 1e9,
                unit="billion",
                relative=0.015,
                wrong=[
                    (
                        device / states(1.0, n, first) / 1e9,
                        "activations-sharded",
                        "That gives the model states the whole device. The {rest} of the rest come off first.",
                    ),
                    (room / 16 / 1e9, "nothing-sharded"),
                    (room * n / 16 / 1e9, "all-sharded"),
                    (room / states(1.0, n, 1) / 1e9, "other-stage"),
                ],
                solution=(
                    "{first} keeps {per} bytes per parameter on each of {N} ranks: {room} / {per} bytes = {largest}.",
                ),
            ),
        ),
    )


def _accumulation(seed: int) -> Variant:
    draw = Draw(seed, "q5/accumulation")
    n = draw.pick((4, 8, 16, 32))
    params = 1e9 * draw.pick((1, 1.5, 2, 3, 5, 6, 8))
    micro = draw.pick((2, 3, 4, 6, 8))
    one, two, three = [_volume(params, n, stage, micro) for stage in (1, 2, 3)]
    values = {
        "N": str(n),
        "params": billions(params),
        "G": str(micro),
        "more": str(micro + 1),
        "gathers": str(2 * micro),
        "passes": str(3 * micro),
        "pass": gigabytes(_volume(params, n, 0) / 2),
        "one": gigabytes(one),
        "two": gigabytes(two),
        "three": gigabytes(three),
        "ratio": times(three / one),
    }
    return variant(
        id="accumulation",
        title="Several micro-batches per step",
        scenario="{params} parameters on {N} ranks; weights and gradients travel in 2 bytes each. {G} micro-batches make one optimizer step. ZeRO-1 adds up gradients locally (`no_sync`); "
        "ZeRO-2 and ZeRO-3 reduce-scatter them after every micro-batch, and ZeRO-3 gathers the weights for every forward and backward pass.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="data-parallel ranks", value="{N}"),
            Given(symbol="G", meaning="micro-batches per step", value="{G}"),
        ),
        values=values,
        parts=(
            figure(
                id="one",
                prompt="How much does a rank send per step with ZeRO-1?",
                key=one / 1e9,
                unit="GB",
                wrong=[
                    (
                        one / 2e9,
                        "one-phase",
                        "That is one reduce-scatter or one all-gather. A step has both.",
                    ),
                    (micro * one / 1e9, "bytes-per-micro-batch"),
                    (4 * params / 1e9, "full-2p", "*N* ranks send (*N*−1)/*N* of it."),
                    (two / 1e9, "other-stage"),
                    (2 * one / 1e9, "gradient-width"),
                ],
                solution=(
                    "One pass over 2Ψ bytes sends (*N*−1)/*N* · 2Ψ = {pass}.",
                    "One reduce-scatter and one all-gather are {one}.",
                ),
            ),
            figure(
                id="two",
                prompt="And with ZeRO-2?",
                key=two / 1e9,
                unit="GB",
                wrong=[
                    (one / 1e9, "accumulation-for-all-stages"),
                    (micro * one / 1e9, "gather-every-time"),
                    (three / 1e9, "other-stage"),
                ],
                solution=("{G} reduce-scatters and one all-gather are {more} passes: {two}.",),
            ),
            figure(
                id="three",
                prompt="And with ZeRO-3?",
                key=three / 1e9,
                unit="GB",
                wrong=[
                    (
                        1.5 * one / 1e9,
                        "accumulation-for-all-stages",
                        "That is ZeRO-3 with one micro-batch. It gathers the weights anew for each.",
                    ),
                    (2 * micro * one / 2e9, "one-gather"),
                    (two / 1e9, "other-stage"),
                ],
                solution=(
                    "{gathers} all-gathers and {G} reduce-scatters are {passes} passes: {three}, which is {ratio} of ZeRO-1's {one}.",
                ),
            ),
            choice(
                id="remedy",
                prompt="ZeRO-2 fits, the network is slow, and the global batch is fixed. What do you change first?",
                options=(
                    right(
                        "larger",
                        "Fewer and larger micro-batches, if the activations allow it, or ZeRO-1 if it fits.",
                        "ZeRO-2 sends (*G*+1) passes: every micro-batch that goes saves {pass}.",
                    ),
                    wrong(
                        "smaller",
                        "More and smaller micro-batches, to send less at a time.",
                        "smaller-micro-batches",
                    ),
                    wrong(
                        "stage3",
                        "ZeRO-3: it sends shards, so less.",
                        "sharding-saves-bytes",
                        "It would send {three} in place of {two}.",
                    ),
                    wrong(
                        "ranks",
                        "Fewer ranks, because each then sends less.",
                        "volume-grows",
                        "The volume of a rank hardly depends on *N*, and each rank would have more micro-batches to do.",
                    ),
                ),
            ),
        ),
    )


def _time(seed: int) -> Variant:
    draw = Draw(seed, "q5/time")

    def propose() -> Any:
        return (
            1e9 * draw.pick((0.5, 0.8, 1, 1.5, 2)),
            draw.pick((8, 16, 32)),
            1e9 * draw.pick((5, 10, 12.5, 25)),
            draw.pick((0.2, 0.3, 0.4, 0.5, 0.8)),
        )

    def fits(drawn: tuple[float, int, float, float]) -> bool:
        params, n, bandwidth, compute = drawn
        return 0.15 < _volume(params, n, 3) / bandwidth / compute < 2

    params, n, bandwidth, compute = draw.until(propose, fits)
    lower, upper = [_volume(params, n, stage) / bandwidth for stage in (2, 3)]
    slower = (compute + upper) / (compute + lower) - 1
    one_pass = _volume(params, n, 3) - _volume(params, n, 2)
    needed = one_pass * (1 - 2 * MOST) / (MOST * compute)
    values = {
        "params": billions(params),
        "N": str(n),
        "B": format_bandwidth(bandwidth),
        "C": format_time(compute),
        "two": ms(lower),
        "three": ms(upper),
        "two_step": ms(compute + lower),
        "three_step": ms(compute + upper),
        "slower": percent(slower),
        "hidden": ms(max(compute, upper)),
        "ratio": decimal(upper / compute),
        "most": f"{100 * MOST:.0f} %",
        "pass": gigabytes(one_pass),
        "needed": gigabytes_per_s(needed),
    }
    return variant(
        id="time",
        title="What stage 3 costs in time",
        scenario="A model of {params} parameters fits with ZeRO-2 on {N} ranks. A rank computes for {C} per step of one micro-batch, and sends at {B}; weights and gradients travel in 2 bytes. "
        "Nothing overlaps, and latency does not matter.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="data-parallel ranks", value="{N}"),
            Given(symbol="C", meaning="compute of one rank per step", value="{C}"),
            Given(symbol="B", meaning="bandwidth of one rank, each way", value="{B}"),
        ),
        values=values,
        parts=(
            figure(
                id="two",
                prompt="How long is a step with ZeRO-2?",
                key=1e3 * (compute + lower),
                unit="ms",
                wrong=[
                    (1e3 * lower, "no-compute"),
                    (1e3 * (compute + lower / 2), "one-phase"),
                    (1e3 * (compute + upper), "other-stage"),
                    (1e3 * max(compute, lower), "full-overlap"),
                    (1e3 * (compute + 2 * lower), "gradient-width"),
                ],
                solution=(
                    "2(*N*−1)/*N* · Ψ elements of 2 bytes take {two} at {B}.",
                    "{C} + {two} = {two_step}.",
                ),
            ),
            share(
                id="slower",
                prompt="By how many per cent is a step longer with ZeRO-3?",
                key=slower,
                wrong=[
                    (0.5, "wrong-whole", "The communication takes half as long again, not the step."),
                    (
                        upper / (compute + upper),
                        "wrong-whole",
                        "That is the share of communication in the longer step.",
                    ),
                    (0.0, "stage3-is-free"),
                    (
                        (compute + upper) / (compute + lower),
                        "wrong-whole",
                        "That is the ratio of the two steps. How much longer is what exceeds 100 %.",
                    ),
                ],
                solution=(
                    "ZeRO-3 sends 3 where ZeRO-2 sends 2: {three} in place of {two}.",
                    "{three_step} is {slower} more than {two_step}.",
                ),
            ),
            figure(
                id="bandwidth",
                prompt="From which bandwidth on is a step with ZeRO-3 at most {most} longer than one with ZeRO-2?",
                key=needed / 1e9,
                unit="GB/s",
                relative=0.02,
                wrong=[
                    (
                        one_pass / (MOST * compute) / 1e9,
                        "share-of-step",
                        "That is {most} of the compute. A step with ZeRO-2 also communicates.",
                    ),
                    (
                        _volume(params, n, 3) / (MOST * compute) / 1e9,
                        "wrong-whole",
                        "That counts all traffic of ZeRO-3. ZeRO-2 has two thirds of it too.",
                    ),
                    (8 * needed / 1e9, "bits-for-bytes"),
                    (needed * n / 1e9, "whole-cluster"),
                ],
                solution=(
                    "ZeRO-3 adds one pass of {pass} to the two of ZeRO-2: {pass}/*B* ≤ {most} · (*C* + 2 · {pass}/*B*).",
                    "So *B* ≥ (1 − 2 · {most}) · {pass} / ({most} · {C}) = {needed}.",
                ),
            ),
            choice(
                id="worth",
                prompt="Under which condition would ZeRO-3 cost next to nothing here?",
                options=(
                    right(
                        "hidden",
                        "If the gathers run while other layers compute, and all traffic ({three}) fits under the compute.",
                        "With such overlap a step takes {hidden}. The traffic is {ratio} times the compute here.",
                    ),
                    wrong("more", "With more ranks: shards are smaller.", "smaller-shards-send-less"),
                    wrong(
                        "sharded",
                        "It does already: it sends shards only.",
                        "stage3-is-free",
                        "It adds {slower} to the step as it stands.",
                    ),
                    wrong(
                        "micro",
                        "With more micro-batches per step: the gathers are paid once.",
                        "accumulation-for-all-stages",
                        "ZeRO-3 gathers the weights for every micro-batch.",
                    ),
                ),
            ),
        ),
    )


# Recipes of the memory model beside the paper's, in words.
RECIPES = (
    ("megatron-18", "16-bit weights, fp32 gradients, and 12 bytes of fp32 weights and moments"),
    ("mixed-moment-12", "16-bit weights and gradients, and 8 bytes of fp32 weights and one moment"),
    ("fp32-adam-16", "fp32 weights and gradients, and 8 bytes of moments"),
)


def _recipe(seed: int) -> Variant:
    draw = Draw(seed, "q5/recipe")
    name, text = draw.pick(RECIPES)
    n = draw.pick((8, 16, 32, 64))
    params = 1e9 * draw.pick((2, 3, 4, 6, 8, 12))
    recipe = recipe_named(name)
    per, sharded = recipe.bytes_per_parameter, recipe.stage1_bytes
    kept = per - sharded
    limit = per / kept
    size = states(params, n, 1, name)
    values = {
        "recipe": text,
        "N": str(n),
        "params": billions(params),
        "per": f"{per:.4g}",
        "kept": f"{kept:.4g}",
        "sharded": f"{sharded:.4g}",
        "size": gigabytes(size),
        "saving": times(_saving(n, 1, name)),
        "limit": times(limit),
    }
    return variant(
        id="recipe",
        title="Other bytes per parameter",
        scenario="Not every library keeps 2 + 2 + 12 bytes per parameter. This one keeps {recipe}. {params} parameters train on {N} ranks with ZeRO-1.",
        given=(
            Given(symbol="Ψ", meaning="parameters", value="{params}"),
            Given(symbol="N", meaning="data-parallel ranks", value="{N}"),
            Given(symbol="K", meaning="bytes per parameter that ZeRO-1 shards", value="{sharded}"),
        ),
        values=values,
        parts=(
            figure(
                id="per",
                prompt="How many bytes per parameter does a rank keep without any sharding?",
                key=per,
                unit="bytes",
                digits=2,
                wrong=[
                    (16, "other-recipe"),
                    (kept, "weights-only", "The optimizer state counts too."),
                    (per - recipe.gradients, "weights-only", "The gradients count too."),
                    (sharded, "other-term", "That is the optimizer state alone."),
                ],
                solution=("{kept} bytes of weights and gradients and {sharded} of optimizer state: {per}.",),
            ),
            figure(
                id="size",
                prompt="How much do the model states take on one rank with ZeRO-1?",
                key=size / 1e9,
                unit="GB",
                wrong=[
                    (states(params, n, 1) / 1e9, "other-recipe"),
                    (states(params, n, 3, name) / 1e9, "all-sharded"),
                    (states(params, n, 2, name) / 1e9, "other-stage"),
                    (params * per / 1e9, "nothing-sharded"),
                    (params * kept / 1e9, "limit-at-finite-n"),
                ],
                solution=("{kept}Ψ + {sharded}Ψ/{N} = {size}.",),
            ),
            figure(
                id="limit",
                prompt="What saving does ZeRO-1 tend to for ever more ranks?",
                key=limit,
                unit="×",
                wrong=[
                    (4, "other-recipe"),
                    (_saving(n, 1, name), "not-the-limit", "That is the saving at {N} ranks."),
                    (8, "other-stage"),
                    (n, "all-sharded"),
                ],
                solution=(
                    "{per} bytes tend to the {kept} that ZeRO-1 leaves whole: {limit}. At {N} ranks it is {saving}.",
                ),
            ),
        ),
    )
